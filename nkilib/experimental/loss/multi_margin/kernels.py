# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-class margin loss, as plain functions to call from NKI code.

The *term* of element j of a row x with target t is relu(x_j - x_t + margin)^p; its *threshold* is x_t - margin, above
which the term is positive (:mod:`.launch`). A *block* is up to 128 rows that are processed together. N is the number of
rows, C the number of classes. :func:`forward_of_core` and :func:`backward_of_core` are the loops of a core.

The element at the target of a row is gathered first; then the row is read once. The sum over a row includes the
target's *own term*, relu(margin)^p; the kernel computes the own term separately and subtracts it. The derivative of the
sum with respect to x_j is that of the term of j if j is not t; with respect to x_t it is minus the sum of these.
A core stores the chunks of a row first, then overwrites the element at the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.cores import PartialSums
from nkilib.core.hardware import HbmTensor
from nkilib.core.loss_arguments import require_upstream
from nkilib.core.rows.batches import Batch
from nkilib.core.rows.checks import require_flag
from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.sbuf import TileRing, ring_of
from nkilib.core.rows.stream import Chunk, Stream
from nkilib.core.rows.tiles import RowSums, cast, float32_like
from nkilib.experimental.loss.multi_margin.launch import (
    BUFFERS,
    Launch,
    MultiMarginOptions,
    MultiMarginTiling,
    RowBlock,
    Thresholds,
    choose_multi_margin_tiling,
    hinges,
    hinges_on_vector,
    scratch_of,
    square_hinges,
    sum_without,
    thresholds_of_blocks,
    validate,
)
from nkilib.experimental.loss.skeletons.indexed import IndexedUpstream
from nkilib.nki import nisa, nl

# Of each cycle of chunks Vector processes one and Scalar the others: both engines are then faster than the loads.
_CYCLE, _CHUNK_OF_VECTOR = 3, 1


@dataclass(frozen=True)
class _PendingLosses:
    """A block whose terms are being summed.

    Attributes:
        block: the rows.
        thresholds: the thresholds of the rows.
        parts: for each row and chunk, the sum of the chunk's terms.
        own_sbuf: the own term of each row, float32 [rows, 1]; ``parts`` includes the own term.
    """

    block: RowBlock
    thresholds: Thresholds
    parts: RowSums
    own_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class _Forward:
    """The operands and buffers that all blocks of the forward share.

    Attributes:
        launch: the launch of the kernel.
        stream: the stream of the input.
        scratch: float32 tiles for terms, if p = 2; None if p = 1, whose terms overwrite the input.
        zeros_sbuf: a tile of zeros, bfloat16 [128, columns of a chunk].
    """

    launch: Launch
    stream: Stream[Batch]
    scratch: TileRing | None
    zeros_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, blocks: list[RowBlock]) -> _Forward:
        buffers = ring_of(BUFFERS, launch.tiling.chunk_size, launch.input_hbm.dtype)
        stream = Stream.make(launch.input_hbm, [block.batch for block in blocks], buffers, is_first_halved=True)
        scratch = scratch_of(launch, nl.float32) if launch.options.p == 2 else None
        (zeros_sbuf,) = ring_of(1, launch.tiling.chunk_size, nl.bfloat16)
        nisa.memset(dst=zeros_sbuf, value=0.0)
        return cls(launch, stream, scratch, zeros_sbuf)

    def run(self, blocks: list[RowBlock], loss_hbm: nl.NkiTensor, sums: PartialSums | None) -> None:
        """Compute the losses of all rows of this core, and store them in ``loss_hbm`` or add them to ``sums``.

        The losses of a block are finished during the next block, so that no engine waits for the sums.
        """
        all_thresholds = thresholds_of_blocks(self.launch, blocks)
        previous: _PendingLosses | None = None
        for visit, block in enumerate(blocks):
            pending = self._begin(block, next(all_thresholds))
            for number in range(self.stream.num_chunks):
                load = visit * self.stream.num_chunks + number
                self._terms(self.stream.chunk(load), self.stream.loaded(load), pending)
                if number == 0 and previous is not None:
                    self._finish(previous, loss_hbm, sums)
            previous = pending
        if previous is not None:
            self._finish(previous, loss_hbm, sums)

    def _begin(self, block: RowBlock, thresholds: Thresholds) -> _PendingLosses:
        own_sbuf, term_sbuf = float32_like(thresholds.value_sbuf), float32_like(thresholds.value_sbuf)
        terms = hinges if self.scratch is None else square_hinges
        terms(term_sbuf, thresholds.value_sbuf, thresholds.bias_sbuf, own_sbuf)
        return _PendingLosses(block, thresholds, RowSums.make(block.batch.rows, self.stream.num_chunks), own_sbuf)

    def _terms(self, chunk: Chunk[Batch], input_sbuf: nl.NkiTensor, pending: _PendingLosses) -> None:
        bias_sbuf, sum_sbuf = pending.thresholds.bias_sbuf, pending.parts.part(chunk.number, chunk.batch.rows)
        if self.scratch is not None:
            square_hinges(self.scratch.tile(chunk.load, input_sbuf), input_sbuf, bias_sbuf, sum_sbuf)
        elif chunk.number % _CYCLE == _CHUNK_OF_VECTOR:
            hinges_on_vector(input_sbuf, self.zeros_sbuf, bias_sbuf, sum_sbuf)
        else:
            hinges(input_sbuf, input_sbuf, bias_sbuf, sum_sbuf)

    def _finish(self, pending: _PendingLosses, loss_hbm: nl.NkiTensor, sums: PartialSums | None) -> None:
        """Compute the losses of a block; store them in ``loss_hbm`` if ``sums`` is None, else keep them in ``sums``."""
        rows = pending.block.batch.rows
        losses_sbuf = nl.ndarray((rows, 1), dtype=loss_hbm.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=losses_sbuf if sums is None else sums.of_part(pending.block.number, rows),
            data=sum_without(pending.parts, pending.own_sbuf),
            op0=nl.multiply,
            operand0=self.launch.factor,
            op1=nl.multiply,
            operand1=pending.thresholds.elements.weight_sbuf,
        )
        if sums is None:
            pending.block.batch.stored(loss_hbm, losses_sbuf)


def forward_of_core(launch: Launch, loss_hbm: nl.NkiTensor) -> None:
    """Compute and store the losses of this core's rows in ``loss_hbm`` [N]; or, with a reduction, the reduced loss of
    all cores in ``loss_hbm`` [1].
    """
    sums = None if launch.is_each else PartialSums.make(launch.number_of_blocks)
    blocks = launch.blocks()
    if blocks:
        _Forward.make(launch, blocks).run(blocks, loss_hbm, sums)
    if sums is not None:
        sums.store(loss_hbm)


@dataclass(frozen=True)
class _PendingGradient:
    """A block whose gradient is being computed; the tiles are float32 [rows, 1].

    Attributes:
        block: the rows.
        thresholds: the elements x_t and the bias margin - x_t of the rows.
        least_sbuf: the threshold x_t - margin of each row.
        factor_sbuf: the factor of each row (:meth:`_Backward._factor`).
        parts: for each row and chunk, the sum of :meth:`_Backward._derivative`.
        own_sbuf: the derivative of the own term, which ``parts`` includes.
        stores: the DMA instructions that store the chunks.
    """

    block: RowBlock
    thresholds: Thresholds
    least_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor
    parts: RowSums
    own_sbuf: nl.NkiTensor
    stores: list[nisa.NkiInstruction]


@dataclass(frozen=True)
class _Backward:
    """The operands and buffers that all blocks of the backward share.

    Attributes:
        launch: the launch of the kernel.
        stream: the stream of the input.
        scratch: tiles for the results of :meth:`_derivative`, bfloat16 for p = 1, float32 for p = 2.
        unused: tiles that Scalar writes when it computes a sum, and that nothing reads.
        upstream: the upstream gradients of the losses.
        uniform_sbuf: the upstream gradient that all losses have in common; None if each loss has its own.
        grad_input_hbm: the gradient, [N, C].
    """

    launch: Launch
    stream: Stream[Batch]
    scratch: TileRing
    unused: TileRing
    upstream: IndexedUpstream
    uniform_sbuf: nl.NkiTensor | None
    grad_input_hbm: nl.NkiTensor

    @classmethod
    def make(
        cls, launch: Launch, blocks: list[RowBlock], upstream: IndexedUpstream, grad_input_hbm: nl.NkiTensor
    ) -> _Backward:
        buffers = ring_of(BUFFERS, launch.tiling.chunk_size, launch.input_hbm.dtype)
        stream = Stream.make(launch.input_hbm, [block.batch for block in blocks], buffers, is_first_halved=True)
        scratch = scratch_of(launch, nl.bfloat16 if launch.options.p == 1 else nl.float32)
        unused = scratch_of(launch, nl.bfloat16)
        return cls(launch, stream, scratch, unused, upstream, upstream.uniform(), grad_input_hbm)

    def run(self, blocks: list[RowBlock]) -> None:
        """Compute and store the gradients of all rows of this core.

        The elements at a block's targets are stored during the next block, so that no engine waits for the sums.
        """
        all_thresholds = thresholds_of_blocks(self.launch, blocks)
        previous: _PendingGradient | None = None
        for visit, block in enumerate(blocks):
            pending = self._begin(block, next(all_thresholds))
            for number in range(self.stream.num_chunks):
                pending.stores.append(self._chunk(pending, visit * self.stream.num_chunks + number))
                if number == 0 and previous is not None:
                    self._scatter(previous)
            previous = pending
        if previous is not None:
            self._scatter(previous)

    def _begin(self, block: RowBlock, thresholds: Thresholds) -> _PendingGradient:
        own_sbuf, derivative_sbuf = float32_like(thresholds.value_sbuf), float32_like(thresholds.value_sbuf)
        parts = RowSums.make(block.batch.rows, self.stream.num_chunks)
        factor_sbuf = self._factor(block, thresholds)
        pending = _PendingGradient(block, thresholds, thresholds.least(), factor_sbuf, parts, own_sbuf, [])
        self._derivative(derivative_sbuf, derivative_sbuf, thresholds.value_sbuf, pending, own_sbuf)
        return pending

    def _chunk(self, pending: _PendingGradient, load: int) -> nisa.NkiInstruction:
        """Overwrite the loaded chunk number ``load`` of this core with its gradient, store the chunk in HBM, and return
        the store; the elements at the targets are wrong until :meth:`_scatter`.
        """
        chunk, tile_sbuf = self.stream.chunk(load), self.stream.loaded(load)
        derivative_sbuf, unused_sbuf = (ring.tile(load, tile_sbuf) for ring in (self.scratch, self.unused))
        self._derivative(
            derivative_sbuf, unused_sbuf, tile_sbuf, pending, pending.parts.part(chunk.number, chunk.batch.rows)
        )
        nisa.tensor_scalar(dst=tile_sbuf, data=derivative_sbuf, op0=nl.multiply, operand0=pending.factor_sbuf)
        return nisa.dma_copy(dst=chunk.of(self.grad_input_hbm), src=tile_sbuf)

    def _derivative(
        self,
        dst_sbuf: nl.NkiTensor,
        unused_sbuf: nl.NkiTensor,
        input_sbuf: nl.NkiTensor,
        pending: _PendingGradient,
        sum_sbuf: nl.NkiTensor,
    ) -> None:
        """Write derivatives of the terms to ``dst_sbuf``, and their sum over each row to ``sum_sbuf``.

        The derivatives do not include :meth:`_factor`. For p = 1 a derivative is 1 where the term is positive, else 0;
        for p = 2 it is relu(x_j - x_t + margin). ``unused_sbuf`` is a scratch tile.
        """
        if self.launch.options.p == 2:
            hinges(dst_sbuf, input_sbuf, pending.thresholds.bias_sbuf, sum_sbuf)
            return
        nisa.tensor_scalar(dst=dst_sbuf, data=input_sbuf, op0=nl.greater, operand0=pending.least_sbuf)
        nisa.activation(
            dst=unused_sbuf,
            op=nl.copy,
            data=dst_sbuf,
            reduce_op=nl.add,
            reduce_res=sum_sbuf,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def _factor(self, block: RowBlock, thresholds: Thresholds) -> nl.NkiTensor:
        """Return, for each row, p * upstream gradient * class weight of the target / C, for a mean also / N: float32
        [rows, 1].
        """
        factor_sbuf = float32_like(thresholds.value_sbuf)
        nisa.scalar_tensor_tensor(
            dst=factor_sbuf,
            data=self.upstream.of_batch(block.positions, self.uniform_sbuf),
            op0=nl.multiply,
            operand0=self.launch.options.p * self.launch.factor,
            op1=nl.multiply,
            operand1=thresholds.elements.weight_sbuf,
        )
        return factor_sbuf

    def _scatter(self, pending: _PendingGradient) -> None:
        """Store the gradient at each row's target, after the row's chunks: minus the sum of the other elements."""
        sum_sbuf = sum_without(pending.parts, pending.own_sbuf)
        gradient_sbuf = float32_like(sum_sbuf)
        nisa.scalar_tensor_tensor(
            dst=gradient_sbuf,
            data=sum_sbuf,
            op0=nl.multiply,
            operand0=-1.0,
            op1=nl.multiply,
            operand1=pending.factor_sbuf,
        )
        rows_hbm = pending.block.positions.block.of(self.grad_input_hbm)
        scatter = nisa.dma_copy(
            dst=vector_elements(rows_hbm, pending.thresholds.elements.index_sbuf),
            src=cast(gradient_sbuf, self.grad_input_hbm.dtype),
        )
        for store in pending.stores:
            scatter.depends_on(store, kind=nisa.dependency.runtime)


def backward_of_core(launch: Launch, upstream: IndexedUpstream, grad_input_hbm: nl.NkiTensor) -> None:
    """Compute and store the gradient of the rows of this core, [N, C]."""
    blocks = launch.blocks()
    if blocks:
        _Backward.make(launch, blocks, upstream, grad_input_hbm).run(blocks)


def _launch(
    function: str,
    input_hbm: nl.NkiTensor,
    targets_hbm: nl.NkiTensor,
    class_weight_hbm: nl.NkiTensor | None,
    options: MultiMarginOptions,
    reduction: str,
    chunk_size: int | None,
) -> Launch:
    classes = input_hbm.shape[-1] if len(input_hbm.shape) else 0
    tiling = choose_multi_margin_tiling(max(1, classes)) if chunk_size is None else MultiMarginTiling(chunk_size)
    launch = Launch(function, input_hbm, targets_hbm, class_weight_hbm, options, reduction, tiling)
    validate(launch)
    return launch


def multi_margin_loss_forward(
    input_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    class_weight_hbm: HbmTensor | None = None,
    p: int = 1,
    margin: float = 1.0,
    reduction: str = "mean",
    chunk_size: int | None = None,
) -> nl.NkiTensor:
    """Compute the margin loss of every row x: the sum of w[t] relu(x_j - x_t + margin)^p over the classes j other than
    the target t, divided by C.

    w are the class weights. Equivalent to
    ``F.multi_margin_loss(input, target, p, margin, weight, reduction=reduction)`` in PyTorch. The input is read
    once. Launch with ``multi_margin_loss_forward[2](...)`` on a logical NeuronCore of two cores.

    Dimensions:
        N: rows (N > 0).
        C: classes (C > 0).

    Args:
        input_hbm: the scores, [N, C], bfloat16, float16 or float32, in HBM.
        targets_hbm: [N], int32, each in [0, C). Any other value causes an out-of-range access of the DMA engine, which
            touches no other row.
        class_weight_hbm: [C], float32; None means 1.
        p: the exponent, 1 or 2.
        margin: the amount by which the score of the target should exceed every other score; finite.
        reduction: ``"none"``, ``"sum"``, or ``"mean"``: the sum divided by N, whatever the weights are.
        chunk_size: the number of classes that are processed at a time, at most 4,096; None for
            :func:`~nkilib.experimental.loss.multi_margin.launch.choose_multi_margin_tiling`.

    Returns:
        loss_hbm: for ``"none"`` [N] in the type of the input; otherwise [1], float32. A NaN in a row makes its loss
            NaN.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    options = MultiMarginOptions(p, margin)
    launch = _launch(
        "multi_margin_loss_forward", input_hbm, targets_hbm, class_weight_hbm, options, reduction, chunk_size
    )
    shape, dtype = (tuple(targets_hbm.shape), input_hbm.dtype) if launch.is_each else ((1,), nl.float32)
    loss_hbm = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")
    forward_of_core(launch, loss_hbm)
    return loss_hbm


def multi_margin_loss_backward(
    input_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    class_weight_hbm: HbmTensor | None = None,
    p: int = 1,
    margin: float = 1.0,
    reduction: str = "mean",
    inplace: bool = False,
    chunk_size: int | None = None,
) -> nl.NkiTensor:
    """Compute the gradient of :func:`multi_margin_loss_forward` with respect to the input.

    For a class j other than the target t, the gradient of a row's loss is w[t] p (x_j - x_t + margin)^(p - 1) / C where
    x_j - x_t + margin is positive, and 0 elsewhere. At the target the gradient is minus the sum of the other elements.
    The input is read once. The gradient is written once, except the element at the target, which is written twice.

    Args:
        input_hbm, targets_hbm, class_weight_hbm, p, margin, reduction, chunk_size: the arguments of the forward.
        grad_loss_hbm: the upstream gradient: [N] for ``"none"``, bfloat16, float16 or float32; else one float32, read
            on the device.
        inplace: write the gradient over ``input_hbm``; else into a new tensor.

    Returns:
        grad_input_hbm: [N, C], in the type of the input; with ``inplace``, ``input_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "multi_margin_loss_backward"
    options = MultiMarginOptions(p, margin)
    launch = _launch(function, input_hbm, targets_hbm, class_weight_hbm, options, reduction, chunk_size)
    require_flag(function, "inplace", inplace)
    require_upstream(function, grad_loss_hbm, tuple(targets_hbm.shape), launch.is_each)
    grad_input_hbm = input_hbm
    if not inplace:
        shape = tuple(input_hbm.shape)
        grad_input_hbm = nl.ndarray(shape, dtype=input_hbm.dtype, buffer=nl.shared_hbm, name="grad_input_hbm")
    grad_hbm = grad_loss_hbm.reshape((launch.shape.rows, 1)) if launch.is_each else grad_loss_hbm
    backward_of_core(launch, IndexedUpstream(grad_hbm, None, launch.is_each), grad_input_hbm)
    return grad_input_hbm
