# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""References of the kernels in float64, computed from the same inputs that the kernels get, and derived error
bounds.

Numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. A term is
relu(x_j + fl(1 - x_t)), where fl rounds to float32: its error is u / 2 of |1 - x_t| and of the term. The
terms of a target are summed one after the other, at most C, and then the sums of the targets. One factor
follows. A sum of rows adds 32 numbers at a time. A gradient is an exact count times two factors, if no term
is within its error of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.core.host.exact import Float64Array
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels


@dataclass(frozen=True)
class MultilabelMarginReference:
    """The hinges and targets of every row, in float64.

    Attributes:
        hinges: relu(1 - (x_t - x_j)), an array [targets, C] for each row, with one line for each target t of
            its list and 0 where j is a target.
        targets: the targets of each row.
        classes: C.
    """

    hinges: list[Float64Array]
    targets: list[npt.NDArray[Any]]
    classes: int

    @classmethod
    def of(cls, input: npt.NDArray[Any], targets: npt.NDArray[Any]) -> MultilabelMarginReference:
        """Compute the reference from the arguments of ``F.multilabel_margin_loss``, with int32 targets."""
        x, hinges, lists = input.astype(np.float64), [], []
        for row, listed in zip(x, targets, strict=True):
            (ends,) = np.nonzero(listed < 0)
            wanted = listed[: ends[0] if ends.size else len(listed)]
            of_row = np.maximum(1.0 - row[wanted][:, None] + row[None, :], 0.0)
            of_row[:, wanted] = 0.0
            hinges.append(of_row)
            lists.append(wanted)
        return cls(hinges, lists, x.shape[1])

    def losses(self) -> Float64Array:
        """Return ``F.multilabel_margin_loss(input, target, reduction="none")``, [N]."""
        return np.array([of_row.sum() / self.classes for of_row in self.hinges])

    def gradient(self, upstream: npt.NDArray[Any]) -> Float64Array:
        """Return the gradient of the losses times ``upstream`` ([N] or one number), [N, C]."""
        gradient = np.zeros((len(self.hinges), self.classes))
        for row, (of_row, wanted) in enumerate(zip(self.hinges, self.targets, strict=True)):
            counted = of_row > 0.0
            gradient[row] = counted.sum(axis=0)
            np.subtract.at(gradient[row], wanted, counted.sum(axis=1))
        return gradient * (upstream.astype(np.float64) / self.classes).reshape(-1, 1)


_PARTITIONS = 128


def _errors_of_row(row: Float64Array, hinges: Float64Array, wanted: npt.NDArray[Any]) -> Float64Array:
    """Return the error of each term, [targets, C]."""
    errors: Float64Array = 0.5 * UNIT * (np.abs(1.0 - row[wanted])[:, None] + hinges) + SMALLEST_NORMAL
    return errors


def loss_bounds(input: npt.NDArray[Any], reference: MultilabelMarginReference) -> Float64Array:
    """Return the largest accepted error of the loss of each row in float32, [N]."""
    x, errors = input.astype(np.float64), []
    for row, hinges, wanted in zip(x, reference.hinges, reference.targets, strict=True):
        additions = reference.classes + len(wanted) + 2
        errors.append(_errors_of_row(row, hinges, wanted).sum() + 0.5 * UNIT * additions * hinges.sum())
    return np.array(errors) / reference.classes + UNIT * reference.losses() + SMALLEST_NORMAL


def sum_bound(input: npt.NDArray[Any], reference: MultilabelMarginReference) -> float:
    """Return the largest accepted error of the sum of the losses."""
    additions = LEAF * (levels(len(input) // _PARTITIONS + 2) + levels(_PARTITIONS))
    return float(loss_bounds(input, reference).sum() + 0.5 * UNIT * additions * reference.losses().sum())


def gradient_bounds(
    input: npt.NDArray[Any], reference: MultilabelMarginReference, upstream: npt.NDArray[Any]
) -> Float64Array:
    """Return the largest accepted error of each element of the gradient in the type of the input, [N, C]."""
    x, exact = input.astype(np.float64), reference.gradient(upstream)
    doubtful = np.zeros(x.shape)
    for number, (row, hinges, wanted) in enumerate(zip(x, reference.hinges, reference.targets, strict=True)):
        distances = np.abs(1.0 - row[wanted][:, None] + row[None, :])
        is_near = distances <= _errors_of_row(row, hinges, wanted)
        is_near[:, wanted] = False
        doubtful[number] = is_near.sum(axis=0)
        np.add.at(doubtful[number], wanted, is_near.sum(axis=1))
    scale = np.abs(upstream.astype(np.float64) / reference.classes).reshape(-1, 1)
    bounds: Float64Array = scale * doubtful + 2.0 * UNIT * np.abs(exact) + rounding(exact, input.dtype)
    return bounds
