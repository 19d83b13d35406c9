# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward along an axis that is not the last one: columns of tensors [O, C, I].

Items of up to 1,024 elements of 128 columns are brought on chip so that a column lies along a partition, processed like
rows, and transposed back. Columns that do not fit on chip are read twice. Columns of a short axis are not transposed:
:mod:`.short_columns` processes them.
"""

from __future__ import annotations

from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.experimental.softmax.column_forward import MOST_STAGES, ForwardArithmetic, combining_stages
from nkilib.experimental.softmax.column_layouts import results_of, source_of
from nkilib.experimental.softmax.column_loop import ColumnLoop
from nkilib.experimental.softmax.column_pipeline import Pipeline, Reader
from nkilib.experimental.softmax.column_plan import KEPT_BYTES, ColumnTensors, Layout, Sizes, is_short, plan_columns
from nkilib.experimental.softmax.column_steps import Phase, Schedule
from nkilib.experimental.softmax.kind import Kind
from nkilib.experimental.softmax.short_columns import forward_of_short_columns
from nkilib.experimental.softmax.tiling import SoftmaxTiling
from nkilib.nki import nl

# Scalar's share of the copies out of PSUM for log-softmax, for which it has time beside its exponentials.
_SCALAR_SHARES = {Layout.TENSOR_TRANSPOSED: 0.65, Layout.DMA_TRANSPOSED: 0.5, Layout.STRIDED: 0.0}

# The time of three passes of Scalar relative to the transfers of float32 (True) and of 16-bit elements (False).
_THREE_PASSES = {True: 1.16, False: 1.95}
# PSUM banks: items that are transposed in one step and read in the next one need two, in the next two steps three.
_BANKS = {Phase.BEGIN: 3, Phase.PREPARE: 2, Phase.RESULT: 2}


def forward_of_columns(x_hbm: nl.NkiTensor, y_hbm: nl.NkiTensor, kind: Kind, tiling: SoftmaxTiling) -> None:
    """Compute the results of the columns of this core.

    Args:
        x_hbm: the input, [O, C, I], with I at least 2.
        y_hbm: the output, [O, C, I]; its type is the type of the result.
        kind: softmax or log-softmax.
        tiling: the tiling; ``chunk_size`` bounds the elements of a segment.
    """
    if is_short(x_hbm.shape[1], (x_hbm.dtype, y_hbm.dtype), tiling.chunk_size):
        forward_of_short_columns(x_hbm, y_hbm, kind, tiling.chunk_size)
        return
    shape = Sizes(*x_hbm.shape)
    loop = forward_loop(shape, kind, x_hbm.dtype, y_hbm.dtype, tiling.chunk_size, nl.num_programs(), nl.program_id())
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


def forward_loop(
    shape: Sizes, kind: Kind, x_dtype: nl.DType, y_dtype: nl.DType, chunk_size: int | None, cores: int, core: int
) -> ColumnLoop:
    """Return the plan of the forward loop of a core, for columns for which :func:`.is_short` is False."""
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
    kept = 2 * len(plan.segments) + MOST_STAGES + 1
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
