# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the CTC loss on one core, computed from the betas (:mod:`.recursion`) and the stored alphas.

:func:`backward_of_core` is the loop over the groups of sequences. :class:`Classes` has the classes of a group's states
as one-hot vectors, :class:`Occupancies` the probabilities of the states, and :class:`Factors` the factor of each
sequence's gradient. :class:`Gradient` computes one :class:`Piece` after another. T is the number of time steps, N of
sequences, C of classes, and P of partitions of a group; *rows* is the number of sequences of a group, and *chunk* the
number of time steps of a chunk. A *run* is a range of at most 128 states of a block (:func:`runs`).

The gradient is ``(exp(log-probability) - occupancy) * factor``. Its tiles have time steps on partitions. The occupancy
of a class at a time step is the sum of the probabilities of the states that have this class. Tensor computes it as the
product of the transposed state probabilities, [time steps, states], and one-hot vectors, [states, classes]. The blocks
of states complete a chunk of time in different wavefronts (:mod:`.layout` explains blocks, chunks and wavefronts), so
the transposed state probabilities of several wavefronts are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.experimental.loss.ctc.forward import factor_of_losses
from nkilib.experimental.loss.ctc.layout import NOTHING, BatchLayout, Group, Inputs, Sequences, Times
from nkilib.experimental.loss.ctc.recursion import ALTERNATING_TILES, Posteriors, Wavefront, run_wavefronts
from nkilib.nki import nisa, nl

# Float32 numbers of a bank of PSUM in a partition.
BANK_COLUMNS = 512
# One-hot classes that take at most this many bytes of a partition are computed once.
_KEPT_BYTES = 64 * 1024
# Elements of a partition that are computed and stored together.
PIECE_COLUMNS = 4096
# Transposed steps of a bank of PSUM.
_STEPS_OF_BANK = BANK_COLUMNS // PARTITIONS

Task = Callable[[], None]


def _sbuf(*shape: int) -> nl.NkiTensor:
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def _transposed(tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    rows, columns = tile_sbuf.shape
    transposed_psum = nl.ndarray((columns, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed_psum, data=tile_sbuf, engine=nisa.engine.tensor)
    transposed_sbuf = _sbuf(columns, rows)
    nisa.tensor_copy(dst=transposed_sbuf, src=transposed_psum)
    return transposed_sbuf


def runs(pairs: int) -> list[slice]:
    """Return the runs of a block of ``pairs`` pairs: ranges of states of nearly equal size, each of at most 128
    states.
    """
    states = 2 * pairs
    size = div_ceil(states, div_ceil(states, PARTITIONS))
    return [slice(start, min(states, start + size)) for start in range(0, states, size)]


def kept_bytes(group: Group) -> int:
    """Return the bytes per partition of the one-hot vectors that a group keeps on chip; 0 if it recomputes them."""
    layout = group.layout
    nbytes = len(runs(layout.pairs)) * group.partitions * layout.classes * FLOAT32_BYTES
    return nbytes if nbytes <= _KEPT_BYTES and layout.classes <= BANK_COLUMNS else 0


@dataclass(frozen=True)
class Classes:
    """The classes of the states of a group, as numbers and as one-hot vectors.

    Attributes:
        group: the group of the sequences.
        classes: one tile per run, float32 [states of the run, P]; column p has the classes of partition p.
        number_sbuf: the numbers 0, 1, ... in every partition, float32 [128, min(512, C)].
        kept: one-hot vectors, float32 [states of the run, C], by (run, partition); empty if they are recomputed.
    """

    group: Group
    classes: tuple[nl.NkiTensor, ...]
    number_sbuf: nl.NkiTensor
    kept: dict[tuple[int, int], nl.NkiTensor]

    @classmethod
    def make(cls, sequences: Sequences, blank: int) -> Classes:
        """Compute the classes of the states, and the one-hot vectors if they are kept."""
        group, layout = sequences.group, sequences.group.layout
        state_sbuf = group.tile(2 * layout.pairs)
        nisa.memset(dst=state_sbuf, value=float(blank))
        nisa.tensor_copy(dst=state_sbuf[:, 0 : 2 * layout.pairs : 2], src=sequences.class_sbuf[:, 0 : layout.pairs])
        classes = tuple(_transposed(state_sbuf[:, run]) for run in runs(layout.pairs))
        number_sbuf = nl.ndarray((PARTITIONS, min(BANK_COLUMNS, layout.classes)), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=number_sbuf, pattern=[[1, number_sbuf.shape[1]]])
        result = cls(group, classes, number_sbuf, {})
        if kept_bytes(group) > 0:
            for run in range(len(classes)):
                for partition in range(group.partitions):
                    result.kept[run, partition] = result._one_hot(run, partition, 0, layout.classes)
        return result

    def one_hot(self, run: int, partition: int, start: int, end: int) -> nl.NkiTensor:
        """Return the one-hot vectors of the classes of a run's states, in a range of classes.

        Args:
            run: the index of the run.
            partition: the partition of the group, which has one block of one sequence.
            start, end: the range of classes, ``end`` exclusive.

        Returns:
            A tile, float32 [states of the run, end - start].
        """
        if self.kept:
            return self.kept[run, partition][:, start:end]
        return self._one_hot(run, partition, start, end)

    def _one_hot(self, run: int, partition: int, start: int, end: int) -> nl.NkiTensor:
        class_sbuf = self.classes[run]
        one_hot_sbuf = nl.ndarray((class_sbuf.shape[0], end - start), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=one_hot_sbuf,
            data=self.number_sbuf[0 : class_sbuf.shape[0], 0 : end - start],
            op0=nl.add,
            operand0=float(start),
            op1=nl.equal,
            operand1=class_sbuf[:, partition : partition + 1],
        )
        return one_hot_sbuf


def kept_wavefronts(blocks: int) -> int:
    """Return for how many wavefronts transposed state probabilities are kept: a power of two, at least ``blocks``."""
    return 1 << (blocks - 1).bit_length()


@dataclass(frozen=True)
class Occupancies:
    """The transposed state probabilities of several wavefronts, from which the occupancies of a group are computed.

    Attributes:
        classes: the classes of the states.
        transposed: a ring buffer with an entry for each wavefront: one tile per run, float32 [states of the run, chunk,
            P].
    """

    classes: Classes
    transposed: tuple[tuple[nl.NkiTensor, ...], ...]

    @classmethod
    def make(cls, classes: Classes) -> Occupancies:
        """Allocate the tiles for :func:`kept_wavefronts` wavefronts."""
        group, layout = classes.group, classes.group.layout

        def tiles() -> tuple[nl.NkiTensor, ...]:
            heights = [run.stop - run.start for run in runs(layout.pairs)]
            return tuple(_sbuf(height, layout.chunk, group.partitions) for height in heights)

        return cls(classes, tuple(tiles() for _ in range(kept_wavefronts(layout.blocks))))

    def transpose(self, wavefront: int, step: int, steps: int, states_sbuf: nl.NkiTensor) -> None:
        """Transpose the state probabilities of some time steps of a wavefront into the wavefront's tiles.

        Args:
            wavefront: the number of the wavefront.
            step: the first time step to transpose, counted from the start of the chunk.
            steps: the number of time steps to transpose; they share a bank of PSUM.
            states_sbuf: the state probabilities, [P, chunk, states of a block].
        """
        partitions = self.classes.group.partitions
        for run, tile_sbuf in zip(runs(self.classes.group.layout.pairs), self._of(wavefront), strict=True):
            transposed_psum = nl.ndarray((tile_sbuf.shape[0], steps, partitions), dtype=nl.float32, buffer=nl.psum)
            for offset in range(steps):
                nisa.nc_transpose(
                    dst=transposed_psum[:, offset], data=states_sbuf[:, step + offset, run], engine=nisa.engine.tensor
                )
            nisa.tensor_copy(dst=tile_sbuf[:, step : step + steps], src=transposed_psum, engine=nisa.engine.scalar)

    def of(self, wavefront: int, row: int, start: int, end: int) -> nl.NkiTensor:
        """Compute the occupancies of one sequence in a chunk of time that all blocks have processed, block 0 last.

        Args:
            wavefront: the number of the wavefront in which block 0 processed the chunk.
            row: the index of the sequence in the group.
            start, end: the range of classes, ``end`` exclusive.

        Returns:
            The occupancies, in PSUM, [chunk, end - start].
        """
        layout = self.classes.group.layout
        sum_psum = nl.ndarray((layout.chunk, end - start), dtype=nl.float32, buffer=nl.psum)
        for block in range(layout.blocks):
            partition = block * layout.stride + row
            # The first block is the last one that a chunk comes through.
            for run, tile_sbuf in enumerate(self._of(wavefront - block)):
                nisa.nc_matmul(
                    dst=sum_psum,
                    stationary=tile_sbuf[:, :, partition],
                    moving=self.classes.one_hot(run, partition, start, end),
                )
        return sum_psum

    def _of(self, wavefront: int) -> tuple[nl.NkiTensor, ...]:
        return self.transposed[wavefront % len(self.transposed)]


@dataclass(frozen=True)
class CtcUpstream:
    """The upstream gradient, and the options of the loss.

    Attributes:
        grad_loss_hbm: the upstream gradient: [N] for ``"none"``, else float32 [1].
        reduction: ``"none"``, ``"sum"`` or ``"mean"``.
        is_zero_if_infinite: whether the gradient is 0 for a sequence without an alignment; else NaN.
    """

    grad_loss_hbm: nl.NkiTensor
    reduction: str
    is_zero_if_infinite: bool


def _rows(group: Group, vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load one value per sequence [rows], or one for all [1], into every partition: float32 [chunk, rows]."""
    size = vector_hbm.shape[0]
    loaded_sbuf = nl.ndarray((group.layout.chunk, size), dtype=vector_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded_sbuf, src=vector_hbm.reshape((1, size)).broadcast(0, group.layout.chunk))
    rows_sbuf = nl.ndarray((group.layout.chunk, group.rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rows_sbuf, src=loaded_sbuf if size == group.rows else loaded_sbuf.broadcast(1, group.rows))
    return rows_sbuf


@dataclass(frozen=True)
class Factors:
    """The factor of each sequence's gradient, and the input lengths.

    The tiles are float32 [chunk, rows]; every partition has the same values.

    Attributes:
        group: the group of the sequences.
        factor_sbuf: the upstream gradient of each sequence times the factor of its loss in the reduction.
        input_length_sbuf: the number of time steps of each sequence.
    """

    group: Group
    factor_sbuf: nl.NkiTensor
    input_length_sbuf: nl.NkiTensor

    @classmethod
    def make(
        cls,
        group: Group,
        upstream: CtcUpstream,
        nll_hbm: nl.NkiTensor,
        input_lengths_hbm: nl.NkiTensor,
        target_lengths_hbm: nl.NkiTensor,
    ) -> Factors:
        """Compute the factors of a group's sequences.

        The factor of a sequence without an alignment is 0 if ``upstream.is_zero_if_infinite``, else NaN.
        """
        grad_hbm = upstream.grad_loss_hbm
        is_each = upstream.reduction == "none"
        grad_sbuf = _rows(group, group.sequences(grad_hbm, 0) if is_each else grad_hbm)
        target_length_sbuf = _rows(group, group.sequences(target_lengths_hbm, 0))
        factor_sbuf = factor_of_losses(group, target_length_sbuf, upstream.reduction)
        nisa.tensor_tensor(dst=factor_sbuf, data1=factor_sbuf, data2=grad_sbuf, op=nl.multiply)
        is_infinite_sbuf = nl.ndarray(factor_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nll_sbuf = _rows(group, group.sequences(nll_hbm, 0))
        nisa.tensor_scalar(dst=is_infinite_sbuf, data=nll_sbuf, op0=nl.greater, operand0=-NOTHING)
        of_infinite = 0.0 if upstream.is_zero_if_infinite else float("nan")
        nisa.tensor_copy_predicated(dst=factor_sbuf, src=of_infinite, predicate=is_infinite_sbuf)
        return cls(group, factor_sbuf, _rows(group, group.sequences(input_lengths_hbm, 0)))

    def at(self, times: Times) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        """Return the factors at the given time steps, and a uint32 mask, both [chunk, rows].

        After the end of a sequence's input the factor is 0 and the mask 1; before, the mask is 0.
        """
        shape = self.factor_sbuf.shape
        time_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=time_sbuf, pattern=[[0, shape[1]]], offset=times.first, channel_multiplier=1)
        is_behind_sbuf = nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=is_behind_sbuf, data1=time_sbuf, data2=self.input_length_sbuf, op=nl.greater_equal)
        factor_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=factor_sbuf, src=self.factor_sbuf)
        nisa.tensor_copy_predicated(dst=factor_sbuf, src=0.0, predicate=is_behind_sbuf)
        return factor_sbuf, is_behind_sbuf


@dataclass(frozen=True)
class Piece:
    """A range of sequences (rows of a group) and a range of classes, whose gradient is computed together."""

    rows: slice
    classes: slice

    @property
    def size(self) -> tuple[int, int]:
        """The number of sequences and the number of classes."""
        return self.rows.stop - self.rows.start, self.classes.stop - self.classes.start

    def of(self, group: Group, times: Times, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of a tensor [T, N, C] at ``times``, for the sequences and classes of this piece."""
        return group.sequences(times.of(tensor_hbm), 1)[:, self.rows, self.classes]


def pieces(group: Group) -> Iterator[Piece]:
    """Yield pieces that cover all sequences and classes of a group."""
    width = min(group.layout.classes, PIECE_COLUMNS)
    height = max(1, PIECE_COLUMNS // width)
    for row in range(0, group.rows, height):
        for start in range(0, group.layout.classes, width):
            rows = slice(row, min(group.rows, row + height))
            yield Piece(rows, slice(start, min(group.layout.classes, start + width)))


class _GradientPiece:
    """The computation of the gradient of one :class:`Piece` in one chunk of time."""

    def __init__(self, gradient: Gradient, piece: Piece, times: Times, wavefront: int) -> None:
        self._gradient = gradient
        self._piece = piece
        self._times = times
        self._wavefront = wavefront
        self._shape = (gradient.factors.group.layout.chunk, *piece.size)
        self._values_sbuf = nl.ndarray(self._shape, dtype=nl.float32, buffer=nl.sbuf)

    def _like(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        if tensor_hbm.dtype == nl.float32:
            return self._values_sbuf
        return nl.ndarray(self._shape, dtype=tensor_hbm.dtype, buffer=nl.sbuf)

    def load(self) -> None:
        """Load the log-probabilities of the piece and compute their exponentials."""
        loaded_sbuf = self._like(self._gradient.log_probs_hbm)
        if self._times.end - self._times.start < self._shape[0]:
            nisa.memset(dst=loaded_sbuf, value=0.0)
        source = self._piece.of(self._gradient.factors.group, self._times, self._gradient.log_probs_hbm)
        nisa.dma_copy(dst=loaded_sbuf[self._times.rows], src=source)
        nisa.activation(dst=self._values_sbuf, op=nl.exp, data=loaded_sbuf)

    def subtract(self, row: int) -> None:
        """Subtract the occupancies of sequence ``row`` of the group from the exponentials of that sequence."""
        classes = self._piece.classes
        for start in range(classes.start, classes.stop, BANK_COLUMNS):
            end = min(classes.stop, start + BANK_COLUMNS)
            occupancy_psum = self._gradient.occupancies.of(self._wavefront, row, start, end)
            columns = slice(start - classes.start, end - classes.start)
            values_sbuf = self._values_sbuf[:, row - self._piece.rows.start, columns]
            nisa.tensor_tensor(dst=values_sbuf, data1=values_sbuf, data2=occupancy_psum, op=nl.subtract)

    def store(self, at: tuple[nl.NkiTensor, nl.NkiTensor]) -> None:
        """Multiply the differences by the factors, and store the gradient in HBM; it is 0 after the end of an input.

        ``at`` is the result of :meth:`Factors.at`.
        """
        factor_sbuf, is_behind_sbuf = (tile_sbuf[:, self._piece.rows].expand_dim(2) for tile_sbuf in at)
        width = self._shape[2]
        nisa.tensor_copy_predicated(dst=self._values_sbuf, src=0.0, predicate=is_behind_sbuf.broadcast(2, width))
        stored_sbuf = self._like(self._gradient.grad_hbm)
        nisa.tensor_tensor(
            dst=stored_sbuf,
            data1=self._values_sbuf,
            data2=factor_sbuf.broadcast(2, width),
            op=nl.multiply,
            engine=nisa.engine.gpsimd,
        )
        target = self._piece.of(self._gradient.factors.group, self._times, self._gradient.grad_hbm)
        nisa.dma_copy(dst=target, src=stored_sbuf[self._times.rows])


@dataclass(frozen=True)
class Gradient:
    """The operands and the result of the gradient of a group of sequences.

    Attributes:
        factors: the factor of each sequence's gradient.
        occupancies: the occupancies of the classes.
        log_probs_hbm: the log-probabilities, [T, N, C].
        grad_hbm: the gradient, [T, N, C].
    """

    factors: Factors
    occupancies: Occupancies
    log_probs_hbm: nl.NkiTensor
    grad_hbm: nl.NkiTensor

    def tasks(self, wavefront: int, times: Times) -> Iterator[Task]:
        """Yield functions that together compute and store the gradient at ``times``.

        All blocks must have completed these time steps after wavefront number ``wavefront``.
        """
        group = self.factors.group
        at = self.factors.at(times)
        for piece in pieces(group):
            gradient_piece = _GradientPiece(self, piece, times, wavefront)
            yield gradient_piece.load
            for row in range(*piece.rows.indices(group.rows)):
                yield partial(gradient_piece.subtract, row)
            yield partial(gradient_piece.store, at)


def _tasks(wavefront: Wavefront, posteriors: Posteriors, gradient: Gradient) -> Iterator[Task]:
    """Yield functions that transpose the state probabilities of the previous wavefront and compute the gradient.

    The gradient is computed in the chunk of time that block 0 processed in the previous wavefront.
    """
    before = wavefront.number - 1
    if before < 0:
        return
    chunk = posteriors.group.layout.chunk
    for step in range(0, chunk, _STEPS_OF_BANK):
        steps = min(_STEPS_OF_BANK, chunk - step)
        yield partial(gradient.occupancies.transpose, before, step, steps, posteriors.states_sbuf)
    through = wavefront.before[0]
    if not through.is_empty:
        yield from gradient.tasks(before, through)


def _backward_of_group(
    group: Group,
    batch: Inputs,
    forward: tuple[nl.NkiTensor, nl.NkiTensor],
    upstream: CtcUpstream,
    grad_hbm: nl.NkiTensor,
) -> None:
    nll_hbm, alpha_hbm = forward
    sequences = batch.sequences(group)
    posteriors = Posteriors.make(sequences, batch.log_probs_hbm, batch.blank, nll_hbm)
    factors = Factors.make(group, upstream, nll_hbm, batch.input_lengths_hbm, batch.target_lengths_hbm)
    occupancies = Occupancies.make(Classes.make(sequences, batch.blank))
    gradient = Gradient(factors, occupancies, batch.log_probs_hbm, grad_hbm)

    def run(wavefront: Wavefront) -> None:
        if wavefront.number == 0:
            posteriors.source.load(wavefront.number, wavefront.now)
            posteriors.source.make_ready(wavefront.number, wavefront.now)
        else:
            posteriors.compute(wavefront.number - 1)
        tasks = list(_tasks(wavefront, posteriors, gradient))
        if not wavefront.computes:
            for task in tasks:
                task()
            return
        posteriors.source.load(wavefront.number + 1, wavefront.following)
        posteriors.load(wavefront.now, alpha_hbm)
        at_a_time = div_ceil(len(tasks), group.layout.chunk)

        def between(number: int) -> None:
            for task in tasks[number * at_a_time : (number + 1) * at_a_time]:
                task()

        posteriors.recursion.run(wavefront, posteriors.source, between)

    run_wavefronts(group.layout, False, max(ALTERNATING_TILES, kept_wavefronts(group.layout.blocks)), run)


def backward_of_core(
    layout: BatchLayout,
    batch: Inputs,
    forward: tuple[nl.NkiTensor, nl.NkiTensor],
    upstream: CtcUpstream,
    grad_hbm: nl.NkiTensor,
) -> None:
    """Compute the gradient with respect to the log-probabilities, [T, N, C], for the sequences of this core.

    Args:
        layout: the sizes of the launch.
        batch: the inputs of the loss.
        forward: the losses before reduction and the alphas, as the forward returned them.
        upstream: the upstream gradient and the options of the loss.
        grad_hbm: the result, [T, N, C].
    """
    for group in layout.own_groups():
        _backward_of_group(group, batch, forward, upstream, grad_hbm)
