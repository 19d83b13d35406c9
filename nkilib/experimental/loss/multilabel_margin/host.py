# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of the multi-label margin loss: its registry entry, float64 reference and bounds on the error of the
kernels.

N is the number of rows, C the number of classes. A row x has one *term* relu(1 - x_t + x_j) for each pair of a target t
and a class j that is no target. The work counts one read of the input and of the targets, and in the backward one write
of the gradient; the kernels in fact read the targets twice. The simulator is imported only when a profile asks for the
work: the kernels on hardware do not need the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.cores import LEAF, levels
from nkilib.core.hardware import PARTITIONS
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT, Float64Array, rounding
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import SCALAR, Family, SizedLoss, TensorSize, tensor_bytes
from nkilib.experimental.loss.multilabel_margin import kernels
from nkilib.experimental.loss.multilabel_margin.launch import iterations_of


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of a tensor of a launch on scores [N, C], by the tensor's name; the targets are [N, C] too."""
    if tensor == "targets":
        return TensorSize(shape, "int32")
    return TensorSize(shape) if tensor == "input" else SCALAR


def forward_work(input_hbm: Any, targets_hbm: Any, reduction: str, **_: Any) -> Work:
    """Return the work of ``multilabel_margin_loss_forward``, from the kernel's arguments."""
    from nkilib.simulator.terms.dtypes import as_dtype

    dtype = as_dtype(input_hbm.dtype)
    losses = input_hbm.shape[0] * dtype.itemsize if reduction == "none" else 0
    return Work(tensor_bytes(input_hbm, targets_hbm) + losses, dtype=dtype)


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, **_: Any) -> Work:
    """Return the work of ``multilabel_margin_loss_backward``, from the kernel's arguments."""
    from nkilib.simulator.terms.dtypes import as_dtype

    nbytes = tensor_bytes(input_hbm, input_hbm, targets_hbm, grad_loss_hbm)
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


def forward_trips(input_hbm: Any, **_: Any) -> dict[str, int]:
    """Return the largest number of iterations of each device loop of the forward, by the name of the loop's body.

    The number is reached if a row lists as many targets as there are classes.
    """
    most = iterations_of(int(input_hbm.shape[1]))
    return {"find_targets": most, "sum_terms": most}


def backward_trips(input_hbm: Any, **_: Any) -> dict[str, int]:
    """Return the largest number of iterations of each device loop of the backward, by the name of the loop's body."""
    most = iterations_of(int(input_hbm.shape[1]))
    return {"find_targets": most, "count_terms": most, "give": most}


multilabel_margin_loss_forward = launchable(
    kernels.multilabel_margin_loss_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="each term: u / 2 times |1 - x_t|, plus u / 2 times the term; the sum of a row: u / 2 times the sum for "
        "each of its additions, at most C plus the number of targets; plus half a ulp; u = 2^-23",
        notes="the terms of a target are added in the order of the engine's accumulator, then the sums of a row's "
        "targets",
    ),
    forward_work,
    forward_trips,
)
multilabel_margin_loss_backward = launchable(
    kernels.multilabel_margin_loss_backward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="input_hbm",
        error="u times the gradient where no term is within its error of 0, plus the rounding of the gradient; "
        "u = 2^-23",
        notes="the counts of positive terms are exact, because C is at most 4,096",
    ),
    backward_work,
    backward_trips,
)

MULTILABEL_MARGIN: Final = SizedLoss(
    name="multilabel_margin_loss",
    module="MultiLabelMarginLoss",
    forward=multilabel_margin_loss_forward,
    backward=multilabel_margin_loss_backward,
    formula="sum over targets t and other classes j of relu(1 - x_t + x_j) / C",
    derivative="number of targets with x_t - x_j < 1, over C; at a target, minus the number of such classes, over C",
    differentiated=("input",),
    options=(),
    tests=("tests/experimental/loss/multilabel_margin", "tests/torch/functions"),
    edges="the targets end at the first -1; a target listed twice counts twice",
    differences="at most 4,096 classes; targets may have any integer type; infinite scores count as the largest finite "
    "number; a NaN in a row makes its loss NaN and its gradient 0, whereas PyTorch omits its hinges",
    family=Family.MARGIN,
    size_of=size_of,
)


@dataclass(frozen=True)
class MultilabelMarginReference:
    """The float64 reference: the terms and targets of every row, from which losses and gradient follow.

    Attributes:
        hinges: one array per row, [targets of the row, C]: the terms; 0 in the column of a target.
        targets: one array per row: its list of target classes, from 0, without the negative end mark.
        classes: the number of classes, C.
    """

    hinges: list[Float64Array]
    targets: list[npt.NDArray[Any]]
    classes: int

    @classmethod
    def of(cls, input: npt.NDArray[Any], targets: npt.NDArray[Any]) -> MultilabelMarginReference:
        """Return the reference for the arguments of ``F.multilabel_margin_loss``, with int32 targets."""
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
        """Return the gradient of the input, [N, C]; ``upstream`` is the upstream gradient, [N] or one number."""
        gradient = np.zeros((len(self.hinges), self.classes))
        for row, (of_row, wanted) in enumerate(zip(self.hinges, self.targets, strict=True)):
            counted = of_row > 0.0
            gradient[row] = counted.sum(axis=0)
            np.subtract.at(gradient[row], wanted, counted.sum(axis=1))
        return gradient * (upstream.astype(np.float64) / self.classes).reshape(-1, 1)


def _errors_of_row(row: Float64Array, hinges: Float64Array, wanted: npt.NDArray[Any]) -> Float64Array:
    """Return the error bound of each term of a row in float32, [targets of the row, C].

    Every input is exact in float32. A term is computed as relu(x_j + fl(1 - x_t)), where fl rounds to float32. With
    u = 2^-23 the error is u / 2 |1 - x_t|, plus u / 2 times the term.

    Args:
        row: the scores of the row, [C].
        hinges: the terms of the row, [targets of the row, C].
        wanted: the target classes of the row.
    """
    errors: Float64Array = 0.5 * UNIT * (np.abs(1.0 - row[wanted])[:, None] + hinges) + SMALLEST_NORMAL
    return errors


def loss_bounds(input: npt.NDArray[Any], reference: MultilabelMarginReference) -> Float64Array:
    """Return the largest accepted error of the loss of each row in float32, [N].

    The terms of each target (at most C) are added one after another, then the sums of the targets, one after another.
    The total is multiplied by one factor.
    """
    x, errors = input.astype(np.float64), []
    for row, hinges, wanted in zip(x, reference.hinges, reference.targets, strict=True):
        additions = reference.classes + len(wanted) + 2
        errors.append(_errors_of_row(row, hinges, wanted).sum() + 0.5 * UNIT * additions * hinges.sum())
    return np.array(errors) / reference.classes + UNIT * reference.losses() + SMALLEST_NORMAL


def sum_bound(input: npt.NDArray[Any], reference: MultilabelMarginReference) -> float:
    """Return the largest accepted error of the sum of the losses; the kernel adds 32 losses at a time."""
    additions = LEAF * (levels(len(input) // PARTITIONS + 2) + levels(PARTITIONS))
    return float(loss_bounds(input, reference).sum() + 0.5 * UNIT * additions * reference.losses().sum())


def gradient_bounds(
    input: npt.NDArray[Any], reference: MultilabelMarginReference, upstream: npt.NDArray[Any]
) -> Float64Array:
    """Return the largest accepted error of each element of the gradient, [N, C], after rounding to the input's type.

    An element is an exact count times two factors. A term that is within its error of 0 may be counted or not.
    """
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
