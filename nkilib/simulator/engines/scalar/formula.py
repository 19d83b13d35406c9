"""The work of every activation instruction: steps on the data, the function, and the reduction of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...numerics.activations import ACTIVATIONS, PARAMETRIC
from ...numerics.operators import ARITHMETIC
from ...tensors.tensor import NkiTensor
from ..accumulators import read_accumulators
from ..blocks import column, rows_of
from ..results import compute
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
    every_row = slice(0, data.shape[0])
    # Copies of all operands but the data, whose tile results may hit.
    operands = [(ARITHMETIC[step.key], column(step.operand, every_row), step.is_reversed) for step in steps]
    slope = column(parameter, every_row) if key in PARAMETRIC else None

    def apply(tiles: list[Float32s], rows: slice, values: Float32s) -> None:
        (loaded,) = tiles
        for function, operand, is_reversed in operands:
            of_rows = rows_of(operand, rows)
            left, right = (of_rows, loaded) if is_reversed else (loaded, of_rows)
            function(left, right, values)
            loaded = values
        if slope is None:
            ACTIVATIONS[key](loaded, values)
        else:
            PARAMETRIC[key](loaded, rows_of(slope, rows), values)

    compute(core, dst, (data,), apply, accumulation)
    accumulation.finish()
    read_accumulators(core, core.scalar_accumulators, data, reduce_res)
