# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of the negative log-likelihood loss: its registry entry, float64 reference and bounds on the error of
the kernels.

:data:`NLL` is the entry, with the kernels to launch, ``nll_loss_forward`` and ``nll_loss_backward``;
:func:`nll_loss_reference` and :func:`nll_loss_gradient_reference` are the results in float64, :func:`nll_loss_bound`
and :func:`nll_loss_gradient_bound` the accepted errors.

The forward reads one element for each position, or all elements if the input is streamed; the backward writes the
gradient once. The simulator is imported only when a profile asks for the work: the kernels on hardware do not need the
simulator.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.cores import LEAF, levels
from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT, Float64Array, rounding
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import SizedLoss, sized_launch, tensor_bytes
from nkilib.core.plan_limits import limited_parts
from nkilib.experimental.loss.nll import kernels
from nkilib.experimental.loss.nll.few_classes import PARTS_MAX, STREAMED_CLASSES_MAX, ClassTiling, is_streamed
from nkilib.experimental.loss.skeletons.indexed import Shape, number_of_batches, size_of
from nkilib.nki import nl

_INDEX_BYTES = 4


def forward_work(
    input_hbm: Any, targets_hbm: Any, class_weight_hbm: Any, reduction: str, streamed: bool | None, **_: Any
) -> Work:
    """Return the work of ``nll_loss_forward``, from the kernel's arguments; a streamed input is read whole."""
    from nkilib.simulator.terms.dtypes import as_dtype

    dtype, shape = as_dtype(input_hbm.dtype), Shape.of(tuple(input_hbm.shape))
    of_position = _INDEX_BYTES + (dtype.itemsize if reduction == "none" else 0)
    if is_streamed(shape, dtype) if streamed is None else streamed:
        of_position += shape.classes * dtype.itemsize
    else:
        of_position += dtype.itemsize + (0 if class_weight_hbm is None else FLOAT32_BYTES)
    return Work(prod(targets_hbm.shape) * of_position, dtype=dtype)


def backward_work(input_hbm: Any, targets_hbm: Any, grad_loss_hbm: Any, class_weight_hbm: Any, **_: Any) -> Work:
    """Return the work of ``nll_loss_backward``, from the kernel's arguments."""
    from nkilib.simulator.terms.dtypes import as_dtype

    of_position = _INDEX_BYTES + (0 if class_weight_hbm is None else FLOAT32_BYTES)
    nbytes = tensor_bytes(input_hbm, grad_loss_hbm) + prod(targets_hbm.shape) * of_position
    return Work(nbytes, dtype=as_dtype(input_hbm.dtype))


nll_loss_forward = launchable(
    kernels.nll_loss_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="each loss: 0 without weights, else half a ulp; sum: u / 2 times the sum of the losses' magnitudes for "
        "each of at most 160 additions, plus up to 1,024 additions for each tile of a streamed input; mean: 2 u more; "
        "u = 2^-23",
        notes="sums: 32 numbers at a time, in an order that depends only on shape and type; for a streamed input, the "
        "positions of a partition are added first, in the order of the engine's accumulator",
    ),
    forward_work,
)
nll_loss_backward = launchable(
    kernels.nll_loss_backward,
    Guarantee(
        math="float32",
        accumulator="none",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="input_hbm",
        error="4 u times the gradient, u = 2^-23, plus the rounding of the gradient",
        notes="the gradient is written once: each core either scatters elements into rows that it has filled with "
        "zeros, or computes the gradient on chip",
    ),
    backward_work,
)

NLL: Final = SizedLoss(
    name="nll_loss",
    module="NLLLoss",
    forward=nll_loss_forward,
    backward=nll_loss_backward,
    formula="-w_t x_t",
    derivative="-w_t at the target, 0 elsewhere",
    differentiated=("input",),
    options=("weight", "ignore_index"),
    tests=("tests/experimental/loss/nll", "tests/torch/functions"),
    edges="without a valid target the mean is NaN and its gradient 0",
    differences="weights may have any floating type and targets any integer type",
    launches=(
        sized_launch(
            "backward, mean",
            # The plain function, because the model of time needs neither guarantee nor work; ``backward`` has both.
            kernels.nll_loss_backward,
            (1.1, 1.1),
            size_of,
            (4096, 32128),
            always=("total_weight",),
        ),
    ),
    size_of=size_of,
)


class NllLosses(NamedTuple):
    """The losses and weights of every position, in the shape of the targets; both are 0 at ignored positions.

    Attributes:
        losses: ``-w[t] * x[t]``, with class weights w, and input x and target t of the position.
        weights: ``w[t]``.
    """

    losses: Float64Array
    weights: Float64Array

    def reduced(self, reduction: str) -> Float64Array:
        """Return the losses reduced as ``F.nll_loss`` does.

        The result is the losses themselves, their sum, or for a mean the sum divided by the sum of the weights.
        """
        with np.errstate(all="ignore"):
            if reduction == "none":
                return self.losses
            total = self.losses.sum()
            return np.asarray(total if reduction == "sum" else total / self.weights.sum())


def nll_loss_reference(
    input: npt.NDArray[Any], targets: npt.NDArray[Any], class_weight: npt.NDArray[Any] | None, ignore_index: int
) -> NllLosses:
    """Return the losses and weights of every position.

    PyTorch equivalent: ``F.nll_loss(input.double(), targets, class_weight, ignore_index=ignore_index,
    reduction="none")``.
    """
    counts = targets != ignore_index
    classes = np.where(counts, targets, 0)
    values = np.take_along_axis(input.astype(np.float64), np.expand_dims(classes, 1), 1).squeeze(1)
    weight = np.ones(input.shape[1]) if class_weight is None else class_weight.astype(np.float64)
    with np.errstate(all="ignore"):
        losses = np.where(counts, -weight[classes] * values, 0.0)
    return NllLosses(losses, np.where(counts, weight[classes], 0.0))


def nll_loss_gradient_reference(
    input: npt.NDArray[Any], targets: npt.NDArray[Any], weights: Float64Array, upstream: npt.NDArray[Any]
) -> Float64Array:
    """Return the gradient: ``-weights * upstream`` at the targets, 0 elsewhere.

    Args:
        input: the input; only the shape matters.
        targets: the targets.
        weights: the weights of the positions (:attr:`NllLosses.weights`); 0 at ignored positions.
        upstream: the upstream gradients, in the shape of the targets or one number.
    """
    gradient = np.zeros(input.shape)
    with np.errstate(all="ignore"):
        values = np.where(weights == 0.0, 0.0, -weights * upstream)
    classes = np.where(weights == 0.0, 0, targets)
    np.put_along_axis(gradient, np.expand_dims(classes, 1), np.expand_dims(values, 1), 1)
    return gradient


def _additions(shape: Shape, streamed: bool | None) -> int:
    """Return the largest number of consecutive additions that a loss takes part in, in the sum over all positions.

    The kernels add ``LEAF`` numbers at a time, in levels. For a streamed input, the positions of each partition are
    added one after another before that.
    """
    if streamed is False or shape.classes > STREAMED_CLASSES_MAX:
        return LEAF * (levels(number_of_batches(shape)) + levels(PARTITIONS))
    tiling = ClassTiling.of(shape, nl.bfloat16)
    tiles = tiling.number_of_tiles
    most = limited_parts(PARTS_MAX)
    of_part = div_ceil(tiles, most) * tiling.positions
    return of_part + LEAF * (levels(min(tiles, most)) + levels(PARTITIONS))


def nll_loss_bound(
    reference: NllLosses, shape: tuple[int, ...], reduction: str, dtype: Any, streamed: bool | None = None
) -> Float64Array:
    """Return the largest accepted error of the losses, or of the sum or mean, for an input of shape ``shape``.

    ``dtype`` is the type in which the losses are stored for ``"none"``; ``streamed`` is the argument of the kernel.

    Let u = 2^-23. A loss is one product, with an error of u / 2 of itself. Each addition of a sum (:func:`_additions`)
    adds u / 2 of the sum of magnitudes. A mean is multiplied by the reciprocal of the total weight, a sum with an error
    of its own.
    """
    if reduction == "none":
        return 0.5 * UNIT * np.abs(reference.losses) + rounding(reference.losses, dtype)
    additions = _additions(Shape.of(shape), streamed)
    with np.errstate(all="ignore"):
        error = (additions + 1) * 0.5 * UNIT * np.abs(reference.losses).sum()
        if reduction == "mean":
            total = np.abs(reference.weights.sum())
            of_weights = additions * 0.5 * UNIT * np.abs(reference.weights).sum() / total
            error = error / total + (of_weights + 2.0 * UNIT) * np.abs(reference.reduced(reduction))
    return np.asarray(error + SMALLEST_NORMAL)


def nll_loss_gradient_bound(exact: Float64Array, dtype: npt.DTypeLike) -> Float64Array:
    """Return the largest accepted error of each element of the gradient; 2^-126 for an element that is 0.

    An element is the product of an upstream gradient, a weight and, for a mean, the reciprocal of the total weight.
    """
    return np.where(exact == 0.0, SMALLEST_NORMAL, 4.0 * UNIT * np.abs(exact) + rounding(exact, dtype))
