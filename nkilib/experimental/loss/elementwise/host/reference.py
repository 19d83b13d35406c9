"""What the kernels should give, in float64 from the very inputs that they get: numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Float64Array: TypeAlias = npt.NDArray[np.float64]


class KlDivGradients(NamedTuple):
    """By the input and by the target, before the upstream gradient."""

    input: Float64Array
    target: Float64Array


def reduction_factor(shape: tuple[int, ...], reduction: str) -> float:
    """What the sum of the losses is multiplied by; 1 for ``"none"``."""
    divisors = {"none": 1, "sum": 1, "mean": int(np.prod(shape)), "batchmean": shape[0] if shape else 1}
    return 1.0 / divisors[reduction]


def kl_div_reference(input: npt.NDArray[Any], target: npt.NDArray[Any], log_target: bool) -> Float64Array:
    """The divergence of each element.

    PyTorch equivalent: ``F.kl_div(input.double(), target.double(), reduction="none", log_target=log_target)``.
    """
    x, t = input.astype(np.float64), target.astype(np.float64)
    with np.errstate(all="ignore"):
        if log_target:
            return np.exp(t) * (t - x)
        return np.where(t == 0.0, 0.0, t * np.log(t)) - t * x


def kl_div_gradients_reference(input: npt.NDArray[Any], target: npt.NDArray[Any], log_target: bool) -> KlDivGradients:
    """Derivatives of the divergence of each element, NaN by a target of 0 as autograd gives it in PyTorch."""
    x, t = input.astype(np.float64), target.astype(np.float64)
    with np.errstate(all="ignore"):
        if log_target:
            return KlDivGradients(-np.exp(t), np.exp(t) * (t - x + 1.0))
        return KlDivGradients(-t, np.where(t == 0.0, np.nan, np.log(t) + 1.0 - x))
