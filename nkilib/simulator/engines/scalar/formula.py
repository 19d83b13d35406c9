"""The work of every activation instruction: steps on the data, the function, and the reduction of its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...memory.deferred import Deferred
from ...numerics.activations import ACTIVATIONS, PARAMETRIC
from ...numerics.casts import store_float
from ...numerics.operators import ARITHMETIC
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import tfloat32
from ..accumulators import read_accumulators
from ..blocks import (
    ResultRows,
    SourceRows,
    blocks_of_rows,
    column,
    is_same_view,
    is_worth_deferring,
    row_blocks,
)
from .registers import ScalarAccumulation

Float32s = npt.NDArray[np.float32]


class Step(NamedTuple):
    """A step before the activation function: ``data <key> operand``, or ``operand <key> data`` if reversed.

    Attributes:
        key: of a binary operator, in ``ARITHMETIC``.
        operand: a number, or a tensor of one element a partition.
        is_reversed: whether the operand comes first.
    """

    key: str
    operand: Any
    is_reversed: bool = False


class _Formula:
    """How the results come from the data. It holds copies of all operands but the data, whose tile results may hit."""

    def __init__(self, core: Core, key: str, data: NkiTensor, steps: Sequence[Step], parameter: Any) -> None:
        every_row = slice(0, data.shape[0])
        self.source = SourceRows(core, "source", data)
        self._key = key
        self._steps = [(ARITHMETIC[step.key], column(step.operand, every_row), step.is_reversed) for step in steps]
        self._slope = column(parameter, every_row) if key in PARAMETRIC else None

    def evaluate(self, rows: slice, values: Float32s, landing: Float32s | None, columns: slice | None = None) -> None:
        """Put the results of some rows into ``values``; see :meth:`SourceRows.load` for ``landing`` and ``columns``."""
        loaded = self.source.load(rows, landing, columns)
        for function, operand, is_reversed in self._steps:
            of_rows = _of_rows(operand, rows)
            left, right = (of_rows, loaded) if is_reversed else (loaded, of_rows)
            function(left, right, values)
            loaded = values
        if self._slope is not None:
            PARAMETRIC[self._key](loaded, _of_rows(self._slope, rows), values)
        else:
            ACTIVATIONS[self._key](loaded, values)


def _of_rows(operand: Any, rows: slice) -> Any:
    return operand[rows] if isinstance(operand, np.ndarray) else operand


def activate(
    core: Core,
    dst: NkiTensor,
    key: str,
    data: NkiTensor,
    steps: Sequence[Step],
    accumulation: ScalarAccumulation,
    reduce_res: NkiTensor | None,
    parameter: Any = 0.0,
) -> None:
    """The steps on ``data``, each rounded to float32, the function ``key``, with its ``parameter`` if it has one, and
    the reduction into the registers, which ``reduce_res`` receives."""
    formula = _Formula(core, key, data, steps, parameter)
    if core.defers_results and is_worth_deferring(dst) and is_same_view(dst, data) and dst.is_contiguous():
        _reduce_and_defer(core, dst, formula, accumulation)
    else:
        _reduce_and_store(core, dst, data, formula, accumulation)
    accumulation.finish()
    read_accumulators(core, core.scalar_accumulators, data, reduce_res)


def _reduce_and_store(
    core: Core, dst: NkiTensor, data: NkiTensor, formula: _Formula, accumulation: ScalarAccumulation
) -> None:
    if is_same_view(dst, data):
        dst.storage.drop_deferred()  # the formula reads from where it comes; all of it is overwritten
    result = ResultRows(core, "result", dst)
    is_apart = result.is_apart_from(data)
    for rows in row_blocks(dst, dst.free_size, data):
        values = result.open(rows)
        formula.evaluate(rows, values, values if is_apart else None)
        accumulation.add_rows(rows, values)
        result.store(rows, values)


def _reduce_and_defer(core: Core, dst: NkiTensor, formula: _Formula, accumulation: ScalarAccumulation) -> None:
    """Leave the results, which take the place of the data, to who reads them: a store to HBM, or often nobody."""
    results = _Results(core, formula, dst)
    if accumulation.is_reducing:
        for rows, values in results.blocks("result", (slice(0, dst.shape[0]), slice(0, dst.free_size))):
            accumulation.add_rows(rows, values)
        results.times_computed = 1
    dst.storage.defer(Deferred(dst.layout, dst.dtype, formula.source.memory, False, results.write))


class _Results:
    """The results of a formula, where they are deferred.

    A launch in which all of them are computed twice, to be reduced and to be read, defers none after that.

    Attributes:
        times_computed: how often all of them were.
    """

    def __init__(self, core: Core, formula: _Formula, dst: NkiTensor) -> None:
        self._core = core
        self._formula = formula
        self._dtype = dst.dtype
        self._shape = (dst.shape[0], dst.free_size)
        self.times_computed = 0

    def blocks(
        self, slot: str, part: tuple[slice, slice], into: Float32s | None = None
    ) -> Iterator[tuple[slice, Float32s]]:
        """The results in some rows and columns: a few rows after the other, in the array ``into`` or each in the same
        scratch buffer, valid until the next."""
        rows, columns = part
        width = columns.stop - columns.start
        for block in blocks_of_rows(rows.stop - rows.start, width):
            if into is None:
                values = landing = self._core.scratch(slot, (block.stop - block.start) * width).reshape(-1, width)
            else:
                values, landing = into[block], None
            self._formula.evaluate(slice(rows.start + block.start, rows.start + block.stop), values, landing, columns)
            yield block, values

    def write(self, elements: npt.NDArray[Any], rows: slice, columns: slice) -> None:
        """Put the results in some rows and columns into an array of just those."""
        is_direct = elements.dtype == np.float32 and self._dtype != tfloat32
        for block, values in self.blocks("settled", (rows, columns), elements if is_direct else None):
            if not is_direct:
                store_float(elements[block], values, self._dtype)
        if elements.shape == self._shape:
            self.times_computed += 1
            if self.times_computed > 1:
                self._core.stop_deferring()
