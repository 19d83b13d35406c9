"""What the kernels should give, in float64 from the very inputs that they get: numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.core.host.exact import Float64Array


class KlDivGradients(NamedTuple):
    """By the input and by the target, before the upstream gradient."""

    input: Float64Array
    target: Float64Array


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
