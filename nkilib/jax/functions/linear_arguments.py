# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments of ``linear_cross_entropy`` and ``linear_token_scores``, and checks of their shapes and types.

:class:`LinearArguments` holds the arguments; :func:`check_operands` checks hidden states, weight and bias, and
:func:`check_indices` the targets. :func:`checked_scale` and :func:`checked_compute_dtype` check one option each.

V classes, D features. ``caller`` is the name of the public function, with which error messages begin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from nkilib.experimental.loss.linear.launch import (
    CLASSES_FIRST,
    CLASSES_MAX,
    FEATURES_FIRST,
    FEATURES_MAX,
    FEATURES_MIN,
    WEIGHT_LAYOUTS,
    check_logit_scale,
)
from nkilib.jax.functions.arguments import TILE_DTYPES, Array, python_numbers
from nkilib.jax.launching import check_platforms


@dataclass(frozen=True)
class LinearArguments:
    """The arguments that were passed to the public function.

    Attributes:
        input: hidden states, [..., D].
        linear_weight: [V, D], or [D, V] if ``weight_layout`` is ``"dv"``.
        target: class indices.
        linear_bias: [V], or None.
        weight_layout: ``"vd"`` or ``"dv"``.
    """

    input: Array
    linear_weight: Array
    target: Array
    linear_bias: Array | None
    weight_layout: str

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of ``input`` without its last axis, the features."""
        return self.input.shape[:-1]

    @property
    def features(self) -> int:
        """The number of features of the weight, D."""
        return self.linear_weight.shape[1 if self.weight_layout == CLASSES_FIRST else 0]

    @property
    def classes(self) -> int:
        """The number of classes, V."""
        return self.linear_weight.shape[0 if self.weight_layout == CLASSES_FIRST else 1]

    def rounding_dtype(self, compute_dtype: jnp.dtype | None) -> str | None:
        """Return the name of the type to which kernels round hidden states and weight; None if all operands have this
        type.

        Args:
            compute_dtype: the argument of the public function; None: nothing is rounded.
        """
        operands = (self.input, self.linear_weight, self.linear_bias)
        if compute_dtype is None or all(operand is None or operand.dtype == compute_dtype for operand in operands):
            return None
        return str(compute_dtype.name)


_SHAPES = {CLASSES_FIRST: "[classes, features]", FEATURES_FIRST: "[features, classes]"}


@dataclass(frozen=True)
class _Product:
    """The option ``logit_scale``, which multiplies the logits before the softcap."""

    logit_scale: float = 1.0


def checked_scale(caller: str, function: Callable[..., Any], logit_scale: Any) -> float:
    """Return ``logit_scale`` as a Python float.

    Raises:
        TypeError: ``logit_scale`` is not a number, or is an array of JAX.
        ValueError: the value is out of range.
    """
    scale = python_numbers(caller, function, _Product, {"logit_scale": logit_scale}).logit_scale
    try:
        check_logit_scale(caller, scale)
    except AssertionError as error:
        raise ValueError(str(error)) from None
    return scale


def checked_compute_dtype(caller: str, compute_dtype: Any) -> jnp.dtype | None:
    """Return ``compute_dtype`` as a type of numpy, or None if it is None.

    Raises:
        TypeError: the argument is not a type.
        ValueError: the type is not bfloat16, float16 or float32.
    """
    if compute_dtype is None:
        return None
    try:
        dtype = jnp.dtype(compute_dtype)
    except TypeError:
        raise TypeError(
            f"{caller}: compute_dtype must be a type such as jnp.bfloat16 or None, got {compute_dtype!r}"
        ) from None
    if dtype not in TILE_DTYPES:
        raise ValueError(f"{caller}: compute_dtype must be bfloat16, float16, float32 or None, got {dtype}")
    return dtype


def _check_shapes(caller: str, arguments: LinearArguments) -> None:
    layout, shape = arguments.weight_layout, arguments.linear_weight.shape
    if layout not in WEIGHT_LAYOUTS:
        raise ValueError(
            f'{caller}: weight_layout must be "vd", [classes, features], or "dv", [features, classes], got {layout!r}'
        )
    if arguments.input.ndim == 0:
        raise ValueError(f"{caller}: input must have the features as its last axis, got shape (); pass [D] or [..., D]")
    if len(shape) != 2:
        raise ValueError(f"{caller}: linear_weight must be {_SHAPES[layout]}, got shape {shape}; reshape it")
    features = arguments.input.shape[-1]
    if arguments.features != features:
        other_layout = FEATURES_FIRST if layout == CLASSES_FIRST else CLASSES_FIRST
        remedy = f"; pass weight_layout={other_layout!r} for its transpose" if arguments.classes == features else ""
        raise ValueError(
            f"{caller}: linear_weight must be {_SHAPES[layout]} by weight_layout={layout!r} with the {features} "
            f"features of input, got shape {shape}{remedy}"
        )
    if not FEATURES_MIN <= features <= FEATURES_MAX:
        raise ValueError(
            f"{caller}: the kernels take {FEATURES_MIN} to {FEATURES_MAX} features, got {features}; pad fewer with "
            f"zeros in input and linear_weight, for more pass the logits to nkilib.jax.cross_entropy"
        )
    if not 1 <= arguments.classes <= CLASSES_MAX:
        raise ValueError(
            f"{caller}: linear_weight must have 1 to {CLASSES_MAX} classes, got shape {shape}; there is no launch for "
            f"a larger vocabulary"
        )
    if arguments.linear_bias is not None and arguments.linear_bias.shape != (arguments.classes,):
        raise ValueError(
            f"{caller}: linear_bias must have a number for each class, shape {(arguments.classes,)}, got "
            f"{arguments.linear_bias.shape}"
        )


def _check_dtypes(caller: str, arguments: LinearArguments, compute_dtype: jnp.dtype | None) -> None:
    input, weight, bias = arguments.input, arguments.linear_weight, arguments.linear_bias
    for name, array in (("input", input), ("linear_weight", weight), ("linear_bias", bias)):
        if array is not None and array.dtype not in TILE_DTYPES:
            raise TypeError(
                f"{caller}: the kernels take {name} in bfloat16, float16 or float32, got {array.dtype}; pass "
                f"{name}.astype(jnp.float32)"
            )
    if compute_dtype is not None:
        return
    if weight.dtype != input.dtype:
        raise TypeError(
            f"{caller}: input and linear_weight must have the same dtype, got {input.dtype} and {weight.dtype}; cast "
            f"one, or pass compute_dtype"
        )
    if bias is not None and bias.dtype not in (input.dtype, jnp.float32):
        raise TypeError(
            f"{caller}: linear_bias must have the dtype of input, {input.dtype}, or float32, got {bias.dtype}; cast "
            f"it, or pass compute_dtype"
        )


def check_operands(caller: str, arguments: LinearArguments, compute_dtype: jnp.dtype | None, **further: Any) -> None:
    """Check that hidden states, weight and bias fit each other, and that the kernels take them.

    Args:
        caller: the name that errors begin with.
        arguments: the arguments; for the target, the only check is that it is an array.
        compute_dtype: the type of the products; None: the type of the operands.
        further: other arguments that must be arrays or None, by name.

    Raises:
        TypeError: an argument is not an array, or has a type that the kernels do not take.
        ValueError: shapes do not fit; ``weight_layout`` is unknown.
        NotImplementedError: an array is on a platform on which the kernels do not run.
    """
    required = {"input": arguments.input, "linear_weight": arguments.linear_weight, "target": arguments.target}
    arrays = {**required, "linear_bias": arguments.linear_bias, **further}
    for name, value in arrays.items():
        if not (isinstance(value, Array) or (value is None and name not in required)):
            raise TypeError(
                f"{caller}: {name} must be an array of JAX or numpy, got {type(value).__name__}; pass jnp.asarray(...)"
            )
    check_platforms(caller, arrays)
    _check_shapes(caller, arguments)
    _check_dtypes(caller, arguments, compute_dtype)


def check_indices(caller: str, arguments: LinearArguments, shape: tuple[int, ...]) -> None:
    """Check that targets are class indices of the given shape.

    Raises:
        TypeError: the targets are not integers.
        ValueError: the targets have another shape.
    """
    if not jnp.issubdtype(arguments.target.dtype, jnp.integer):
        raise TypeError(
            f"{caller}: target must be class indices, integers, got {arguments.target.dtype}; for class probabilities "
            f"multiply, and pass the logits to nkilib.jax.cross_entropy"
        )
    if arguments.target.shape != shape:
        raise ValueError(
            f"{caller}: target must have the shape of input, {arguments.input.shape}, without the features, {shape}, "
            f"got {arguments.target.shape}"
        )
