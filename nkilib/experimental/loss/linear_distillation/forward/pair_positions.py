# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The caller's inputs for the positions of a block: labels, which positions are valid, and row weights."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import constant, float32_like, product, selected
from nkilib.experimental.loss.linear.shared.blocks import Block
from nkilib.experimental.loss.linear.shared.operands import load_positions
from nkilib.experimental.loss.linear_distillation.shared.options import PairLaunch
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class PairPositions:
    """The inputs of a block of positions, tiles [128, tiles]; None for inputs that the launch does not have.

    Attributes:
        labels_sbuf: the labels, float32, exact up to class 2^24.
        weights_sbuf: row weights, float32.
        valid_sbuf: uint32, 1 where the label is not ignored.
        is_local_sbuf: uint32, 1 where the label is not ignored and its class is in the weights of this launch.
        picked_sbuf: the student's scores at the labels, float32; computed later.
    """

    labels_sbuf: nl.NkiTensor | None
    weights_sbuf: nl.NkiTensor | None
    valid_sbuf: nl.NkiTensor | None
    is_local_sbuf: nl.NkiTensor | None
    picked_sbuf: nl.NkiTensor | None

    @classmethod
    def load(cls, launch: PairLaunch, block: Block) -> PairPositions:
        """Load the inputs of a block of positions."""
        labels_sbuf = weights_sbuf = valid_sbuf = is_local_sbuf = picked_sbuf = None
        if launch.row_weight_hbm is not None:
            weights_sbuf = load_positions(block.of(launch.row_weight_hbm), fill=0.0)
        if launch.labels_hbm is not None:
            labels_sbuf = load_positions(block.of(launch.labels_hbm), fill=-1.0)
            valid_sbuf = _compared(labels_sbuf, float(launch.options.ignore_index))
            if launch.wanted.needs_target:
                is_local_sbuf, picked_sbuf = _local_labels(launch, labels_sbuf), float32_like(labels_sbuf)
        return cls(labels_sbuf, weights_sbuf, valid_sbuf, is_local_sbuf, picked_sbuf)

    def weighted(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values times the row weights, and 0 at ignored positions."""
        if self.weights_sbuf is not None:
            values_sbuf = product(values_sbuf, self.weights_sbuf)
        return values_sbuf if self.valid_sbuf is None else selected(values_sbuf, self.valid_sbuf)

    def where_local(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values, and 0 at labels that are ignored or whose class is in another shard."""
        return values_sbuf if self.is_local_sbuf is None else selected(values_sbuf, self.is_local_sbuf)

    def join_picked(self, launch: PairLaunch, candidates: list[nl.NkiTensor]) -> None:
        """Set the student's scores at the labels: the largest of the candidates, which parts of the classes have found.

        A masked class gets -inf.
        """
        if self.picked_sbuf is None:
            return
        nisa.tensor_copy(dst=self.picked_sbuf, src=candidates[0])
        for other_sbuf in candidates[1:]:
            nisa.tensor_tensor(dst=self.picked_sbuf, data1=self.picked_sbuf, data2=other_sbuf, op=nl.maximum)
        if launch.student.bias_hbm is None:
            return
        is_masked_sbuf = nl.ndarray(self.picked_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        # Half of the score, because a product is added to a masked score.
        lowest = 0.5 * launch.lowest(launch.student)
        nisa.tensor_scalar(dst=is_masked_sbuf, data=self.picked_sbuf, op0=nl.less_equal, operand0=lowest)
        infinite_sbuf = constant(self.picked_sbuf, float("-inf"))
        nisa.tensor_copy_predicated(dst=self.picked_sbuf, src=infinite_sbuf, predicate=is_masked_sbuf)


def _compared(labels_sbuf: nl.NkiTensor, ignore_index: float) -> nl.NkiTensor:
    valid_sbuf = nl.ndarray(labels_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=valid_sbuf, data=labels_sbuf, op0=nl.not_equal, operand0=ignore_index)
    return valid_sbuf


def _local_labels(launch: PairLaunch, labels_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return a mask of the labels that are not ignored and whose classes are in the weights of this launch."""
    classes = launch.classes
    in_range_sbuf, is_local_sbuf = (
        float32_like(labels_sbuf),
        nl.ndarray(labels_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf),
    )
    nisa.tensor_scalar(dst=in_range_sbuf, data=labels_sbuf, op0=nl.greater_equal, operand0=float(classes.first))
    nisa.scalar_tensor_tensor(
        dst=in_range_sbuf,
        data=labels_sbuf,
        op0=nl.less_equal,
        operand0=float(classes.first + classes.count - 1),
        op1=nl.multiply,
        operand1=in_range_sbuf,
    )
    nisa.scalar_tensor_tensor(
        dst=is_local_sbuf,
        data=labels_sbuf,
        op0=nl.not_equal,
        operand0=float(launch.options.ignore_index),
        op1=nl.multiply,
        operand1=in_range_sbuf,
    )
    return is_local_sbuf
