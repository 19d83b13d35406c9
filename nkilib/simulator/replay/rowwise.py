# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Steps of work that can run on a few rows at a time: elementwise results, and reductions of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engines.reduced import is_in_16_bits
from ..numerics.casts import FLOAT32, copy_as_float32, store_float
from ..terms.dtypes import DType, tfloat32
from .memory import Memory, Operand, Slot
from .steps import Steps
from .work import Elementwise, Reduced, Ref

_BFLOAT16_BYTES = 2


class RowwiseBuilder:
    """A builder of the steps of a core's row-wise work, for some rows at a time."""

    def __init__(self, core: int, memory: Memory) -> None:
        self._core = core
        self._memory = memory

    def elementwise(self, steps: Steps, work: Elementwise, rows: slice) -> None:
        """Add the steps that compute the results in some rows."""
        columns = [self._column(steps, work, number, column, rows) for number, column in enumerate(work.columns)]
        values, is_direct = self._results(work, rows)
        tiles = [
            self._float32(steps, f"source {number}", tile, rows, None if is_direct or number else values)
            for number, tile in enumerate(work.tiles)
        ]
        _apply(steps, work.apply, tiles, columns, values)
        reduction = work.reduction
        if reduction is not None:
            if reduction.is_active:
                steps.call(partial(reduction.add_rows, rows), values)
            steps.call(reduction.finish, rows)
        if not is_direct and not work.is_dst_dead:
            self._store(steps, work.dst, rows, values)

    def begin(self, steps: Steps, work: Elementwise) -> None:
        """Add the step that reads the initial values of a reduction, for all rows, before any result is stored."""
        if work.reduction is not None and work.reduction.initial is not None:
            steps.call(work.reduction.begin)

    def reduced(self, steps: Steps, work: Reduced, rows: slice) -> None:
        """Add the steps that reduce some rows into a buffer, from which :meth:`store_reduced` stores the results."""
        results = self._all_results(work)[rows]
        view, matrix = work.tile.view, work.tile.as_matrix()
        if work.reads_bfloat16 and matrix is not None and is_in_16_bits(view):
            steps.call(work.reduce, self._memory.array(work.tile, rows, matrix), results)
        else:
            steps.call(work.reduce, self._float32(steps, "source 0", work.tile, rows, None), results)

    def store_reduced(self, steps: Steps, work: Reduced, rows: slice) -> None:
        """Add the steps that store the reductions of some rows."""
        self._store(steps, work.dst, rows, self._all_results(work)[rows])

    def _all_results(self, work: Reduced) -> npt.NDArray[np.float32]:
        results: npt.NDArray[np.float32] = self._memory.scratch(self._core, "reduced", (work.tile.rows, work.dst.width))
        return results

    def _column(self, steps: Steps, work: Elementwise, number: int, value: Any, rows: slice) -> Operand:
        """Return a scalar operand for some rows: a number, or float32 elements that the work does not overwrite."""
        if not isinstance(value, Ref):
            return np.float32(value)
        shape = (rows.stop - rows.start, 1)
        layout = value.as_matrix()
        elements = self._memory.array(value, rows, layout)
        is_ready = value.numpy_type == FLOAT32 and layout is not None
        if is_ready and not any(value.meets(written) for written in work.writes):
            return elements
        copied = self._memory.scratch(self._core, f"column {number}", shape)
        steps.call(_copy_column, copied, elements)
        return copied

    def _results(self, work: Elementwise, rows: slice) -> tuple[Operand, bool]:
        """Return the array in which the results are computed, and whether that is their destination or a buffer."""
        dst = work.dst
        layout = dst.as_matrix()
        is_float32 = dst.numpy_type == FLOAT32 and dst.dtype != tfloat32
        if is_float32 and layout is not None and not work.is_dst_dead:
            return self._memory.array(dst, rows, layout), True
        return self._memory.scratch(self._core, "result", (rows.stop - rows.start, dst.width)), False

    def _float32(self, steps: Steps, role: str, ref: Ref, rows: slice, landing: Operand | None) -> Operand:
        """Return some rows of a tile in float32, cast into ``landing`` or a buffer if they have another type."""
        layout = ref.as_matrix()
        elements = self._memory.array(ref, rows, layout)
        if layout is not None and ref.numpy_type == FLOAT32:
            return elements
        shape = (rows.stop - rows.start, ref.width)
        values = self._memory.scratch(self._core, role, shape) if landing is None else landing
        into = values if layout is not None else values.reshape((shape[0], *ref.layout.shape[1:]))
        steps.call(copy_as_float32, into, elements)
        return values

    def _store(self, steps: Steps, dst: Ref, rows: slice, values: npt.NDArray[np.float32]) -> None:
        """Add the step that casts results into the tile."""
        layout = dst.as_matrix()
        into = self._memory.array(dst, rows, layout)
        if layout is None:
            values = values.reshape((rows.stop - rows.start, *dst.layout.shape[1:]))
        if dst.dtype.is_integer or dst.dtype == tfloat32:
            steps.call(partial(_store, dst.dtype), into, values)
        else:
            steps.call(np.copyto, into, values, casting="unsafe")


def _store(dtype: DType, into: npt.NDArray[Any], values: npt.NDArray[np.float32]) -> None:
    store_float(into, values, dtype)


def _copy_column(into: npt.NDArray[np.float32], elements: npt.NDArray[Any]) -> None:
    np.copyto(into, elements.reshape(into.shape), casting="unsafe")


def _apply(
    steps: Steps, apply: Callable[..., object], tiles: list[Operand], columns: list[Operand], values: Operand
) -> None:
    if not any(isinstance(operand, Slot) for operand in (*tiles, *columns, values)):
        steps.all.append(partial(apply, tiles, columns, values))
        return
    count = len(tiles)

    def spread(into: Any, *operands: Any) -> None:
        apply(operands[:count], operands[count:], into)

    steps.call(spread, values, *tiles, *columns)
