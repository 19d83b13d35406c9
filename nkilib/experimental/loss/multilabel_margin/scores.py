"""The scores of a block of rows: those of its targets, and those of the other classes."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import FLOAT32_HIGHEST, float32_like
from nkilib.experimental.loss.multilabel_margin.targets import Ordinals, TargetLists, of_trip
from nkilib.nki import nisa, nl

_HIGHEST = {nl.float32: FLOAT32_HIGHEST, nl.bfloat16: 3.3895313892515355e38, nl.float16: 65504.0}
_LOWEST = float("-inf")


@dataclass(frozen=True)
class Scores:
    """Of a block.

    Attributes:
        others_sbuf: [rows, C], in the type of the input; -inf at every target.
        biases_sbuf: 1 - x_t for each target of a list, float32 [rows, trips, targets of a trip]; behind its end such a
            number that no term is positive.
    """

    others_sbuf: nl.NkiTensor
    biases_sbuf: nl.NkiTensor

    @classmethod
    def make(
        cls,
        input_sbuf: nl.NkiTensor,
        lists: TargetLists,
        ordinals: Ordinals,
        trips: nisa.VirtualRegister,
        unused_sbuf: nl.NkiTensor,
    ) -> Scores:
        """From the input [rows, C], in its place.

        The score of a target is a sum of products with a mask, of which all others are 0: of finite scores. So they are
        made finite before.
        """
        rows, classes = input_sbuf.shape
        highest = _HIGHEST[input_sbuf.dtype]
        nisa.tensor_scalar(
            dst=input_sbuf, data=input_sbuf, op0=nl.minimum, operand0=highest, op1=nl.maximum, operand1=-highest
        )
        biases_sbuf = float32_like(lists.classes_sbuf)
        nisa.memset(dst=biases_sbuf, value=0.0)
        is_target_sbuf = nl.ndarray((rows, classes), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=is_target_sbuf, value=0.0)
        rising_sbuf = ordinals.rising_sbuf[0:rows, :]

        def find_targets(trip: nisa.VirtualRegister) -> None:
            for place in range(lists.classes_sbuf.shape[2]):
                target_sbuf = lists.of_trip(trip, place)
                nisa.scalar_tensor_tensor(
                    dst=unused_sbuf[0:rows, :],
                    data=rising_sbuf,
                    op0=nl.equal,
                    operand0=target_sbuf,
                    op1=nl.multiply,
                    operand1=input_sbuf,
                    reduce_op=nl.add,
                    reduce_res=of_trip(biases_sbuf, trip, place),
                )
                nisa.scalar_tensor_tensor(
                    dst=is_target_sbuf,
                    data=rising_sbuf,
                    op0=nl.equal,
                    operand0=target_sbuf,
                    op1=nl.maximum,
                    operand1=is_target_sbuf,
                )

        nl.fori_loop(0, trips, find_targets)
        nisa.tensor_copy_predicated(dst=input_sbuf, src=_LOWEST, predicate=is_target_sbuf.view(nl.uint16))
        _make_biases(biases_sbuf, lists)
        return cls(input_sbuf, biases_sbuf)


def _make_biases(biases_sbuf: nl.NkiTensor, lists: TargetLists) -> None:
    """1 - x_t, finite, in the place of x_t."""
    nisa.tensor_scalar(dst=biases_sbuf, data=biases_sbuf, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    is_none_sbuf = nl.ndarray(biases_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=is_none_sbuf, data=lists.classes_sbuf, op0=nl.equal, operand0=0.0)
    nisa.tensor_copy_predicated(dst=biases_sbuf, src=-FLOAT32_HIGHEST, predicate=is_none_sbuf)
