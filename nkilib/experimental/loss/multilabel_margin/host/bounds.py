"""How far the kernels of the margins of several targets may be from the truth, derived: numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. A term is
relu(x_j + fl(1 - x_t)): u / 2 of |1 - x_t| and of itself. The terms of a target are summed one after the other, at most
C, and then the sums of the targets. One factor follows. A sum of rows adds 32 numbers at a time. A gradient is an exact
count times two factors, where no term is within its error of 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.experimental.loss.multilabel_margin.host.reference import Float64Array, MultilabelMarginTruth

_PARTITIONS = 128


def _errors_of_row(row: Float64Array, hinges: Float64Array, wanted: npt.NDArray[Any]) -> Float64Array:
    """Of each term, [targets, C]."""
    errors: Float64Array = 0.5 * UNIT * (np.abs(1.0 - row[wanted])[:, None] + hinges) + SMALLEST_NORMAL
    return errors


def loss_bounds(input: npt.NDArray[Any], truth: MultilabelMarginTruth) -> Float64Array:
    """Largest accepted error of the loss of each row in float32, [N]."""
    x, found = input.astype(np.float64), []
    for row, hinges, wanted in zip(x, truth.hinges, truth.targets, strict=True):
        additions = truth.classes + len(wanted) + 2
        found.append(_errors_of_row(row, hinges, wanted).sum() + 0.5 * UNIT * additions * hinges.sum())
    return np.array(found) / truth.classes + UNIT * truth.losses() + SMALLEST_NORMAL


def sum_bound(input: npt.NDArray[Any], truth: MultilabelMarginTruth) -> float:
    """Largest accepted error of the sum of the losses."""
    additions = LEAF * (levels(len(input) // _PARTITIONS + 2) + levels(_PARTITIONS))
    return float(loss_bounds(input, truth).sum() + 0.5 * UNIT * additions * truth.losses().sum())


def gradient_bounds(input: npt.NDArray[Any], truth: MultilabelMarginTruth, upstream: npt.NDArray[Any]) -> Float64Array:
    """Largest accepted error of each element of the gradient in the type of the input, [N, C]."""
    x, exact = input.astype(np.float64), truth.gradient(upstream)
    doubtful = np.zeros(x.shape)
    for number, (row, hinges, wanted) in enumerate(zip(x, truth.hinges, truth.targets, strict=True)):
        distances = np.abs(1.0 - row[wanted][:, None] + row[None, :])
        is_near = distances <= _errors_of_row(row, hinges, wanted)
        is_near[:, wanted] = False
        doubtful[number] = is_near.sum(axis=0)
        np.add.at(doubtful[number], wanted, is_near.sum(axis=1))
    scale = np.abs(upstream.astype(np.float64) / truth.classes).reshape(-1, 1)
    bounds: Float64Array = scale * doubtful + 2.0 * UNIT * np.abs(exact) + rounding(exact, input.dtype)
    return bounds
