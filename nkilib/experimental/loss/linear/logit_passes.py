# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The logits at the targets, and the work for entropy and argmax, that a forward does for each of its tiles of logits.

A *group* is the tiles of logits that are processed together, and a *pass* is the instructions of Vector for one tile.
*Scores* are the logits, or under a cap tanh(logit / cap).

Target logits are picked from the tiles without rounding (:class:`TargetLogits`). From each tile, GpSimd gathers one
logit per position: the logit of the class that is nearest to the target of the position. If this class is not the
target, the lowest float32 replaces the logit. The largest of these values over all blocks of classes is the target
logit. If the target is a masked class with the logit -inf, the result is the lowest float32, which
:func:`restore_masked` replaces by -inf. One gather serves up to four tiles.

The passes for the entropy (:class:`EntropyPass`) and the argmax (:class:`SearchPass`) read results of other engines.
They are queued (:class:`WaitingPasses`), and issued between the passes that compute the maxima of the next group. So
Vector does not wait for Scalar and GpSimd, and products and exponentials do not wait for Vector.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nkilib.core.arithmetic import multiply_on_gpsimd
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.argmax import Search
from nkilib.core.rows.moments import EntropyMoment, raise_negligible
from nkilib.core.rows.statistics import Place, Statistics
from nkilib.core.rows.tiles import FLOAT32_LOWEST, constant, float32_like
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator


_GPSIMD = nisa.engine.gpsimd


def _constants(size: int) -> nl.NkiTensor:
    # A tile [128, 4], because operands of GpSimd are tiles, not numbers.
    constants_sbuf = nl.ndarray((PARTITIONS, 4), dtype=nl.float32, buffer=nl.sbuf)
    for part, value in enumerate((float(size), float(size - 1), 0.0, FLOAT32_LOWEST)):
        nisa.memset(dst=constants_sbuf[:, part : part + 1], value=value)
    return constants_sbuf


def over_ids(values_sbuf: nl.NkiTensor, ids: int) -> nl.NkiTensor:
    """Return a tile [rows, tiles] as a view [rows, tiles, ids] with the same value for all target ids of a position."""
    return values_sbuf.expand_dim(2).broadcast(2, ids)


def broadcast_like(column_sbuf: nl.NkiTensor, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return a tile [rows, 1] as a view in the shape [rows, tiles] or [rows, tiles, ids] of another tile."""
    view_sbuf = column_sbuf.broadcast(1, like_sbuf.shape[1])
    if len(like_sbuf.shape) == 2:
        return view_sbuf
    return over_ids(view_sbuf, like_sbuf.shape[2])


def multiply_by_column(dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
    """Write each row of ``data_sbuf``, times its factor, to ``dst_sbuf``, on GpSimd.

    Args:
        dst_sbuf, data_sbuf: float32 [rows, columns]; they may be the same tile.
        factor_sbuf: float32 [rows, 1].
    """
    multiply_on_gpsimd(dst_sbuf, data_sbuf, factor_sbuf.broadcast(1, data_sbuf.shape[1]))


@dataclass(frozen=True)
class TargetLogits:
    """The target logits of a block of positions, picked from one block of classes after another.

    Call :meth:`aim`, :meth:`gather` and :meth:`keep` for each block of classes. The tensors have one element per
    target: [128, tiles], or [128, tiles, ids] if each position has several targets.

    Attributes:
        distance_sbuf: the target minus the first class of the block that :meth:`aim` is called for next, float32.
        picked_sbuf: the target logit if its block was processed, else about the lowest float32; float32.
        starts_sbuf: the index of the first logit of the target's tile, among the elements that one gather reads,
            float32.
        index_sbuf: the index of the element to gather, among the elements that one gather reads, uint32.
        penalty_sbuf, gathered_sbuf, nearest_sbuf: scratch memory, float32.
        sizes_sbuf: constants [128, 4] for each size of a block of classes: size, size - 1, 0 and the lowest float32.
    """

    distance_sbuf: nl.NkiTensor
    picked_sbuf: nl.NkiTensor
    starts_sbuf: nl.NkiTensor
    index_sbuf: nl.NkiTensor
    penalty_sbuf: nl.NkiTensor
    gathered_sbuf: nl.NkiTensor
    nearest_sbuf: nl.NkiTensor
    sizes_sbuf: dict[int, nl.NkiTensor]

    @classmethod
    def make(
        cls,
        targets_sbuf: nl.NkiTensor,
        first_class: int,
        picked_sbuf: nl.NkiTensor,
        stride: int,
        side_by_side: int,
        sizes: set[int],
    ) -> TargetLogits:
        """Allocate the tensors, and set ``picked_sbuf`` to the lowest float32.

        Args:
            targets_sbuf: the targets, float32 [128, tiles], or [128, tiles, ids].
            first_class: the first class of the core.
            picked_sbuf: the tensor that gets the target logits, float32, in the shape of ``targets_sbuf``.
            stride: the number of elements from the start of one tile of logits to the start of the next.
            side_by_side: the largest number of tiles that one gather reads.
            sizes: the sizes of the blocks of classes.
        """
        nisa.memset(dst=picked_sbuf, value=FLOAT32_LOWEST)
        distance_sbuf, starts_sbuf = float32_like(targets_sbuf), float32_like(targets_sbuf)
        nisa.tensor_scalar(dst=distance_sbuf, data=targets_sbuf, op0=nl.subtract, operand0=float(first_class))
        for place in range(min(side_by_side, targets_sbuf.shape[1])):
            nisa.memset(dst=starts_sbuf[:, place::side_by_side], value=float(place * stride))
        return cls(
            distance_sbuf,
            picked_sbuf,
            starts_sbuf,
            index_sbuf=nl.ndarray(targets_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf),
            penalty_sbuf=float32_like(targets_sbuf),
            gathered_sbuf=float32_like(targets_sbuf),
            nearest_sbuf=float32_like(targets_sbuf),
            sizes_sbuf={size: _constants(size) for size in sorted(sizes)},
        )

    def aim(self, classes: int) -> None:
        """Compute ``index_sbuf`` for the next block of classes, which has ``classes`` classes."""
        sizes_sbuf = self.sizes_sbuf[classes]
        parts_sbuf = [broadcast_like(sizes_sbuf[:, part : part + 1], self.distance_sbuf) for part in range(4)]
        size_sbuf, last_sbuf, zero_sbuf, lowest_sbuf = parts_sbuf
        self._combine(self.nearest_sbuf, self.distance_sbuf, last_sbuf, nl.minimum)
        self._combine(self.nearest_sbuf, self.nearest_sbuf, zero_sbuf, nl.maximum)
        self._combine(self.penalty_sbuf, self.nearest_sbuf, self.distance_sbuf, nl.not_equal)
        self._combine(self.penalty_sbuf, self.penalty_sbuf, lowest_sbuf, nl.multiply)
        self._combine(self.index_sbuf, self.nearest_sbuf, self.starts_sbuf, nl.add)
        self._combine(self.distance_sbuf, self.distance_sbuf, size_sbuf, nl.subtract)

    def gather(self, logits_sbuf: nl.NkiTensor, start: int) -> None:
        """Gather, for each target in adjacent tiles of positions, the element at ``index_sbuf``.

        Args:
            logits_sbuf: the logits of these tiles, float32 [128, tiles, stride].
            start: the number of the first of these tiles in the block of positions.
        """
        end = start + logits_sbuf.shape[1]
        nisa.nc_n_gather(dst=self.gathered_sbuf[:, start:end], data=logits_sbuf, indices=self.index_sbuf[:, start:end])

    def keep(self) -> None:
        """Update ``picked_sbuf`` with the logits of the targets that are in this block of classes."""
        self._combine(self.gathered_sbuf, self.gathered_sbuf, self.penalty_sbuf, nl.add)
        self._combine(self.picked_sbuf, self.picked_sbuf, self.gathered_sbuf, nl.maximum)

    def _combine(
        self, dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, data2_sbuf: nl.NkiTensor, op: Operator
    ) -> None:
        nisa.tensor_tensor(dst=dst_sbuf, data1=data1_sbuf, data2=data2_sbuf, op=op, engine=_GPSIMD)


def restore_masked(picked_sbuf: nl.NkiTensor) -> None:
    """Replace the lowest float32, the logit of a masked class, by -inf."""
    is_masked_sbuf = nl.ndarray(picked_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=is_masked_sbuf, data=picked_sbuf, op0=nl.less_equal, operand0=FLOAT32_LOWEST)
    nisa.tensor_copy_predicated(dst=picked_sbuf, src=constant(picked_sbuf, float("-inf")), predicate=is_masked_sbuf)


class VectorPass(Protocol):
    """The instructions of Vector for one tile, which may be issued later than the other instructions of the tile."""

    def take(self) -> None:
        """Issue the instructions."""


@dataclass(frozen=True)
class EntropyPass:
    """The pass that adds one tile to the sums for the entropy, once Scalar has computed the exponentials of the tile.

    Attributes:
        moment: the running sums from which the entropies are computed.
        statistics: the maxima, and the sums of the exponentials.
        scores_sbuf: the scores of the tile, float32 [128, classes].
        exponentials_sbuf: the exponentials of the tile, float32 [128, classes].
        terms_sbuf: scratch memory, of any float dtype.
        place: the column of the tile in the statistics.
        is_masked: whether the scores may hold -inf; these are first raised in place (:func:`raise_negligible`).
    """

    moment: EntropyMoment
    statistics: Statistics
    scores_sbuf: nl.NkiTensor
    exponentials_sbuf: nl.NkiTensor
    terms_sbuf: nl.NkiTensor
    place: Place
    is_masked: bool

    def take(self) -> None:
        if self.is_masked:
            raise_negligible(self.scores_sbuf, self.place.of(self.statistics.neg_max_sbuf), self.statistics.scale.least)
        self.moment.take_terms(self.statistics, self.scores_sbuf, self.exponentials_sbuf, self.terms_sbuf, self.place)


@dataclass(frozen=True)
class SearchPass:
    """The pass of Vector that searches for the largest z (logit after cap and temperature) of one tile, for the argmax.

    Attributes:
        search: the search over the tiles of the group.
        number: the number of the tile in the group.
    """

    search: Search
    number: int

    def take(self) -> None:
        self.search.take(self.number)


@dataclass(frozen=True)
class WaitingPasses:
    """The passes that are still to be issued, in their order.

    The tiles of a group are overwritten two groups later, so no pass may wait longer than that. No pass may wait across
    the begin or end of a device loop, whose body is traced once.
    """

    waiting: deque[VectorPass] = field(default_factory=deque)

    def add(self, vector_pass: VectorPass) -> None:
        """Add a pass to the waiting ones."""
        self.waiting.append(vector_pass)

    def share_of(self, parts: int) -> int:
        """Return how many passes to issue in each of ``parts`` steps, so that none is left after the last step."""
        return div_ceil(len(self.waiting), parts)

    def take(self, count: int) -> None:
        """Issue up to ``count`` passes; the passes that have waited longest come first."""
        for _ in range(min(count, len(self.waiting))):
            self.waiting.popleft().take()

    def take_all(self) -> None:
        """Issue all waiting passes."""
        self.take(len(self.waiting))
