# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax and log-softmax along an axis that is not the last one, on columns of tensors [O, C, I].

:mod:`.plan` divides columns: a *segment* is a range of up to 1,024 elements of every column, a *strip* up to 128
columns, one per partition, a *window* the strips that are loaded together, and an *item* one segment of one strip. The
first pass over a window computes its statistics, the second pass the results. Items are transposed, so that each column
lies along a partition, and results are transposed back. Columns that do not fit on chip are read twice. Columns of a
short axis are not transposed: :mod:`.short` processes them.

For segment k of a column x let m_k be the maximum of the segment, clamped to finite numbers, and s_k the sum of exp(x -
m_k) over the segment. With m the maximum of the m_k and d = sum of s_k exp(m_k - m),

    log-softmax = (x - m) - log d        softmax = exp(x - m_k) * (exp(m_k - m) / d),

all in float32, rounded once to the type of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nkilib.core.hardware import FLOAT32_BYTES
from nkilib.core.rows.tiles import FLOAT32_HIGHEST
from nkilib.experimental.softmax.columns.layouts import results_of, source_of
from nkilib.experimental.softmax.columns.pipeline import ColumnLoop, Group, Phase, Pipeline, Reader, Schedule
from nkilib.experimental.softmax.columns.plan import (
    KEPT_BYTES,
    ColumnTensors,
    Item,
    Layout,
    Sizes,
    Window,
    is_short,
    plan_columns,
)
from nkilib.experimental.softmax.columns.short import forward_of_short_columns
from nkilib.experimental.softmax.tensors import Kind
from nkilib.nki import nisa, nl

# The maximum number of steps between the passes over a group.
_MOST_STAGES = 4
# Tiles of recomputed exponentials: one is written while another is read, and one may wait.
_RECOMPUTED_TILES = 3
# Scalar's share of the copies out of PSUM for log-softmax, for which it has time beside its exponentials.
_SCALAR_SHARES = {Layout.TENSOR_TRANSPOSED: 0.65, Layout.DMA_TRANSPOSED: 0.5, Layout.STRIDED: 0.0}
# The time of three passes of Scalar relative to the transfers of float32 (True) and of 16-bit elements (False).
_THREE_PASSES = {True: 1.16, False: 1.95}
# PSUM banks: items that are transposed in one step and read in the next one need two, in the next two steps three.
_BANKS = {Phase.BEGIN: 3, Phase.PREPARE: 2, Phase.RESULT: 2}


@dataclass(frozen=True)
class WindowStatistics:
    """The statistics of the columns of a window, float32; the head of the module defines m_k, s_k, m and d.

    Attributes:
        neg_max_sbuf: -m_k, [128, strips, segments], with the columns of a strip on partitions.
        sums_sbuf: s_k, of the same shape; then s_k exp(m_k - m).
        row_neg_max_sbuf: -m, [128, strips]; if there is one segment, a view of ``neg_max_sbuf``.
        row_sum_sbuf: d, then log d or 1 / d, [128, strips]; if there is one segment, a view of ``sums_sbuf``.
        factors_sbuf: m_k - m, then exp(m_k - m), then for softmax exp(m_k - m) / d, [128, strips, segments].
    """

    neg_max_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    row_neg_max_sbuf: nl.NkiTensor
    row_sum_sbuf: nl.NkiTensor
    factors_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, strips: int, segments: int) -> WindowStatistics:
        """Allocate the tiles for a window of ``strips`` strips and columns of ``segments`` segments.

        The tiles start with the maximum 0 and the sum 1, for partitions that no column uses.
        """
        partitions = nl.tile_size.pmax
        shape = (partitions, strips, segments)
        neg_max_sbuf, sums_sbuf, factors_sbuf = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(3)]
        nisa.memset(dst=neg_max_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        nisa.memset(dst=sums_sbuf, value=1.0, engine=nisa.engine.gpsimd)
        if segments == 1:
            return cls(neg_max_sbuf, sums_sbuf, neg_max_sbuf[:, :, 0], sums_sbuf[:, :, 0], factors_sbuf)
        rows = [nl.ndarray((partitions, strips), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]
        return cls(neg_max_sbuf, sums_sbuf, rows[0], rows[1], factors_sbuf)

    def part_of(self, group: Group) -> WindowStatistics:
        """Return views of the statistics for the strips and partitions of a group."""
        tiles = (self.neg_max_sbuf, self.sums_sbuf, self.row_neg_max_sbuf, self.row_sum_sbuf, self.factors_sbuf)
        return WindowStatistics(*[tile[0 : group.rows, group.first : group.end] for tile in tiles])


def _take_distances(of_group: WindowStatistics) -> None:
    """Compute -m in ``row_neg_max_sbuf``, and m_k - m in ``factors_sbuf``."""
    nisa.tensor_reduce(dst=of_group.row_neg_max_sbuf, op=nl.minimum, data=of_group.neg_max_sbuf, axis=2)
    nisa.tensor_tensor(
        dst=of_group.factors_sbuf,
        data1=of_group.row_neg_max_sbuf.expand_dim(2).broadcast(2, of_group.factors_sbuf.shape[2]),
        data2=of_group.neg_max_sbuf,
        op=nl.subtract,
    )


def _take_weights(of_group: WindowStatistics) -> None:
    """Replace m_k - m by exp(m_k - m) in ``factors_sbuf``."""
    nisa.activation(dst=of_group.factors_sbuf, op=nl.exp, data=of_group.factors_sbuf)


def _add_up(of_group: WindowStatistics) -> None:
    nisa.tensor_tensor(dst=of_group.sums_sbuf, data1=of_group.sums_sbuf, data2=of_group.factors_sbuf, op=nl.multiply)
    nisa.tensor_reduce(dst=of_group.row_sum_sbuf, op=nl.add, data=of_group.sums_sbuf, axis=2)


def _take_logs(of_group: WindowStatistics) -> None:
    nisa.activation(dst=of_group.row_sum_sbuf, op=nl.log, data=of_group.row_sum_sbuf)


def _take_only_factor(of_group: WindowStatistics) -> None:
    nisa.reciprocal(dst=of_group.factors_sbuf, data=of_group.sums_sbuf)


def _take_factors(of_group: WindowStatistics) -> None:
    """Replace exp(m_k - m) by exp(m_k - m) / d in ``factors_sbuf``, and d by 1 / d in ``row_sum_sbuf``."""
    nisa.reciprocal(dst=of_group.row_sum_sbuf, data=of_group.row_sum_sbuf)
    inverses_sbuf = of_group.row_sum_sbuf.expand_dim(2).broadcast(2, of_group.factors_sbuf.shape[2])
    nisa.tensor_tensor(dst=of_group.factors_sbuf, data1=of_group.factors_sbuf, data2=inverses_sbuf, op=nl.multiply)


def combining_stages(kind: Kind, segments: int) -> list[Callable[[WindowStatistics], None]]:
    """Return the stages that combine the statistics of a group of strips between the two passes, in the order of issue.

    A step of the loop issues one stage of a group.
    """
    of_sums = [_take_distances, _take_weights, _add_up] if segments > 1 else []
    if kind is Kind.LOG_SOFTMAX:
        return [*of_sums, _take_logs]
    return [*of_sums, _take_factors if segments > 1 else _take_only_factor]


@dataclass
class ForwardArithmetic:
    """The arithmetic of both passes of the forward (:class:`.pipeline.Arithmetic`).

    The methods get the views of an item by number; view 0 is x.

    Attributes:
        kind: softmax or log-softmax.
        segments: the number of segments of a column.
        kept: for softmax, tiles, used round-robin, for exponentials of the first pass that the second pass reads; empty
            if the second pass computes them again.
        scratch_sbuf: first a tile for exponentials of which only the sum is used; then tiles, used round-robin, for
            exponentials that the second pass computes again.
        ceiling_sbuf: the largest finite float32 number in each partition, [128, 1].
        windows: the statistics of the windows in progress, by the number of the window.
        taken: two counters: the tiles of kept or recomputed exponentials written so far, and those read so far.
    """

    kind: Kind
    segments: int
    kept: list[nl.NkiTensor]
    scratch_sbuf: list[nl.NkiTensor]
    ceiling_sbuf: nl.NkiTensor
    windows: dict[int, WindowStatistics]
    taken: list[int]

    @classmethod
    def make(cls, kind: Kind, segments: int, longest: int, kept: int) -> ForwardArithmetic:
        """Allocate the tiles for segments of at most ``longest`` elements.

        Args:
            kind: softmax or log-softmax.
            segments: the number of segments of a column.
            longest: the maximum number of elements of a segment.
            kept: the number of tiles in :attr:`kept`.
        """
        shape = (nl.tile_size.pmax, longest)
        scratch_type = nl.bfloat16 if kind is Kind.LOG_SOFTMAX else nl.float32
        waiting = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(kept)]
        scratch = [
            nl.ndarray(shape, dtype=scratch_type, buffer=nl.sbuf)
            for _ in range(1 + (_RECOMPUTED_TILES if kind is Kind.SOFTMAX and not kept else 0))
        ]
        ceiling_sbuf = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=ceiling_sbuf, value=FLOAT32_HIGHEST)
        return cls(kind, segments, waiting, scratch, ceiling_sbuf, {}, [0, 0])

    def begin(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Compute -m_k of each column of an item's segment."""
        columns = item.strip.columns
        neg_max_sbuf = self._of_item(self._of_window(item.window).neg_max_sbuf, item)
        nisa.tensor_reduce(dst=neg_max_sbuf, op=nl.maximum, data=views[0], axis=1, negate=True)
        # If all elements are -inf, exp(-inf + highest) is 0, where exp(-inf + inf) would be NaN.
        nisa.tensor_tensor(
            dst=neg_max_sbuf,
            data1=neg_max_sbuf,
            data2=self.ceiling_sbuf[0:columns],
            op=nl.minimum,
            engine=nisa.engine.gpsimd,
        )

    def gather(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Compute s_k of each column of an item's segment."""
        of_window = self._of_window(item.window)
        exponentials_sbuf = self._next_kept(0) if self.kept else self.scratch_sbuf[0]
        nisa.activation(
            dst=exponentials_sbuf[0 : item.strip.columns, 0 : item.segment.size],
            op=nl.exp,
            data=views[0],
            bias=self._of_item(of_window.neg_max_sbuf, item),
            reduce_op=nl.add,
            reduce_res=self._of_item(of_window.sums_sbuf, item),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def combine(self, group: Group, stage: int) -> None:
        """Issue stage number ``stage`` of :func:`combining_stages` for the strips of a group."""
        combining_stages(self.kind, self.segments)[stage](self._of_window(group.window).part_of(group))

    def prepare(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Compute exp(x - m_k) of an item again, for softmax if the first pass did not keep these exponentials."""
        if self.kind is Kind.LOG_SOFTMAX or self.kept:
            return
        nisa.activation(
            dst=self._recomputed(item, 0),
            op=nl.exp,
            data=views[0],
            bias=self._of_item(self._of_window(item.window).neg_max_sbuf, item),
        )

    def result(self, item: Item, views: dict[int, nl.NkiTensor], dst_sbuf: nl.NkiTensor) -> None:
        """Write the result of an item to ``dst_sbuf``, which may be the tile that holds the item's input."""
        of_window = self._of_window(item.window)
        columns, size, strip = item.strip.columns, item.segment.size, item.strip.number
        if self.kind is Kind.LOG_SOFTMAX:
            nisa.tensor_scalar(
                dst=dst_sbuf,
                data=views[0],
                op0=nl.add,
                operand0=of_window.row_neg_max_sbuf[0:columns, strip : strip + 1],
                op1=nl.subtract,
                operand1=of_window.row_sum_sbuf[0:columns, strip : strip + 1],
            )
        else:
            exponentials_sbuf = self._next_kept(1)[0:columns, 0:size] if self.kept else self._recomputed(item, 1)
            factor_sbuf = self._of_item(of_window.factors_sbuf, item)
            nisa.activation(dst=dst_sbuf, op=nl.copy, data=exponentials_sbuf, scale=factor_sbuf)
        if item.ends_part and item.segment.number == self.segments - 1:
            self.windows.pop(item.window.number)

    def _recomputed(self, item: Item, visit: int) -> nl.NkiTensor:
        """Return the next tile for recomputed exponentials: to write if ``visit`` is 0, to read if ``visit`` is 1."""
        self.taken[visit] += 1
        tiles = self.scratch_sbuf[1:]
        return tiles[self.taken[visit] % len(tiles)][0 : item.strip.columns, 0 : item.segment.size]

    def _of_item(self, tile_sbuf: nl.NkiTensor, item: Item) -> nl.NkiTensor:
        number = item.segment.number
        return tile_sbuf[0 : item.strip.columns, item.strip.number, number : number + 1]

    def _next_kept(self, visit: int) -> nl.NkiTensor:
        self.taken[visit] += 1
        return self.kept[self.taken[visit] % len(self.kept)]

    def _of_window(self, window: Window) -> WindowStatistics:
        if window.number not in self.windows:
            self.windows[window.number] = WindowStatistics.make(len(window.strips()), self.segments)
        return self.windows[window.number]


def forward_loop(
    shape: Sizes, kind: Kind, x_dtype: nl.DType, y_dtype: nl.DType, chunk_size: int | None, cores: int, core: int
) -> ColumnLoop:
    """Return the plan of the forward loop of core number ``core``, for columns that are not short."""
    tensors = ColumnTensors(
        shape,
        read=(x_dtype,),
        written=y_dtype,
        passes=((1, 2),),
        can_transpose=True,
        # A log needs another activation table, which is loaded once for all strips of a window.
        keeps_windows=kind is Kind.LOG_SOFTMAX,
        keeping=tuple(Layout) if kind is Kind.SOFTMAX else (),
        slowness_of_parts=_THREE_PASSES[x_dtype == nl.float32] if kind is Kind.SOFTMAX else 1.0,
    )
    plan = plan_columns(tensors, chunk_size, cores, core)
    whole_windows = tensors.keeps_windows or plan.has_parts
    kept = 2 * len(plan.segments) + _MOST_STAGES + 1
    if whole_windows or kept * plan.longest * FLOAT32_BYTES > KEPT_BYTES:
        kept = 0
    phases: tuple[Phase, ...] = (Phase.BEGIN,)
    if kind is Kind.LOG_SOFTMAX:
        phases = (Phase.BEGIN, Phase.RESULT)
    elif not kept:
        phases = (Phase.BEGIN, Phase.PREPARE)
    overwrites = tensors.overwrites and plan.layout is not Layout.DMA_TRANSPOSED
    stages = len(combining_stages(kind, len(plan.segments)))
    return ColumnLoop(plan, (phases,), kept, whole_windows, stages, overwrites)


def forward_of_columns(x_hbm: nl.NkiTensor, y_hbm: nl.NkiTensor, kind: Kind, chunk_size: int | None) -> None:
    """Compute softmax or log-softmax of the columns that this core processes.

    Args:
        x_hbm: the input, [O, C, I], with I at least 2.
        y_hbm: the output, [O, C, I].
        kind: softmax or log-softmax.
        chunk_size: the kernel's argument, which bounds the elements of a segment.
    """
    if is_short(x_hbm.shape[1], (x_hbm.dtype, y_hbm.dtype), chunk_size):
        forward_of_short_columns(x_hbm, y_hbm, kind, chunk_size)
        return
    shape = Sizes(*x_hbm.shape)
    loop = forward_loop(shape, kind, x_hbm.dtype, y_hbm.dtype, chunk_size, nl.num_programs(), nl.program_id())
    plan = loop.plan
    if not plan.windows:
        return
    arithmetic = ForwardArithmetic.make(kind, len(plan.segments), plan.longest, loop.kept)
    source = source_of(x_hbm, plan, {phase.visit: _BANKS[phase] for phase in loop.phases[0]})
    results = results_of(
        y_hbm, plan, source if loop.overwrites else None, 0.0 if kind is Kind.SOFTMAX else _SCALAR_SHARES[plan.layout]
    )
    schedule = Schedule.make(plan.windows, plan.parts, loop.whole_windows, loop.stages)
    Pipeline(schedule, [Reader(source, loop.phases[0])], arithmetic, results, loop.overwrites).run()
