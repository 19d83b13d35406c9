# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The scores of a block of rows: the scores of its targets, and the scores of the other classes."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import FLOAT32_HIGHEST, float32_like
from nkilib.experimental.loss.multilabel_margin.targets import TARGETS_OF_ITERATION, Ordinals, TargetLists, of_iteration
from nkilib.nki import nisa, nl

_HIGHEST = {nl.float32: FLOAT32_HIGHEST, nl.bfloat16: 3.3895313892515355e38, nl.float16: 65504.0}
_LOWEST = float("-inf")


@dataclass(frozen=True)
class Scores:
    """The scores of a block of rows.

    Attributes:
        others_sbuf: [rows, C], in the type of the input; the scores of the input; -inf at every target once the
            targets are found.
        biases_sbuf: 1 - x_t for each target t of a row's list, float32 [rows, iterations, targets of an
            iteration]; behind the end of the list a number for which no term is positive.
        is_target_sbuf: bfloat16 [rows, C], 1 at every target, else 0.
    """

    others_sbuf: nl.NkiTensor
    biases_sbuf: nl.NkiTensor
    is_target_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, input_sbuf: nl.NkiTensor, lists: TargetLists) -> Scores:
        """Clip the scores of the input to finite numbers, and allocate the other tiles; no target is found yet."""
        highest = _HIGHEST[input_sbuf.dtype]
        nisa.tensor_scalar(
            dst=input_sbuf, data=input_sbuf, op0=nl.minimum, operand0=highest, op1=nl.maximum, operand1=-highest
        )
        biases_sbuf = float32_like(lists.classes_sbuf)
        is_target_sbuf = nl.ndarray(input_sbuf.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        for tile_sbuf in (biases_sbuf, is_target_sbuf):
            nisa.memset(dst=tile_sbuf, value=0.0)
        return cls(input_sbuf, biases_sbuf, is_target_sbuf)

    def find_target(
        self,
        iteration: nisa.VirtualRegister,
        place: int,
        lists: TargetLists,
        ordinals: Ordinals,
        unused_sbuf: nl.NkiTensor,
    ) -> None:
        """Store the score x_t of one target of each row in the place of its bias, and mark the target.

        The target is number ``place`` of the loop's current iteration.
        """
        rows, target_sbuf = self.others_sbuf.shape[0], lists.of_iteration(iteration, place)
        rising_sbuf = ordinals.rising_sbuf[0:rows, :]
        nisa.scalar_tensor_tensor(
            dst=unused_sbuf[0:rows, :],
            data=rising_sbuf,
            op0=nl.equal,
            operand0=target_sbuf,
            op1=nl.multiply,
            operand1=self.others_sbuf,
            reduce_op=nl.add,
            reduce_res=of_iteration(self.biases_sbuf, iteration, place),
        )
        nisa.scalar_tensor_tensor(
            dst=self.is_target_sbuf,
            data=rising_sbuf,
            op0=nl.equal,
            operand0=target_sbuf,
            op1=nl.maximum,
            operand1=self.is_target_sbuf,
        )


def scores_of_group(
    inputs_sbuf: list[nl.NkiTensor],
    lists: list[TargetLists],
    ordinals: Ordinals,
    iterations: nisa.VirtualRegister,
    unused_sbuf: nl.NkiTensor,
) -> list[Scores]:
    """Separate the scores of targets from the scores of other classes, for the blocks of a group, in place.

    The score of a target is the sum over all classes of score times mask; the mask is 1 at the target and 0 elsewhere.
    Infinite scores are clipped to the largest finite numbers first, because 0 times infinity is NaN.

    Args:
        inputs_sbuf: the scores of each block, [rows, C]; overwritten.
        lists: the target lists of each block.
        ordinals: the numbers of the classes, with which targets are compared.
        iterations: the number of iterations of a loop that covers the longest list of all rows.
        unused_sbuf: a scratch tile for products, [128, C].
    """
    group_scores = [
        Scores.make(input_sbuf, target_lists) for input_sbuf, target_lists in zip(inputs_sbuf, lists, strict=True)
    ]

    def find_targets(iteration: nisa.VirtualRegister) -> None:
        for place in range(TARGETS_OF_ITERATION):
            for scores, target_lists in zip(group_scores, lists, strict=True):
                scores.find_target(iteration, place, target_lists, ordinals, unused_sbuf)

    nl.fori_loop(0, iterations, find_targets)
    for scores, target_lists in zip(group_scores, lists, strict=True):
        predicate = scores.is_target_sbuf.view(nl.uint16)
        nisa.tensor_copy_predicated(dst=scores.others_sbuf, src=_LOWEST, predicate=predicate)
        _make_biases(scores.biases_sbuf, target_lists)
    return group_scores


def _make_biases(biases_sbuf: nl.NkiTensor, lists: TargetLists) -> None:
    """Replace each x_t by 1 - x_t, and by the lowest float32 behind the end of a list."""
    nisa.tensor_scalar(dst=biases_sbuf, data=biases_sbuf, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    is_none_sbuf = nl.ndarray(biases_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=is_none_sbuf, data=lists.classes_sbuf, op0=nl.equal, operand0=0.0)
    nisa.tensor_copy_predicated(dst=biases_sbuf, src=-FLOAT32_HIGHEST, predicate=is_none_sbuf)
