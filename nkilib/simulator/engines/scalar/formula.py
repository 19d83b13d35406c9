# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The computation of every activation instruction: steps on the data, the function, and a reduction of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...numerics.activations import ACTIVATIONS, PARAMETRIC
from ...numerics.operators import ARITHMETIC
from ...tensors.tensor import NkiTensor
from ..results import compute
from .registers import ScalarAccumulation

Float32s = npt.NDArray[np.float32]


class Step(NamedTuple):
    """A step before the activation function: ``data <key> operand``, or ``operand <key> data`` if reversed.

    Attributes:
        key: the name of a binary operator in ``ARITHMETIC``.
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
    parameter: Any = 0.0,
) -> None:
    """Apply ``steps`` to ``data``, each rounded to float32, then the activation function ``key``; store the results.

    ``accumulation`` reduces the results into the registers. The function is called with ``parameter`` if it has one.
    """
    functions = [(ARITHMETIC[step.key], step.is_reversed) for step in steps]
    columns = [step.operand for step in steps]
    if key in PARAMETRIC:
        columns.append(parameter)

    def apply(tiles: list[Float32s], scalars: list[Any], values: Float32s) -> None:
        (loaded,) = tiles
        for (function, is_reversed), scalar in zip(functions, scalars, strict=False):  # the parameter is left over
            left, right = (scalar, loaded) if is_reversed else (loaded, scalar)
            function(left, right, values)
            loaded = values
        if key in PARAMETRIC:
            PARAMETRIC[key](loaded, scalars[-1], values)
        else:
            ACTIVATIONS[key](loaded, values)

    compute(core, dst, (data,), apply, accumulation, columns)
