# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The common parts of random calls: dtypes, machines and sums; targets and reductions of losses over positions.

:func:`machine` and :func:`dtype_of` draw for every family; :func:`sum_error`, :func:`stored` and :func:`summed` bound
errors. :func:`gradients_of_layer` is for losses of hidden states. A :class:`Recipe` holds the options of a loss over
positions, :func:`drawn_targets` draws its targets, and :func:`reduced` reduces its expected results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import expm1
from typing import Any, Final

import numpy as np
import torch

from benchmarks.fuzz.call import Expected
from benchmarks.fuzz.draw import DTYPES, Array, Draw, array_of, numpy_dtype
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT, rounding
from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss

REDUCTIONS: Final = ("mean", "sum", "none")
# What may get a gradient of hidden states and an output layer, and the name of its gradient in the reference.
OF_LAYER: Final = {"input": "input", "linear_weight": "weight", "linear_bias": "bias"}


def machine(draw: Draw) -> dict[str, Any]:
    """Cores and target of a launch: mostly two cores of trn2."""
    return {"cores": 1 if draw.chance(0.2) else 2, "target": "trn3" if draw.chance(0.15) else "trn2"}


def dtype_of(draw: Draw) -> tuple[str, torch.dtype]:
    """A type, and its name; 16 bits mostly."""
    name = draw.one_of(("bf16", "bf16", "fp16", "fp32"))
    return name, DTYPES[name]


def sum_error(numbers: int) -> float:
    """The largest error of a float32 sum of so many numbers, as a share of the sum of their absolute values.

    It holds in whatever order they are added up, which differs between builds of PyTorch and between machines: no
    number goes through more than ``numbers - 1`` additions, each of which rounds by half a unit at most.
    """
    return expm1(0.5 * UNIT * max(numbers - 1, 0))


def stored(value: Array, error: Array, dtype: Any) -> Array:
    """Return the error of a float32 result after rounding it to a type; unchanged for float32 itself."""
    if np.dtype(dtype) == np.float32:
        return error + SMALLEST_NORMAL
    with np.errstate(all="ignore"):
        return error + rounding(np.abs(value) + error, dtype)


def summed(values: Array, errors: Array) -> tuple[float, float]:
    """A float32 sum by PyTorch: its value and its largest error."""
    cost = sum_error(values.size) * (np.abs(values) + errors).sum()
    return float(values.sum()), float(errors.sum() + cost)


def gradients_of_layer(
    given: Mapping[str, torch.Tensor], gradients: Mapping[str, tuple[Array, Array]]
) -> dict[str, Expected]:
    """Return the expected gradients of hidden states and an output layer, that of the weight added to its sum if one is
    given.

    Args:
        given: the tensors of the call.
        gradients: value and error of each gradient in float32, by the name of the argument.
    """
    computed = {}
    for name, (value, error) in gradients.items():
        if name == "linear_weight" and "grad_weight_sum" in given:
            total = value + array_of(given["grad_weight_sum"]).astype(np.float64)
            computed["grad_weight_sum"] = Expected(total, error + 2.0**-24 * np.abs(total), np.float32)
            continue
        shape, dtype = given[name].shape, numpy_dtype(given[name].dtype)
        error = stored(value, error, dtype)
        computed[f"grad_{name}"] = Expected(value.reshape(shape), error.reshape(shape), dtype)
    return computed


# Results of return_outputs that have a derivative, and loss.
DIFFERENTIABLE: Final = ("loss", "lse", "z_loss", "logprob", "entropy")


@dataclass
class Recipe:
    """Options of a loss of positions.

    Attributes:
        loss: the loss of the reference.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        normalizer: divisor of a mean; None: the summed weights.
        return_outputs: all results are asked for.
        given: the options as arguments of the function.
    """

    loss: ExtendedLoss
    reduction: str
    normalizer: float | None = None
    return_outputs: bool = False
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments for the log, with True in place of tensors."""
        tensors = {name: True for name in ("weight", "normalizer") if name in self.given}
        return {name: value for name, value in self.given.items() if name not in tensors} | tensors


def with_upstream(draw: Draw, recipe: Recipe, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of the results that get an upstream gradient, where all are returned."""
    constant = without if recipe.loss.lse_square_scale else (*without, "z_loss")
    names = [name for name in DIFFERENTIABLE[1:] if name not in constant]
    chosen = [name for name in names if draw.chance(0.4)]
    return ("loss", *chosen) if draw.chance(0.8) or not chosen else tuple(chosen)


def drawn_targets(draw: Draw, positions: int, classes: int) -> tuple[Array, int]:
    """Draw class indices, some of them ignored, and the ignored index; at least one position is valid."""
    targets = np.asarray(draw.rng.integers(0, classes, positions))
    kind = draw.one_of(("all", "some", "most"))
    ignored = draw.one_of((-100, -100, -1, 0))
    if kind != "all":
        targets = np.where(draw.rng.random(positions) < {"some": 0.3, "most": 0.9}[kind], ignored, targets)
    if (targets == ignored).all():
        ignored = -100
        targets[...] = 0 if classes == 1 else draw.rng.integers(0, classes, positions)
    return targets, ignored


def masked(draw: Draw, logits: Array, targets: Array) -> Array:
    """The logits with a third of them -inf, none of them at a target, or all of a row."""
    is_masked = draw.rng.random(logits.shape) < 1.0 / 3.0
    rows = np.arange(len(logits))
    is_masked[rows, np.clip(targets, 0, logits.shape[1] - 1)] = False
    return np.where(is_masked, np.float32(-np.inf), logits)


def confident(logits: Array, targets: Array) -> Array:
    """The logits with those of targets so large that their probability is about 0.999."""
    rows, classes = np.arange(len(logits)), np.clip(targets, 0, logits.shape[1] - 1)
    exact = logits.astype(np.float64)
    exact[rows, classes] = -np.inf
    most = exact.max(axis=1, keepdims=True, initial=-1e30)
    others = np.log(np.exp(exact - most).sum(axis=1) + 1e-30) + most[:, 0]
    computed = logits.copy()
    computed[rows, classes] = np.maximum(others, -1e4) + np.log(999.0)
    return computed


def reduced(
    values: Array, errors: Array, recipe: Recipe, divisor: float, of_divisor: float, shape: tuple[int, ...]
) -> Expected:
    """Return a result that is reduced like the loss.

    Args:
        values, errors: the values and errors of the positions.
        recipe: the options of the loss.
        divisor: the divisor of a mean.
        of_divisor: the relative error of the divisor.
        shape: the shape of the positions.
    """
    if recipe.reduction == "none":
        return Expected(values.reshape(shape), errors.reshape(shape), np.float32)
    total, off = summed(values, errors)
    if recipe.reduction == "mean":
        total, off = total / divisor, off / abs(divisor) + abs(total / divisor) * (of_divisor + 0.5 * UNIT)
    return Expected(np.array(total), np.array(off + SMALLEST_NORMAL), np.float32)


def divisor_of(recipe: Recipe, weights: Array, errors: Array) -> tuple[float, float]:
    """Return the divisor of a mean, and its relative error."""
    if recipe.normalizer is not None:
        return recipe.normalizer, 0.0
    total, off = summed(weights, errors)
    return total, off / abs(total)
