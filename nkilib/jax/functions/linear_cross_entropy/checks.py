# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the functions of hidden states refuse, from shapes and types alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from nkilib.experimental.loss.linear.shared.launch import (
    CLASSES_FIRST,
    CLASSES_MAX,
    FEATURES_FIRST,
    FEATURES_MAX,
    FEATURES_MIN,
    WEIGHT_LAYOUTS,
    check_logit_scale,
)
from nkilib.jax.dispatch.platforms import check_platforms
from nkilib.jax.functions.cross_entropy.checks import python_numbers
from nkilib.jax.functions.cross_entropy.kernels import TILE_DTYPES
from nkilib.jax.functions.cross_entropy.targets import Array
from nkilib.jax.functions.linear_cross_entropy.arguments import LinearArguments

_SHAPES = {CLASSES_FIRST: "[classes, features]", FEATURES_FIRST: "[features, classes]"}


@dataclass(frozen=True)
class _Product:
    """The number that is compiled in for product and bias."""

    logit_scale: float = 1.0


def checked_scale(caller: str, function: Callable[..., Any], logit_scale: Any) -> float:
    """``logit_scale`` as a Python float.

    Raises:
        TypeError: no number, or an array of JAX.
        ValueError: out of range.
    """
    scale = python_numbers(caller, function, _Product, {"logit_scale": logit_scale}).logit_scale
    try:
        check_logit_scale(caller, scale)
    except AssertionError as error:
        raise ValueError(str(error)) from None
    return scale


def checked_compute_dtype(caller: str, compute_dtype: Any) -> jnp.dtype | None:
    """``compute_dtype`` as a type of numpy.

    Raises:
        TypeError: it is no type.
        ValueError: products do not have it.
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


def check_operands(caller: str, given: LinearArguments, compute_dtype: jnp.dtype | None, **further: Any) -> None:
    """Refuse operands that do not fit each other, or that the kernels do not take.

    Args:
        caller: who is named in errors.
        given: the arguments; their target is looked at for being an array alone.
        compute_dtype: of the products; None: that of the operands.
        further: other arguments that are arrays or None, by name.

    Raises:
        TypeError: an argument is no array, or of a type that the kernels do not take.
        ValueError: shapes do not fit; no such ``weight_layout``.
        NotImplementedError: arrays are not where the kernels run.
    """
    required = {"input": given.input, "linear_weight": given.linear_weight, "target": given.target}
    arrays = {**required, "linear_bias": given.linear_bias, **further}
    for name, value in arrays.items():
        if not (isinstance(value, Array) or (value is None and name not in required)):
            raise TypeError(
                f"{caller}: {name} must be an array of JAX or numpy, got {type(value).__name__}; pass jnp.asarray(...)"
            )
    check_platforms(caller, arrays)
    _check_shapes(caller, given)
    _check_dtypes(caller, given, compute_dtype)


def check_indices(caller: str, given: LinearArguments, shape: tuple[int, ...]) -> None:
    """Refuse targets that are no class indices of the shape.

    Raises:
        TypeError: they are not integers.
        ValueError: they have another shape.
    """
    if not jnp.issubdtype(given.target.dtype, jnp.integer):
        raise TypeError(
            f"{caller}: target must be class indices, integers, got {given.target.dtype}; for class probabilities "
            f"multiply, and pass the logits to nkilib.jax.cross_entropy"
        )
    if given.target.shape != shape:
        raise ValueError(
            f"{caller}: target must have the shape of input, {given.input.shape}, without the features, {shape}, got "
            f"{given.target.shape}"
        )


def _check_shapes(caller: str, given: LinearArguments) -> None:
    layout, shape = given.weight_layout, given.linear_weight.shape
    if layout not in WEIGHT_LAYOUTS:
        raise ValueError(
            f'{caller}: weight_layout must be "vd", [classes, features], or "dv", [features, classes], got {layout!r}'
        )
    if given.input.ndim == 0:
        raise ValueError(f"{caller}: input must have the features as its last axis, got shape (); pass [D] or [..., D]")
    if len(shape) != 2:
        raise ValueError(f"{caller}: linear_weight must be {_SHAPES[layout]}, got shape {shape}; reshape it")
    features = given.input.shape[-1]
    if given.features != features:
        other = FEATURES_FIRST if layout == CLASSES_FIRST else CLASSES_FIRST
        remedy = f"; pass weight_layout={other!r} for its transpose" if given.classes == features else ""
        raise ValueError(
            f"{caller}: linear_weight must be {_SHAPES[layout]} by weight_layout={layout!r} with the {features} "
            f"features of input, got shape {shape}{remedy}"
        )
    if not FEATURES_MIN <= features <= FEATURES_MAX:
        raise ValueError(
            f"{caller}: the kernels take {FEATURES_MIN} to {FEATURES_MAX} features, got {features}; pad fewer with "
            f"zeros in input and linear_weight, for more pass the logits to nkilib.jax.cross_entropy"
        )
    if not 1 <= given.classes <= CLASSES_MAX:
        raise ValueError(
            f"{caller}: linear_weight must have 1 to {CLASSES_MAX} classes, got shape {shape}; there is no launch for "
            f"a larger vocabulary"
        )
    if given.linear_bias is not None and given.linear_bias.shape != (given.classes,):
        raise ValueError(
            f"{caller}: linear_bias must have a number for each class, shape {(given.classes,)}, got "
            f"{given.linear_bias.shape}"
        )


def _check_dtypes(caller: str, given: LinearArguments, compute_dtype: jnp.dtype | None) -> None:
    input, weight, bias = given.input, given.linear_weight, given.linear_bias
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
