# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-label margin loss, as plain functions to call from NKI code.

A row x has one *term* relu(1 - x_t + x_j) for each pair of a target t and a class j that is no target. A *block* is up
to 128 rows that are processed together, a *group* the blocks that one device loop processes (:mod:`.launch`). N is the
number of rows, C the number of classes. :func:`forward_of_core` and :func:`backward_of_core` are the loops of a core.

In the forward, Scalar adds up the terms of one target of each row at a time. In the backward, the gradient of a row is
a count for each class times a factor of the row. For one target of each row at a time, Vector adds 1 to the count of
every class whose term is positive. The count of the target's own class must decrease by the number of these classes:
this number is the difference of the sums of all counts after and before the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.cores import PartialSums
from nkilib.core.hardware import PARTITIONS, HbmTensor
from nkilib.core.loss_arguments import require_upstream
from nkilib.core.rows.checks import require_flag
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multilabel_margin.launch import (
    TARGETS_OF_ITERATION,
    InputBuffers,
    Launch,
    Ordinals,
    RowBlock,
    Scores,
    TargetLists,
    TargetReader,
    of_iteration,
    scores_of_group,
    validate,
)
from nkilib.nki import nisa, nl

# Bytes of a partition for each class of a block. Forward: scores, marks of targets, and two float32 numbers for each
# target; backward: scores, counts, and three float32 numbers for each target.
FORWARD_BYTES_OF_CLASS, BACKWARD_BYTES_OF_CLASS = 14, 20


def _total(parts_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    rows, iterations, places = parts_sbuf.shape
    sum_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sum_sbuf, op=nl.add, data=parts_sbuf.reshape((rows, iterations * places)), axis=1)
    return sum_sbuf


@dataclass(frozen=True)
class _Forward:
    """The operands and buffers that all blocks of the forward share.

    Attributes:
        launch: the launch of the kernel.
        reader: the reader of the targets.
        unused_sbuf: a scratch tile, float32 [128, C], for terms of which only the sum is used.
    """

    launch: Launch
    reader: TargetReader
    unused_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch) -> _Forward:
        unused_sbuf = nl.ndarray((PARTITIONS, launch.classes), dtype=nl.float32, buffer=nl.sbuf)
        return cls(launch, TargetReader.make(launch, Ordinals.make(launch.classes), unused_sbuf), unused_sbuf)

    def run(self, loss_hbm: nl.NkiTensor, sums: PartialSums | None) -> None:
        """Compute the losses of all rows of this core, and store them in ``loss_hbm`` or keep them in ``sums``."""
        groups = self.launch.groups(FORWARD_BYTES_OF_CLASS)
        buffers = InputBuffers.make(self.launch, len(groups[0]))
        lengths = self.reader.lengths(self.launch.blocks())
        iterations = self.reader.iterations(lengths)
        for group in groups:
            inputs = buffers.loaded(group)
            lists = [self.reader.lists(block, lengths) for block in group]
            scores = scores_of_group(inputs, lists, self.reader.ordinals, iterations, self.unused_sbuf)
            for block, sum_sbuf in zip(group, self._summed(scores, iterations), strict=True):
                if block.is_stored:
                    self._finish(block, sum_sbuf, loss_hbm, sums)

    def _summed(self, group_scores: list[Scores], iterations: nisa.VirtualRegister) -> list[nl.NkiTensor]:
        """Return one tile for each block of a group, float32 [rows, 1]: the sum of the terms of each row."""
        parts = [float32_like(scores.biases_sbuf) for scores in group_scores]
        for parts_sbuf in parts:
            nisa.memset(dst=parts_sbuf, value=0.0)

        def sum_terms(iteration: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_ITERATION):
                for scores, parts_sbuf in zip(group_scores, parts, strict=True):
                    nisa.activation(
                        dst=self.unused_sbuf[0 : parts_sbuf.shape[0], :],
                        op=nl.relu,
                        data=scores.others_sbuf,
                        bias=of_iteration(scores.biases_sbuf, iteration, place),
                        reduce_op=nl.add,
                        reduce_res=of_iteration(parts_sbuf, iteration, place),
                        reduce_cmd=nisa.reduce_cmd.reset_reduce,
                    )

        nl.fori_loop(0, iterations, sum_terms)
        return [_total(parts_sbuf) for parts_sbuf in parts]

    def _finish(
        self, block: RowBlock, sum_sbuf: nl.NkiTensor, loss_hbm: nl.NkiTensor, sums: PartialSums | None
    ) -> None:
        """Compute the losses of a block from the sums of their terms; store them in ``loss_hbm`` if ``sums`` is None,
        else keep them in ``sums``.
        """
        rows = block.batch.rows
        losses_sbuf = nl.ndarray((rows, 1), dtype=loss_hbm.dtype, buffer=nl.sbuf)
        to_sbuf = losses_sbuf if sums is None else sums.of_part(block.number, rows)
        nisa.tensor_scalar(dst=to_sbuf, data=sum_sbuf, op0=nl.multiply, operand0=self.launch.factor)
        if sums is None:
            block.batch.stored(loss_hbm, losses_sbuf)


def forward_of_core(launch: Launch, loss_hbm: nl.NkiTensor) -> None:
    """Compute and store the losses of this core's rows in ``loss_hbm`` [N]; or, with a reduction, the reduced loss of
    all cores in ``loss_hbm`` [1].
    """
    sums = None if launch.is_each else PartialSums.make(launch.number_of_blocks)
    _Forward.make(launch).run(loss_hbm, sums)
    if sums is not None:
        sums.store(loss_hbm)


@dataclass(frozen=True)
class _Counts:
    """The counts of positive terms of a block.

    Attributes:
        scores: the scores of the block, with negated biases.
        counts_sbuf: for each row and class, the number of positive terms so far, float32 [rows, C].
        sums_sbuf: float32 [rows, iterations, targets of an iteration]: for each target of a row, the sum of the row's
            ``counts_sbuf`` after this target.
    """

    scores: Scores
    counts_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, scores: Scores) -> _Counts:
        """Return counts of 0, and negate ``scores.biases_sbuf``: a term is positive if x_j > x_t - 1."""
        counts = cls(scores, float32_like(scores.others_sbuf), float32_like(scores.biases_sbuf))
        for tile_sbuf in (counts.counts_sbuf, counts.sums_sbuf):
            nisa.memset(dst=tile_sbuf, value=0.0)
        nisa.tensor_scalar(dst=scores.biases_sbuf, data=scores.biases_sbuf, op0=nl.multiply, operand0=-1.0)
        return counts

    def count(self, iteration: nisa.VirtualRegister, place: int) -> None:
        """Add 1 to the count of each class whose term with target number ``place`` of an iteration is positive."""
        nisa.scalar_tensor_tensor(
            dst=self.counts_sbuf,
            data=self.scores.others_sbuf,
            op0=nl.greater,
            operand0=of_iteration(self.scores.biases_sbuf, iteration, place),
            op1=nl.add,
            operand1=self.counts_sbuf,
            reduce_op=nl.add,
            reduce_res=of_iteration(self.sums_sbuf, iteration, place),
        )

    def give(
        self, target_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor, ordinals: Ordinals, unused_sbuf: nl.NkiTensor
    ) -> None:
        """In each row, add a number to the count of one class, which is a target of the row.

        Args:
            target_sbuf: the class of each row, counted from 1, [rows, 1]; 0 adds nothing.
            number_sbuf: the number to add in each row, [rows, 1].
            ordinals: the class numbers.
            unused_sbuf: a scratch tile, [128, C].
        """
        rows = self.counts_sbuf.shape[0]
        chosen_sbuf = unused_sbuf[0:rows, :]
        nisa.tensor_scalar(
            dst=chosen_sbuf,
            data=ordinals.rising_sbuf[0:rows, :],
            op0=nl.equal,
            operand0=target_sbuf,
            op1=nl.multiply,
            operand1=number_sbuf,
        )
        nisa.tensor_tensor(dst=self.counts_sbuf, data1=self.counts_sbuf, data2=chosen_sbuf, op=nl.add)


def _negative_differences(sums_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return v_(i - 1) - v_i for the values v_0, v_1, ... of each row, in the shape of ``sums_sbuf``; v_(-1) is 0."""
    rows, iterations, places = sums_sbuf.shape
    columns = iterations * places
    flat_sbuf, found_sbuf = sums_sbuf.reshape((rows, columns)), float32_like(sums_sbuf)
    to_sbuf = found_sbuf.reshape((rows, columns))
    nisa.tensor_scalar(dst=to_sbuf[:, 0:1], data=flat_sbuf[:, 0:1], op0=nl.multiply, operand0=-1.0)
    nisa.tensor_tensor(
        dst=to_sbuf[:, 1:columns],
        data1=flat_sbuf[:, 0 : columns - 1],
        data2=flat_sbuf[:, 1:columns],
        op=nl.subtract,
    )
    return found_sbuf


@dataclass(frozen=True)
class _Backward:
    """The operands and buffers that all blocks of the backward share.

    Attributes:
        launch: the launch of the kernel.
        reader: the reader of the targets.
        unused_sbuf: a scratch tile, float32 [128, C].
        grad_loss_hbm: the upstream gradients, [N], or float32 [1] for a sum or mean.
        grad_input_hbm: the gradient, [N, C].
    """

    launch: Launch
    reader: TargetReader
    unused_sbuf: nl.NkiTensor
    grad_loss_hbm: nl.NkiTensor
    grad_input_hbm: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, grad_loss_hbm: nl.NkiTensor, grad_input_hbm: nl.NkiTensor) -> _Backward:
        unused_sbuf = nl.ndarray((PARTITIONS, launch.classes), dtype=nl.float32, buffer=nl.sbuf)
        reader = TargetReader.make(launch, Ordinals.make(launch.classes), unused_sbuf)
        return cls(launch, reader, unused_sbuf, grad_loss_hbm, grad_input_hbm)

    def run(self) -> None:
        """Compute and store the gradients of all rows of this core."""
        groups = self.launch.groups(BACKWARD_BYTES_OF_CLASS)
        buffers = InputBuffers.make(self.launch, len(groups[0]))
        lengths = self.reader.lengths(self.launch.blocks())
        iterations = self.reader.iterations(lengths)
        for group in groups:
            inputs = buffers.loaded(group)
            lists = [self.reader.lists(block, lengths) for block in group]
            scores = scores_of_group(inputs, lists, self.reader.ordinals, iterations, self.unused_sbuf)
            counts = self._counted(scores, lists, iterations)
            for block, input_sbuf, counts_sbuf in zip(group, inputs, counts, strict=True):
                nisa.tensor_scalar(dst=input_sbuf, data=counts_sbuf, op0=nl.multiply, operand0=self._factor(block))
                if block.is_stored:
                    store_hbm = block.batch.part_of(self.grad_input_hbm, 0, self.launch.classes)
                    nisa.dma_copy(dst=store_hbm, src=input_sbuf)

    def _factor(self, block: RowBlock) -> nl.NkiTensor:
        """Return, for each row, upstream gradient / C, for a mean also / N: float32 [rows, 1]."""
        rows, grad_hbm = block.batch.rows, self.grad_loss_hbm
        grad_sbuf = nl.ndarray((rows, 1), dtype=grad_hbm.dtype, buffer=nl.sbuf)
        if self.launch.is_each:
            of_rows_hbm = grad_hbm.reshape((self.launch.rows, 1))
            nisa.dma_copy(dst=grad_sbuf, src=block.batch.part_of(of_rows_hbm, 0, 1))
        else:
            nisa.dma_copy(dst=grad_sbuf, src=grad_hbm.reshape((1, 1)).broadcast(0, rows))
        factor_sbuf = float32_like(grad_sbuf)
        nisa.tensor_scalar(dst=factor_sbuf, data=grad_sbuf, op0=nl.multiply, operand0=self.launch.factor)
        return factor_sbuf

    def _counted(
        self, group_scores: list[Scores], lists: list[TargetLists], iterations: nisa.VirtualRegister
    ) -> list[nl.NkiTensor]:
        """Return one tile for each block of a group, float32 [rows, C]: a count for each class of each row.

        The count of a class is its number of positive terms; for a target it is minus this number.
        """
        counted = [_Counts.make(scores) for scores in group_scores]

        def count_terms(iteration: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_ITERATION):
                for counts in counted:
                    counts.count(iteration, place)

        nl.fori_loop(0, iterations, count_terms)
        numbers = [_negative_differences(counts.sums_sbuf) for counts in counted]

        def give(iteration: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_ITERATION):
                for counts, target_lists, numbers_sbuf in zip(counted, lists, numbers, strict=True):
                    target_sbuf, number_sbuf = (
                        target_lists.of_iteration(iteration, place),
                        of_iteration(numbers_sbuf, iteration, place),
                    )
                    counts.give(target_sbuf, number_sbuf, self.reader.ordinals, self.unused_sbuf)

        nl.fori_loop(0, iterations, give)
        return [counts.counts_sbuf for counts in counted]


def backward_of_core(launch: Launch, grad_loss_hbm: nl.NkiTensor, grad_input_hbm: nl.NkiTensor) -> None:
    """Compute and store the gradient of the rows of this core, [N, C]."""
    _Backward.make(launch, grad_loss_hbm, grad_input_hbm).run()


def multilabel_margin_loss_forward(
    input_hbm: HbmTensor, targets_hbm: HbmTensor, reduction: str = "mean"
) -> nl.NkiTensor:
    """Compute the multi-label margin loss of every row x: the sum of relu(1 - x_t + x_j), divided by C.

    The sum runs over all pairs of a target t of the row and a class j that is no target. Equivalent to
    ``F.multilabel_margin_loss(input, target, reduction=reduction)`` in PyTorch. Launch with
    ``multilabel_margin_loss_forward[2](...)`` on a logical NeuronCore of two cores. The time grows with the length of
    the longest list of targets of all rows.

    Dimensions:
        N: rows (0 < N <= 262,144).
        C: classes (0 < C <= 4,096).

    Args:
        input_hbm: the scores, [N, C], bfloat16, float16 or float32, in HBM. An infinite score counts as the largest
            finite number.
        targets_hbm: [N, C], int32; the targets of a row are the classes before its first negative number. A class that
            is listed twice counts twice. A number of C or more counts as a target with a score of 0.
        reduction: ``"none"``, ``"sum"``, or ``"mean"``: the sum divided by N.

    Returns:
        loss_hbm: for ``"none"`` [N] in the type of the input; otherwise [1], float32. A NaN in a row with a target
            makes its loss NaN.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    launch = Launch("multilabel_margin_loss_forward", input_hbm, targets_hbm, reduction)
    validate(launch)
    shape, dtype = ((launch.rows,), input_hbm.dtype) if launch.is_each else ((1,), nl.float32)
    loss_hbm = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")
    forward_of_core(launch, loss_hbm)
    return loss_hbm


def multilabel_margin_loss_backward(
    input_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    inplace: bool = False,
) -> nl.NkiTensor:
    """Compute the gradient of :func:`multilabel_margin_loss_forward` with respect to the input.

    For a class j that is no target, the gradient of a row's loss is n_j / C, where n_j is the number of targets t with
    x_t - x_j < 1. For a target t it is -n_t / C, where n_t is the number of classes j with x_t - x_j < 1 that are no
    targets. A target that is listed k times counts k times in n_j, and its own gradient is -k n_t / C.

    Args:
        input_hbm, targets_hbm, reduction: the arguments of the forward.
        grad_loss_hbm: the upstream gradient: [N] for ``"none"``, bfloat16, float16 or float32; else one float32, read
            on the device.
        inplace: write the gradient over ``input_hbm``; else into a new tensor.

    Returns:
        grad_input_hbm: [N, C], in the type of the input; with ``inplace``, ``input_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "multilabel_margin_loss_backward"
    launch = Launch(function, input_hbm, targets_hbm, reduction)
    validate(launch)
    require_flag(function, "inplace", inplace)
    require_upstream(function, grad_loss_hbm, (launch.rows,), launch.is_each)
    grad_input_hbm = input_hbm
    if not inplace:
        shape = tuple(input_hbm.shape)
        grad_input_hbm = nl.ndarray(shape, dtype=input_hbm.dtype, buffer=nl.shared_hbm, name="grad_input_hbm")
    backward_of_core(launch, grad_loss_hbm, grad_input_hbm)
    return grad_input_hbm
