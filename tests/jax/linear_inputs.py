# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Hidden states, output layers and targets for tests, seeded; float64 results and bounds are those of the kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem

POSITIONS, FEATURES, CLASSES = 6, 16, 20
# What a few operations in float32 around the kernels add: reductions, and an upstream gradient that is rounded.
_AROUND = 8.0 * 2.0**-24


class Operands(NamedTuple):
    """Arrays of JAX: ``input`` [N, D], ``weight`` [V, D] and ``bias`` [V]."""

    input: jax.Array
    weight: jax.Array
    bias: jax.Array


def make_operands(dtype: Any = jnp.float32, weight_dtype: Any = None, bias_dtype: Any = jnp.float32) -> Operands:
    """Normal operands whose logits spread by about 3, each rounded to its type."""
    rng = np.random.default_rng(0)
    shapes = ((POSITIONS, FEATURES), (CLASSES, FEATURES), (CLASSES,))
    values = [rng.standard_normal(shape) for shape in shapes]
    values[1] *= 3.0 / np.sqrt(FEATURES)
    types = (dtype, weight_dtype or dtype, bias_dtype)
    return Operands(*(jnp.asarray(value.astype(kind)) for value, kind in zip(values, types, strict=True)))


def make_targets(*shape: int, ignored: int | None = None) -> jax.Array:
    """int32 class indices, [N] unless a shape is given; with ``ignored``, every third one is that."""
    target = np.random.default_rng(1).integers(CLASSES, size=shape or (POSITIONS,)).astype(np.int32)
    if ignored is not None:
        target.reshape(-1)[1::3] = ignored
    return jnp.asarray(target)


def problem_of(
    operands: Operands,
    target: jax.Array,
    *,
    compute_dtype: Any = None,
    class_weight: jax.Array | None = None,
    logit_scale: float = 1.0,
    **options: Any,
) -> LinearProblem:
    """The float64 problem of operands that are rounded to ``compute_dtype``, and the kernels' float32 bias."""
    dtype = operands.input.dtype if compute_dtype is None else compute_dtype
    input, weight = (np.asarray(operand).astype(dtype) for operand in operands[:2])
    bias = np.asarray(operands.bias).astype(np.float32)
    weights = None if class_weight is None else np.asarray(class_weight)
    loss = ExtendedLoss(weights, **options)
    return LinearProblem(input, weight, np.asarray(target), bias, loss, logit_scale=logit_scale)


def assert_within(actual: Any, exact: Any, bound: Any) -> None:
    """``actual`` is within derived bounds of ``exact``, float64; zeros, flipped signs and a transposition are not."""
    result, exact = np.asarray(actual).astype(np.float64), np.asarray(exact, np.float64)
    assert result.shape == exact.shape
    room = np.asarray(bound) + _AROUND * np.abs(exact).max()
    assert (np.abs(result - exact) <= room).all(), np.abs(result - exact).max()
    for name, wrong in _wrong_results(exact).items():
        assert not (np.abs(wrong - exact) <= room).all(), f"the comparison accepts a result that is {name}"


def _wrong_results(exact: np.ndarray) -> dict[str, np.ndarray]:
    wrong = {"all zero": np.zeros_like(exact), "of flipped sign": -exact}
    if exact.ndim == 1 and exact.size > 1:
        wrong["reversed"] = exact[::-1]
    if exact.ndim > 1:
        wrong["transposed"] = np.moveaxis(exact, 0, -1).reshape(exact.shape)
    return wrong
