# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of softmax along an axis that is not the last one, on columns of tensors [O, C, I].

With y the output of the forward, dy the gradient of y, dx the gradient of the input, and s the sum over a column of dy
(log-softmax) or of y dy (softmax), in float32,

    log-softmax: dx = dy - exp(y) s        softmax: dx = y (dy - s).

:mod:`.plan` divides columns: a *segment* is a range of elements of every column, a *strip* up to 128 columns, one per
partition, a *window* the strips that are loaded together, and an *item* one segment of one strip. The first pass over a
window computes s, as the sum of the segments' sums; the second pass computes dx. If the Tensor engine transposes dy and
y into PSUM, an instruction reads dy from PSUM; y is first copied to SBUF, as exp(y) for log-softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sbuf import dtype_bytes
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
from nkilib.experimental.softmax.columns.short import backward_of_short_columns
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind
from nkilib.nki import nisa, nl

# Tiles of copies for each pass: one is written while another is read, and one may wait.
_COPIES = 3
# Steps in which sums are combined.
STAGES = 1
# Scalar's share of the copies out of PSUM, for which it has time beside exponentials, sums and copies of y.
_SCALAR_SHARES = {Kind.LOG_SOFTMAX: 0.0, Kind.SOFTMAX: 1.0}
# PSUM banks: items are transposed in one step and read in the next one. If both passes transpose y, each has one.
_BANKS = 2


@dataclass(frozen=True)
class WindowSums:
    """The sums of the columns of a window, float32; all of them are negated for log-softmax.

    Attributes:
        sums_sbuf: the sum of each segment, [128, strips, segments], with the columns of a strip on partitions.
        row_sum_sbuf: s of each column, [128, strips]; if there is one segment, a view of ``sums_sbuf``.
    """

    sums_sbuf: nl.NkiTensor
    row_sum_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, strips: int, segments: int) -> WindowSums:
        """Allocate the tiles for a window of ``strips`` strips and columns of ``segments`` segments; all sums are 0."""
        partitions = nl.tile_size.pmax
        sums_sbuf = nl.ndarray((partitions, strips, segments), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=sums_sbuf, value=0.0, engine=nisa.engine.gpsimd)
        if segments == 1:
            return cls(sums_sbuf, sums_sbuf[:, :, 0])
        return cls(sums_sbuf, nl.ndarray((partitions, strips), dtype=nl.float32, buffer=nl.sbuf))


@dataclass
class BackwardArithmetic:
    """The arithmetic of both passes of the backward (:class:`.pipeline.Arithmetic`).

    The methods get the views of an item by number: view 0 is dy and view 1 is y.

    Attributes:
        kind: softmax or log-softmax.
        segments: the number of segments of a column.
        in_psum: whether the views are in PSUM.
        kept: tiles, used round-robin, for copies of y that the first pass makes and the second pass also reads; empty
            if each pass makes its own copies.
        copies_sbuf: tiles, used round-robin: for log-softmax, for exp(y); for softmax with ``kept`` empty, for copies
            of y: the first half of the list in the first pass, the second half in the second pass.
        scratch_sbuf: a tile for terms of which only the sum is used.
        windows: the sums of the windows in progress, by the number of the window.
        taken: for each :class:`.Phase`, by its value, the number of tiles that it has used so far.
    """

    kind: Kind
    segments: int
    in_psum: bool
    kept: list[nl.NkiTensor]
    copies_sbuf: list[nl.NkiTensor]
    scratch_sbuf: nl.NkiTensor
    windows: dict[int, WindowSums]
    taken: list[int]

    @classmethod
    def make(
        cls, kind: Kind, segments: int, longest: int, dtype: nl.DType, in_psum: bool, kept: int
    ) -> BackwardArithmetic:
        """Allocate the tiles.

        Args:
            kind: softmax or log-softmax.
            segments: the number of segments of a column.
            longest: the maximum number of elements of a segment.
            dtype: the type of y.
            in_psum: whether the views of items are in PSUM.
            kept: the number of tiles in :attr:`kept`.
        """
        shape = (nl.tile_size.pmax, longest)
        copy_type = nl.float32 if kind is Kind.LOG_SOFTMAX else dtype
        waiting = [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(kept)]
        copies = [nl.ndarray(shape, dtype=copy_type, buffer=nl.sbuf) for _ in range(2 * _COPIES)]
        scratch_sbuf = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        return cls(kind, segments, in_psum, waiting, copies, scratch_sbuf, {}, [0, 0, 0, 0])

    def begin(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Copy y of an item from PSUM to SBUF, for softmax with y in PSUM; otherwise do nothing."""
        if self.kind is Kind.SOFTMAX and self.in_psum:
            tiles = self.kept or self.copies_sbuf[:_COPIES]
            nisa.activation(dst=self._next(tiles, 0, item), op=nl.copy, data=views[1])

    def gather(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Compute the sum of an item's segment, for each column: of -dy for log-softmax, of y dy for softmax."""
        columns, number = item.strip.columns, item.segment.number
        sum_sbuf = self._of_window(item.window).sums_sbuf[0:columns, item.strip.number, number : number + 1]
        scratch_sbuf = self.scratch_sbuf[0:columns, 0 : item.segment.size]
        if self.kind is Kind.LOG_SOFTMAX:
            nisa.activation(
                dst=scratch_sbuf,
                op=nl.copy,
                data=views[0],
                scale=-1.0,
                reduce_op=nl.add,
                reduce_res=sum_sbuf,
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )
            return
        nisa.scalar_tensor_tensor(
            dst=scratch_sbuf,
            data=views[0],
            op0=nl.multiply,
            operand0=1.0,
            op1=nl.multiply,
            operand1=self._next(self.kept or self.copies_sbuf[:_COPIES], 1, item) if self.in_psum else views[1],
            reduce_op=nl.add,
            reduce_res=sum_sbuf,
        )

    def combine(self, group: Group, stage: int) -> None:
        """Compute s of the columns of a group of strips, as the sum of their segments' sums."""
        if self.segments == 1:
            return
        of_window = self._of_window(group.window)
        sums_sbuf = of_window.sums_sbuf[0 : group.rows, group.first : group.end]
        row_sum_sbuf = of_window.row_sum_sbuf[0 : group.rows, group.first : group.end]
        nisa.tensor_reduce(dst=row_sum_sbuf, op=nl.add, data=sums_sbuf, axis=2)

    def prepare(self, item: Item, views: dict[int, nl.NkiTensor]) -> None:
        """Compute exp(y) of an item for log-softmax; for softmax, copy y from PSUM to SBUF, unless y is in SBUF or a
        copy was kept.
        """
        if self.kind is Kind.LOG_SOFTMAX:
            nisa.activation(dst=self._next(self.copies_sbuf, 2, item), op=nl.exp, data=views[1])
        elif self.in_psum and not self.kept:
            nisa.activation(dst=self._next(self.copies_sbuf[_COPIES:], 2, item), op=nl.copy, data=views[1])

    def result(self, item: Item, views: dict[int, nl.NkiTensor], dst_sbuf: nl.NkiTensor) -> None:
        """Write the gradient dx of an item to ``dst_sbuf``, which may be the tile of dy."""
        strip = item.strip.number
        row_sum_sbuf = self._of_window(item.window).row_sum_sbuf[0 : item.strip.columns, strip : strip + 1]
        if self.kind is Kind.LOG_SOFTMAX:
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf,
                data=self._next(self.copies_sbuf, 3, item),
                op0=nl.multiply,
                operand0=row_sum_sbuf,
                op1=nl.add,
                operand1=views[0],
            )
        else:
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf,
                data=views[0],
                op0=nl.subtract,
                operand0=row_sum_sbuf,
                op1=nl.multiply,
                operand1=self._next(self.kept or self.copies_sbuf[_COPIES:], 3, item) if self.in_psum else views[1],
            )
        if item.ends_part and item.segment.number == self.segments - 1:
            self.windows.pop(item.window.number)

    def _next(self, tiles: list[nl.NkiTensor], phase: int, item: Item) -> nl.NkiTensor:
        self.taken[phase] += 1
        return tiles[self.taken[phase] % len(tiles)][0 : item.strip.columns, 0 : item.segment.size]

    def _of_window(self, window: Window) -> WindowSums:
        if window.number not in self.windows:
            self.windows[window.number] = WindowSums.make(len(window.strips()), self.segments)
        return self.windows[window.number]


def backward_loop(
    shape: Sizes, kind: Kind, dtypes: BackwardTypes, chunk_size: int | None, cores: int, core: int
) -> ColumnLoop:
    """Return the plan of the backward loop of core number ``core``, for columns that are not short."""
    tensors = ColumnTensors(
        shape,
        read=(dtypes.grad, dtypes.output),
        written=dtypes.grad_x,
        passes=((1, 2), (2,) if kind is Kind.LOG_SOFTMAX else (1, 2)),
        # Log-softmax is bound by DMA, which transposes at 90% of its rate; softmax is bound by Vector and Scalar.
        can_transpose=kind is Kind.SOFTMAX,
        keeps_windows=False,
        keeping=(Layout.TENSOR_TRANSPOSED,) if kind is Kind.SOFTMAX else (),
    )
    plan = plan_columns(tensors, chunk_size, cores, core)
    in_psum = plan.layout is Layout.TENSOR_TRANSPOSED
    kept = 2 * len(plan.segments) + 4
    kept_bytes = kept * plan.longest * dtype_bytes(dtypes.output)
    if kind is Kind.LOG_SOFTMAX or plan.has_parts or not in_psum or kept_bytes > KEPT_BYTES:
        kept = 0
    output_phases: tuple[Phase, ...] = (Phase.BEGIN, Phase.PREPARE)
    if kind is Kind.LOG_SOFTMAX:
        output_phases = (Phase.PREPARE,)
    elif kept:
        output_phases = (Phase.BEGIN,)
    elif not in_psum:
        output_phases = (Phase.GATHER, Phase.RESULT)
    phases = ((Phase.GATHER, Phase.RESULT), output_phases)
    overwrites = tensors.overwrites and plan.layout is not Layout.DMA_TRANSPOSED
    return ColumnLoop(plan, phases, kept, plan.has_parts, STAGES, overwrites)


def backward_of_columns(
    grad_hbm: nl.NkiTensor, output_hbm: nl.NkiTensor, grad_x_hbm: nl.NkiTensor, kind: Kind, chunk_size: int | None
) -> None:
    """Compute the gradients of the columns that this core processes.

    Args:
        grad_hbm: dy, [O, C, I], with I at least 2.
        output_hbm: y, [O, C, I].
        grad_x_hbm: dx, [O, C, I]; it may be ``grad_hbm``.
        kind: softmax or log-softmax.
        chunk_size: the kernel's argument, which bounds the elements of a segment.
    """
    dtypes = BackwardTypes(grad_hbm.dtype, output_hbm.dtype, grad_x_hbm.dtype)
    if is_short(grad_hbm.shape[1], dtypes, chunk_size):
        backward_of_short_columns(grad_hbm, output_hbm, grad_x_hbm, kind, chunk_size)
        return
    loop = backward_loop(Sizes(*grad_hbm.shape), kind, dtypes, chunk_size, nl.num_programs(), nl.program_id())
    plan = loop.plan
    if not plan.windows:
        return
    in_psum = plan.layout is Layout.TENSOR_TRANSPOSED
    arithmetic = BackwardArithmetic.make(kind, len(plan.segments), plan.longest, output_hbm.dtype, in_psum, loop.kept)
    grad_phases, output_phases = loop.phases
    grad = source_of(grad_hbm, plan, {phase.visit: _BANKS for phase in grad_phases})
    output = source_of(output_hbm, plan, {phase.visit: _BANKS // len(output_phases) for phase in output_phases})
    results = results_of(grad_x_hbm, plan, grad if loop.overwrites else None, _SCALAR_SHARES[kind])
    schedule = Schedule.make(plan.windows, plan.parts, loop.whole_windows, loop.stages)
    readers = [Reader(grad, grad_phases), Reader(output, output_phases)]
    Pipeline(schedule, readers, arithmetic, results, loop.overwrites).run()
