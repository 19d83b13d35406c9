# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward along an axis that is not the last one, on columns of tensors [O, C, I] like the forward."""

from __future__ import annotations

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.softmax.column_backward import STAGES, BackwardArithmetic
from nkilib.experimental.softmax.column_layouts import results_of, source_of
from nkilib.experimental.softmax.column_loop import ColumnLoop
from nkilib.experimental.softmax.column_pipeline import Pipeline, Reader
from nkilib.experimental.softmax.column_plan import KEPT_BYTES, ColumnTensors, Layout, Sizes, is_short, plan_columns
from nkilib.experimental.softmax.column_steps import Phase, Schedule
from nkilib.experimental.softmax.kind import BackwardTypes, Kind
from nkilib.experimental.softmax.short_columns_backward import backward_of_short_columns
from nkilib.experimental.softmax.tiling import SoftmaxTiling
from nkilib.nki import nl

# Scalar's share of the copies out of PSUM, for which it has time beside exponentials, sums and copies of y.
_SCALAR_SHARES = {Kind.LOG_SOFTMAX: 0.0, Kind.SOFTMAX: 1.0}

# PSUM banks: items are transposed in one step and read in the next one. If both passes transpose y, each has one.
_BANKS = 2


def backward_of_columns(
    grad_hbm: nl.NkiTensor, output_hbm: nl.NkiTensor, grad_x_hbm: nl.NkiTensor, kind: Kind, tiling: SoftmaxTiling
) -> None:
    """Compute the gradients of the columns of this core.

    Args:
        grad_hbm: dy, [O, C, I], with I at least 2.
        output_hbm: y, [O, C, I].
        grad_x_hbm: dx, [O, C, I]; it may be ``grad_hbm``.
        kind: softmax or log-softmax.
        tiling: the tiling; ``chunk_size`` bounds the elements of a segment.
    """
    dtypes = BackwardTypes(grad_hbm.dtype, output_hbm.dtype, grad_x_hbm.dtype)
    if is_short(grad_hbm.shape[1], dtypes, tiling.chunk_size):
        backward_of_short_columns(grad_hbm, output_hbm, grad_x_hbm, kind, tiling.chunk_size)
        return
    loop = backward_loop(Sizes(*grad_hbm.shape), kind, dtypes, tiling.chunk_size, nl.num_programs(), nl.program_id())
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


def backward_loop(
    shape: Sizes, kind: Kind, dtypes: BackwardTypes, chunk_size: int | None, cores: int, core: int
) -> ColumnLoop:
    """Return the plan of the backward loop of a core, for columns for which :func:`.is_short` is False."""
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
