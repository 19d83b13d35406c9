# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of the multi-class margin loss: its registry entry, float64 reference and bounds on the error of the
kernels.

N is the number of rows, C the number of classes. The hinge of element j of a row x with target t is
relu(x_j - x_t + margin).
The forward reads the input once; the backward reads the input and writes the gradient once. The simulator is imported
only when a profile asks for the work: the kernels on hardware do not need the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.cores import LEAF, levels
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT, Float64Array, rounding
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import Family, SizedLoss, sized_launch, tensor_bytes
from nkilib.experimental.loss.multi_margin import kernels
from nkilib.experimental.loss.multi_margin.launch import MOST_COLUMNS
from nkilib.experimental.loss.skeletons.indexed import Shape, size_of

_SHAPE: Final = (4096, 32128)
_SUMS = (
    "each row is summed in chunks, each chunk in the order of the engine's accumulator; the division of rows and "
    "columns depends only on the shape"
)


def forward_work(input_hbm: Any, targets_hbm: Any, reduction: str, **_: Any) -> Work:
    """Return the work of ``multi_margin_loss_forward``, from the kernel's arguments."""
    from nkilib.simulator.terms.dtypes import as_dtype

    dtype = as_dtype(input_hbm.dtype)
    losses = prod(targets_hbm.shape) * dtype.itemsize if reduction == "none" else 0
    return Work(tensor_bytes(input_hbm, targets_hbm) + losses, dtype=dtype)


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, **_: Any) -> Work:
    """Return the work of ``multi_margin_loss_backward``, from the kernel's arguments."""
    from nkilib.simulator.terms.dtypes import as_dtype

    nbytes = tensor_bytes(input_hbm, input_hbm, targets_hbm, grad_loss_hbm)
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


multi_margin_loss_forward = launchable(
    kernels.multi_margin_loss_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="each term h: u (|m| + (|x_t| + h) / 2) for p = 1, and 2 h times that for p = 2; the sum of a row, "
        "including the target's own term: u / 2 times the sum for each of its additions, at most 4,096 per chunk; plus "
        "half a ulp; u = 2^-23",
        notes=f"{_SUMS}; the target's own term is computed like the others and then subtracted",
    ),
    forward_work,
)
multi_margin_loss_backward = launchable(
    kernels.multi_margin_loss_backward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="input_hbm",
        error="p = 1: 2 u times the gradient where no hinge is within its error of 0; p = 2: twice the errors of the "
        "hinges times the upstream gradient; at the target: the sum of these errors; plus the rounding of the "
        "gradient; u = 2^-23",
        notes=f"{_SUMS}; the element at the target is written last, by the core that wrote its row",
    ),
    backward_work,
)

MULTI_MARGIN: Final = SizedLoss(
    name="multi_margin_loss",
    module="MultiMarginLoss",
    forward=multi_margin_loss_forward,
    backward=multi_margin_loss_backward,
    formula="w_t sum over j != t of relu(x_j - x_t + m)^p / C",
    derivative="w_t p relu(x_j - x_t + m)^(p - 1) / C where positive; at the target, minus the sum of these",
    differentiated=("input",),
    options=("p", "margin", "weight"),
    tests=("tests/experimental/loss/multi_margin", "tests/torch/functions"),
    edges="a hinge of 0 has gradient 0; the mean divides by N, whatever the weights",
    differences="weights may have any floating type and targets any integer type; a NaN in a row makes its loss NaN, "
    "whereas PyTorch omits its hinge; +inf as the score of the target makes the loss NaN, and -inf as that score "
    "counts as the lowest finite number; margin and weights must be finite",
    family=Family.MARGIN,
    launches=(
        sized_launch("forward, mean", kernels.multi_margin_loss_forward, (1.2, 1.05), size_of, _SHAPE),
        sized_launch("forward, mean, p = 2", kernels.multi_margin_loss_forward, (1.75, 1.05), size_of, _SHAPE, p=2),
        sized_launch("backward, mean", kernels.multi_margin_loss_backward, (1.05, 1.05), size_of, _SHAPE),
    ),
    size_of=size_of,
)


@dataclass(frozen=True)
class MultiMarginReference:
    """The float64 reference: the hinges and weights of every row, from which losses and gradient follow.

    Attributes:
        hinges: relu(x_j - x_t + margin), [N, C]; 0 at the target.
        weights: for each row, the class weight of its target divided by C, [N].
        targets: the target class of each row, [N], from 0.
        p: the exponent, 1 or 2.
    """

    hinges: Float64Array
    weights: Float64Array
    targets: npt.NDArray[Any]
    p: int

    @classmethod
    def of(
        cls,
        input: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        class_weight: npt.NDArray[Any] | None = None,
        p: int = 1,
        margin: float = 1.0,
    ) -> MultiMarginReference:
        """Return the reference for the arguments of ``torch.nn.functional.multi_margin_loss``, with int32 targets."""
        x = input.astype(np.float64)
        rows, classes = x.shape
        with np.errstate(all="ignore"):
            hinges = np.maximum(x - x[np.arange(rows), targets][:, None] + margin, 0.0)
        hinges[np.arange(rows), targets] = 0.0
        weight = np.ones(classes) if class_weight is None else class_weight.astype(np.float64)
        return cls(hinges, weight[targets] / classes, targets, p)

    def losses(self) -> Float64Array:
        """Return ``F.multi_margin_loss(input, target, p, margin, weight, reduction="none")``, [N]."""
        losses: Float64Array = self.weights * (self.hinges**self.p).sum(axis=1)
        return losses

    def gradient(self, upstream: npt.NDArray[Any]) -> Float64Array:
        """Return the gradient of the input, [N, C]; ``upstream`` is the upstream gradient, [N] or one number."""
        slopes = (self.hinges > 0).astype(np.float64) if self.p == 1 else 2.0 * self.hinges
        gradient = np.asarray(slopes * (self.weights * upstream.astype(np.float64))[:, None])
        gradient[np.arange(len(gradient)), self.targets] = -gradient.sum(axis=1)
        return gradient


def hinge_errors(input: npt.NDArray[Any], reference: MultiMarginReference, margin: float) -> Float64Array:
    """Return the error bound of each hinge in float32, [N, C].

    Every input is exact in float32. A hinge is computed as relu(x_j + fl(margin - x_t)), where fl rounds to float32.
    With u = 2^-23 the error is the sum of u / 2 |margin - x_t|, u / 2 times the hinge, and u / 2 |margin|, because
    float32 may round the margin.
    """
    at_target = input.astype(np.float64)[np.arange(len(input)), reference.targets][:, None]
    error: Float64Array = 0.5 * UNIT * (2.0 * np.abs(margin) + np.abs(at_target) + reference.hinges) + SMALLEST_NORMAL
    return error


def _additions(classes: int) -> int:
    """Return the largest number of consecutive additions in the sum of a row: within a chunk, over the chunks, and the
    subtraction of the target's own term.
    """
    return min(classes, MOST_COLUMNS) + div_ceil(classes, MOST_COLUMNS) + 2


def loss_bounds(input: npt.NDArray[Any], reference: MultiMarginReference, margin: float) -> Float64Array:
    """Return the largest accepted error of the loss of each row in float32, [N].

    With u = 2^-23, a squared hinge h^2 has the error (2 h + e) e + u / 2 h^2, where e is the error of h. The sum of a
    row adds C terms, among them the target's own term, which is subtracted at the end; within a chunk the additions may
    follow one another. The products with the weight and with 1 / C or 1 / (N C) add 2 u of the loss.
    """
    of_hinge = hinge_errors(input, reference, margin)
    own = max(margin, 0.0) ** reference.p
    if reference.p == 2:
        of_hinge = (2.0 * reference.hinges + of_hinge) * of_hinge + 0.5 * UNIT * reference.hinges**2
    sums = (reference.hinges**reference.p).sum(axis=1) + own
    error = of_hinge.sum(axis=1) + 0.5 * UNIT * _additions(input.shape[1]) * sums
    bounds: Float64Array = np.abs(reference.weights) * error + 2.0 * UNIT * np.abs(reference.losses()) + SMALLEST_NORMAL
    return bounds


def sum_bound(input: npt.NDArray[Any], reference: MultiMarginReference, margin: float) -> float:
    """Return the largest accepted error of the sum of the losses; the kernel adds the losses of 32 rows at a time."""
    blocks = div_ceil(len(input), Shape.of(tuple(input.shape)).rows_of_block)
    additions = LEAF * (levels(blocks) + levels(PARTITIONS))
    losses = np.abs(reference.losses()).sum()
    return float(loss_bounds(input, reference, margin).sum() + 0.5 * UNIT * additions * losses)


def gradient_bounds(
    input: npt.NDArray[Any], reference: MultiMarginReference, margin: float, upstream: npt.NDArray[Any]
) -> Float64Array:
    """Return the largest accepted error of each element of the gradient, [N, C], after rounding to the input's type.

    For p = 1, either derivative of a hinge, 0 or 1, is accepted if |x_j - x_t + margin| is at most the hinge's error.
    """
    of_hinge = hinge_errors(input, reference, margin)
    scale = np.abs(reference.weights * upstream.astype(np.float64))[:, None]
    exact = reference.gradient(upstream)
    if reference.p == 1:
        x = input.astype(np.float64)
        rows = np.arange(len(x))
        distance = np.abs(x - x[rows, reference.targets][:, None] + margin)
        error = np.where(distance <= of_hinge, 1.0, 0.0)
    else:
        error = 2.0 * of_hinge
    error[np.arange(len(error)), reference.targets] = 0.0
    sums = error.sum(axis=1)
    if reference.p == 2:
        sums += 0.5 * UNIT * _additions(input.shape[1]) * 2.0 * (reference.hinges.sum(axis=1) + max(margin, 0.0))
    error[np.arange(len(error)), reference.targets] = sums
    bounds: Float64Array = scale * error + 2.0 * UNIT * np.abs(exact) + SMALLEST_NORMAL + rounding(exact, input.dtype)
    return bounds
