# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launching the extended kernels, and holding their results against the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.experimental.loss import extended_cross_entropy_backward, extended_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.bounds import (
    bfloat16_allowance,
    error_over_bound,
    extended_forward_bounds,
    extended_gradient_bound,
    float16_allowance,
)
from nkilib.experimental.loss.cross_entropy.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)
from nkilib.simulator import using

from .loss_checks import as_nl
from .loss_inputs import BF16, FP16

Array = npt.NDArray[Any]


def temperature_of(options: ExtendedLoss) -> dict[str, Any]:
    """The keyword argument of a kernel for the temperature, a number or a tensor."""
    return {"temperature" if isinstance(options.temperature, float) else "temperature_hbm": options.temperature}


@dataclass(frozen=True)
class Launch:
    """How the kernels are launched; nothing of it changes the reference."""

    dtype: Any
    cores: int = 2
    positions_per_batch: int = 8
    chunk_size: int = 30

    def arguments(self, options: ExtendedLoss) -> dict[str, Any]:
        """Keyword arguments of both kernels; the class weights are among them."""
        return {
            "positions_per_batch": self.positions_per_batch,
            "chunk_size": self.chunk_size,
            "dtype": as_nl(self.dtype),
            "class_weight_hbm": options.class_weight,
            "ignore_index": options.ignore_index,
            "label_smoothing": options.label_smoothing,
            "logit_softcap": options.logit_softcap,
            "lse_square_scale": options.lse_square_scale,
            **temperature_of(options),
        }


@dataclass(frozen=True)
class Upstream:
    """Gradients of what the forward returns."""

    loss: Array
    lse: Array | None = None
    logprob: Array | None = field(default=None)
    entropy: Array | None = field(default=None)


def forward(logits: Array, targets: Array, options: ExtendedLoss, launch: Launch, **more: Any) -> dict[str, Array]:
    """The results of the forward by name."""
    with using(uninitialized="error"):
        results = extended_cross_entropy_forward[launch.cores](logits, targets, **launch.arguments(options), **more)
    names = ["loss", "lse", "target_logit", "position_weight"]
    names += [name for name in ("argmax", "entropy", "distance_sum") if more.get(f"with_{name}")]
    names += ["maximum", "log_sum"] if more.get("with_log_sum") else []
    assert len(results) == len(names)
    return dict(zip(names, results, strict=True))


def backward(
    logits: Array, targets: Array, lse: Array, upstream: Upstream, options: ExtendedLoss, launch: Launch, **more: Any
) -> Array:
    """Launch the extended backward and return the gradient."""
    with using(uninitialized="error"):
        return extended_cross_entropy_backward[launch.cores](
            logits,
            targets,
            lse,
            upstream.loss,
            grad_lse_hbm=upstream.lse,
            grad_logprob_hbm=upstream.logprob,
            grad_entropy_hbm=upstream.entropy,
            **launch.arguments(options),
            **more,
        )


def check_forward(
    logits: Array, targets: Array, options: ExtendedLoss, launch: Launch, **more: Any
) -> dict[str, Array]:
    """Run the forward, hold every result against the oracle, and return them by name."""
    results = forward(logits, targets, options, launch, **more)
    expected = extended_forward_reference(logits, targets, launch.dtype, options)
    bounds = extended_forward_bounds(logits, targets, launch.dtype, options)
    for name, values in results.items():
        assert values.shape == logits.shape[:1], name
        if name in ("maximum", "log_sum"):  # held by test_extended_log_sum
            continue
        if name == "argmax":
            assert values.dtype == np.int32
            np.testing.assert_array_equal(values, expected.argmax)
            continue
        assert values.dtype == np.float32, name
        with np.errstate(over="ignore"):  # a sum beyond the range of float32 is infinite
            exact = getattr(expected, name)
            exact = np.where(np.isinf(exact.astype(np.float32)), np.copysign(np.inf, exact), exact)
        ratio = error_over_bound(values, exact, bounds[name]).max()
        assert ratio <= 1.0, f"{name}: worst error is {ratio:.3g} times the bound"
    return results


def check_backward(
    logits: Array,
    targets: Array,
    lse: Array,
    upstream: Upstream,
    options: ExtendedLoss,
    launch: Launch,
    *,
    inplace: bool = False,
    **more: Any,
) -> Array:
    """Run the backward on a copy of ``logits``, hold it against the oracle, and return the gradient."""
    array = logits.copy()
    gradient = backward(array, targets, lse, upstream, options, launch, inplace=inplace, **more)
    assert gradient.shape == logits.shape
    assert (gradient is array) == inplace
    if inplace:
        assert gradient.dtype == logits.dtype
    else:
        assert gradient.dtype == launch.dtype
        assert array.tobytes() == logits.tobytes(), "not in place, the logits keep every byte"
    assert_gradient(gradient, logits, targets, lse, upstream, options, launch.dtype, more.get("entropy_hbm"))
    return gradient


def assert_gradient(
    gradient: Array,
    logits: Array,
    targets: Array,
    lse: Array,
    upstream: Upstream,
    options: ExtendedLoss,
    dtype: Any,
    entropy: Array | None = None,
) -> None:
    """Errors of a gradient are within ``extended_gradient_bound``."""
    inputs = BackwardInputs(lse, upstream.loss, upstream.lse, upstream.logprob, entropy, upstream.entropy)
    expected = extended_backward_reference(logits, targets, dtype, options, inputs)
    bounds = extended_gradient_bound(logits, targets, dtype, options, inputs)
    if BF16 in (dtype, gradient.dtype):
        bounds = bounds + bfloat16_allowance(expected)
    if FP16 in (dtype, gradient.dtype):
        bounds = bounds + float16_allowance(expected)
    ratio = error_over_bound(gradient, expected, bounds).max()
    assert ratio <= 1.0, f"gradient: worst error is {ratio:.3g} times the bound"
