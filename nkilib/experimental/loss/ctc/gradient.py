# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of a chunk of time, ``(exp(log-probability) - occupancy) * upstream``, in tiles with times on
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from nkilib.experimental.loss.ctc.forward import reduction_factor
from nkilib.experimental.loss.ctc.occupancies import BANK_COLUMNS, Occupancies
from nkilib.experimental.loss.ctc.plan import Group, Times
from nkilib.experimental.loss.ctc.sequences import NOTHING
from nkilib.nki import nisa, nl

# Elements of a partition that are computed and stored together.
PIECE_COLUMNS = 4096
Task = Callable[[], None]


@dataclass(frozen=True)
class Upstream:
    """The upstream gradient, and the options of the loss that change it.

    Attributes:
        grad_loss_hbm: the upstream gradient of each loss, or float32 [1] for the reduced loss.
        reduction: the reduction of the losses.
        is_zero_if_infinite: whether the gradient is 0 for a sequence without an alignment; else it is NaN.
    """

    grad_loss_hbm: nl.NkiTensor
    reduction: str
    is_zero_if_infinite: bool


@dataclass(frozen=True)
class Factors:
    """The factor of each sequence's gradient, and its input length: tiles [chunk, rows], the same in each
    partition.

    Attributes:
        group: the group of the sequences.
        factor_sbuf: float32, the upstream gradient of each loss times the factor of the reduction.
        input_length_sbuf: float32, the input lengths.
    """

    group: Group
    factor_sbuf: nl.NkiTensor
    input_length_sbuf: nl.NkiTensor

    @classmethod
    def make(
        cls,
        group: Group,
        upstream: Upstream,
        nll_hbm: nl.NkiTensor,
        input_lengths_hbm: nl.NkiTensor,
        target_lengths_hbm: nl.NkiTensor,
    ) -> Factors:
        """Compute the factors of the sequences of a group; they are 0 or NaN where there is no alignment."""
        grad_hbm = upstream.grad_loss_hbm
        is_each = upstream.reduction == "none"
        grad_sbuf = _rows(group, group.sequences(grad_hbm, 0) if is_each else grad_hbm)
        target_length_sbuf = _rows(group, group.sequences(target_lengths_hbm, 0))
        factor_sbuf = reduction_factor(group, target_length_sbuf, upstream.reduction)
        nisa.tensor_tensor(dst=factor_sbuf, data1=factor_sbuf, data2=grad_sbuf, op=nl.multiply)
        is_infinite_sbuf = nl.ndarray(factor_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nll_sbuf = _rows(group, group.sequences(nll_hbm, 0))
        nisa.tensor_scalar(dst=is_infinite_sbuf, data=nll_sbuf, op0=nl.greater, operand0=-NOTHING)
        of_infinite = 0.0 if upstream.is_zero_if_infinite else float("nan")
        nisa.tensor_copy_predicated(dst=factor_sbuf, src=of_infinite, predicate=is_infinite_sbuf)
        return cls(group, factor_sbuf, _rows(group, group.sequences(input_lengths_hbm, 0)))

    def at(self, times: Times) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        """Return the factors at the given times, 0 where the input of a sequence has ended, and a uint32 mask of those
        places.
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
    """A part of the gradient of a chunk that is computed at a time: a range of sequences of a group and a range of
    classes.
    """

    rows: slice
    classes: slice

    @property
    def size(self) -> tuple[int, int]:
        """The number of sequences and the number of classes."""
        return self.rows.stop - self.rows.start, self.classes.stop - self.classes.start

    def of(self, group: Group, times: Times, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the part of a tensor [T, N, C] that belongs to this piece."""
        return group.sequences(times.of(tensor_hbm), 1)[:, self.rows, self.classes]


def pieces(group: Group) -> Iterator[Piece]:
    """Yield all pieces of the gradient of a group's chunk."""
    width = min(group.plan.classes, PIECE_COLUMNS)
    height = max(1, PIECE_COLUMNS // width)
    for row in range(0, group.rows, height):
        for start in range(0, group.plan.classes, width):
            rows = slice(row, min(group.rows, row + height))
            yield Piece(rows, slice(start, min(group.plan.classes, start + width)))


@dataclass(frozen=True)
class Gradient:
    """The operands and the result of the gradient of a group of sequences.

    Attributes:
        factors: the factor of each sequence's gradient: its upstream gradient times the factor of the reduction.
        occupancies: the source of the occupancies: the probability of each class at each time, given the
            target.
        log_probs_hbm: the log-probabilities, [T, N, C].
        grad_hbm: the gradient, [T, N, C].
    """

    factors: Factors
    occupancies: Occupancies
    log_probs_hbm: nl.NkiTensor
    grad_hbm: nl.NkiTensor

    def tasks(self, wavefront: int, times: Times) -> Iterator[Task]:
        """Yield, in small tasks, the work for ``times``, whose states are complete in all blocks after this
        wavefront.
        """
        group = self.factors.group
        at = self.factors.at(times)
        for piece in pieces(group):
            gradient_piece = _GradientPiece(self, piece, times, wavefront)
            yield gradient_piece.load
            for row in range(*piece.rows.indices(group.rows)):
                yield partial(gradient_piece.subtract, row)
            yield partial(gradient_piece.store, at)


class _GradientPiece:
    """The computation of the gradient of one :class:`Piece`, and its tiles."""

    def __init__(self, gradient: Gradient, piece: Piece, times: Times, wavefront: int) -> None:
        self._gradient = gradient
        self._piece = piece
        self._times = times
        self._wavefront = wavefront
        self._shape = (gradient.factors.group.plan.chunk, *piece.size)
        self._values_sbuf = nl.ndarray(self._shape, dtype=nl.float32, buffer=nl.sbuf)

    def _like(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return a tile in the type of a tensor: the piece's float32 tile if the tensor is float32, else a new one."""
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
        """Subtract the occupancies of sequence number ``row`` of the group from its probabilities."""
        classes = self._piece.classes
        for start in range(classes.start, classes.stop, BANK_COLUMNS):
            end = min(classes.stop, start + BANK_COLUMNS)
            occupancy_psum = self._gradient.occupancies.of(self._wavefront, row, start, end)
            columns = slice(start - classes.start, end - classes.start)
            values_sbuf = self._values_sbuf[:, row - self._piece.rows.start, columns]
            nisa.tensor_tensor(dst=values_sbuf, data1=values_sbuf, data2=occupancy_psum, op=nl.subtract)

    def store(self, at: tuple[nl.NkiTensor, nl.NkiTensor]) -> None:
        """Multiply the differences by the factors of :meth:`Factors.at` and store the result.

        Behind the end of a sequence the result is 0, whatever the tile holds there.
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


def _rows(group: Group, vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load a vector with one number per sequence, or a single number for all of them, as float32 [chunk, rows]."""
    size = vector_hbm.shape[0]
    loaded_sbuf = nl.ndarray((group.plan.chunk, size), dtype=vector_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded_sbuf, src=vector_hbm.reshape((1, size)).broadcast(0, group.plan.chunk))
    rows_sbuf = nl.ndarray((group.plan.chunk, group.rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rows_sbuf, src=loaded_sbuf if size == group.rows else loaded_sbuf.broadcast(1, group.rows))
    return rows_sbuf
