# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of losses and scores of hidden states, before anything is compiled: they say who refuses, what is required,
what came and what to do.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.jax import linear_cross_entropy, linear_token_scores
from tests.jax.linear_inputs import CLASSES, POSITIONS, make_operands, make_targets

X, W, B = make_operands()
TARGET = make_targets()
# Of numpy, for the cases below: collection waits for each operation that JAX compiles.
HIDDEN, WEIGHT, BIAS, LABELS = (np.asarray(array) for array in (X, W, B, TARGET))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((np.zeros((6, 16)), W, TARGET), {}, TypeError, r"input in bfloat16, .* got float64; pass input.astype"),
        (
            (X, jnp.asarray(WEIGHT.astype(np.int32)), TARGET),
            {},
            TypeError,
            r"linear_weight in bfloat16, .*, got int32; pass linear_wei",
        ),
        ((X, [[1.0]], TARGET), {}, TypeError, r"linear_weight must be an array of JAX or numpy, got list; pass jnp"),
        (
            (X, jnp.asarray(WEIGHT.astype(jnp.bfloat16)), TARGET),
            {},
            TypeError,
            r"same dtype, got float32 and bfloat16; cast one, or pass",
        ),
        (
            (X, W, TARGET),
            {"linear_bias": jnp.asarray(BIAS.astype(np.float16))},
            TypeError,
            r"linear_bias must have the dtype of input",
        ),
        (
            (X, W, TARGET),
            {"linear_bias": jnp.asarray(BIAS[:3])},
            ValueError,
            r"linear_bias must have .* shape \(20,\), got \(3,\)",
        ),
        (
            (X, jnp.asarray(WEIGHT.T), TARGET),
            {},
            ValueError,
            r"the 16 features of input, .*\(16, 20\); pass weight_layout='dv' for its",
        ),
        ((X, W, TARGET), {"weight_layout": "dv"}, ValueError, r"\[features, classes\] by .* pass weight_layout='vd'"),
        ((X, W, TARGET), {"weight_layout": "VD"}, ValueError, r'weight_layout must be "vd", .* got \'VD\''),
        (
            (X, jnp.asarray(WEIGHT[0]), TARGET),
            {},
            ValueError,
            r"linear_weight must be \[classes, features\], got shape \(16,\); reshape",
        ),
        (
            (jnp.asarray(HIDDEN[:, :8]), jnp.asarray(WEIGHT[:, :8]), TARGET),
            {},
            ValueError,
            r"take 16 to 16384 features, got 8; pad fewer with zeros",
        ),
        (
            (jnp.asarray(HIDDEN[0, 0]), W, TARGET),
            {},
            ValueError,
            r"input must have the features as its last axis, got shape \(\)",
        ),
        (
            (X, jnp.asarray(WEIGHT[:0]), TARGET),
            {},
            ValueError,
            r"linear_weight must have 1 to 16777216 classes, got shape \(0, 16\)",
        ),
        ((X, W, jnp.asarray(LABELS[:4])), {}, ValueError, r"\(6, 16\), without the features, \(6,\), got \(4,\)$"),
        ((X, W, X), {}, TypeError, r"target must be class indices, integers, got float32; for class probabilities"),
        (
            (X, W, TARGET),
            {"compute_dtype": jnp.float8_e4m3fn},
            ValueError,
            r"compute_dtype must be .* got float8_e4m3fn",
        ),
        ((X, W, TARGET), {"compute_dtype": "half a byte"}, TypeError, r"compute_dtype must be a type .* 'half a byte'"),
        (
            (X, W, TARGET),
            {"weight": jnp.asarray(np.ones(3, np.float32))},
            ValueError,
            r"weight must have a number for each class, .*\(3,\)",
        ),
        ((X, W, TARGET), {"reduction": "Mean"}, ValueError, r"'Mean' is not a valid value for reduction; pass mean"),
        ((X, W, TARGET), {"logit_scale": 0.0}, ValueError, r"logit_scale must be a number from .* got 0.0; pass 1.0"),
        (
            (X, W, TARGET),
            {"logit_scale": jnp.asarray(np.float32(1.0))},
            TypeError,
            r"logit_scale must be a Python number, which is",
        ),
        ((X, W, TARGET), {"temperature": 0.0}, ValueError, r"temperature must be a number from .* got 0.0; pass 1.0"),
        ((X, W, TARGET), {"normalizer": 2, "reduction": "sum"}, ValueError, r"divisor of a mean, got reduction='sum'"),
        ((X, W, np.full(POSITIONS, CLASSES)), {}, IndexError, r"target at position \[0\] must be a class from 0 to 19"),
    ],
)
def test_refused(arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"linear_cross_entropy: .*{message}"):
        linear_cross_entropy(*arguments, **options)


def test_a_class_that_does_not_exist_is_nan_where_targets_are_traced() -> None:
    """The loss of such a position and its row of the gradient are NaN; the other positions are as they were."""
    wrong, others = TARGET.at[2].set(CLASSES), np.arange(POSITIONS) != 2

    @jax.jit
    def step(target: jax.Array) -> Any:
        def total(x: jax.Array) -> Any:
            losses = linear_cross_entropy(x, W, target, reduction="none")
            return losses.sum(), losses

        return jax.grad(total, has_aux=True)(X)

    for item, right in zip(step(wrong), step(TARGET), strict=True):
        assert jnp.isnan(item[2]).all()
        np.testing.assert_array_equal(item[others], right[others])


# Of numpy, for the cases below: collection waits for each operation that JAX compiles.
SCORED = np.asarray(TARGET)


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        (TARGET, {"outputs": "entropy"}, TypeError, r"'outputs' must be an iterable of names, .* pass \('entropy',\)"),
        (TARGET, {"outputs": ("variance",)}, ValueError, r"outputs must be among entropy, lse, .*, got 'variance'"),
        (
            TARGET,
            {"logit_scale": jnp.asarray(np.float32(1.0))},
            TypeError,
            r"logit_scale must be a Python number, which is compiled",
        ),
        (TARGET, {"temperature": 1e-7}, ValueError, r"temperature must be a number from 1e-06 to"),
        (TARGET, {"logit_scale": -1.0}, ValueError, r"logit_scale must be a number from 1e-06 to .* got -1.0"),
        (TARGET, {"weight_layout": "dv"}, ValueError, r"linear_weight must be \[features, classes\] .* pass weight_la"),
        (jnp.asarray(SCORED[:4]), {}, ValueError, r"target must have the shape of input, .* \(6,\), got \(4,\)"),
        (
            jnp.asarray(SCORED[:4, None]),
            {},
            ValueError,
            r"target must have the shape of input, .* \(6, 1\), got \(4, 1\)",
        ),
        (
            jnp.asarray(np.zeros((6, 65), np.int32)),
            {},
            ValueError,
            r"target may have 1 to 64 ids of each position, .*\(6, 65\)",
        ),
        (
            jnp.asarray(SCORED.astype(np.float32)),
            {},
            TypeError,
            r"target must be class indices, integers, got float32",
        ),
        (np.full((6, 2), CLASSES), {}, IndexError, r"target at position \[0, 0\] must be a class from 0 to 19"),
    ],
)
def test_scores_refused(target: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"linear_token_scores: .*{message}"):
        linear_token_scores(X, W, target, **options)


def test_the_score_of_a_class_that_does_not_exist_is_nan_where_targets_are_traced() -> None:
    """The log-probability of that id alone, and the gradient of its position."""
    target = jnp.stack([TARGET, TARGET], -1)

    @jax.jit
    def step(target: jax.Array) -> Any:
        def total(x: jax.Array) -> Any:
            logprob = linear_token_scores(x, W, target).logprob
            return logprob.sum(), logprob

        return jax.grad(total, has_aux=True)(X)

    (gradient, logprob), (expected, kept) = step(target.at[2, 1].set(-5)), step(target)
    assert jnp.isnan(logprob[2, 1]) and logprob[2, 0] == kept[2, 0]
    others = np.arange(POSITIONS) != 2
    assert jnp.isnan(gradient[2]).all()
    np.testing.assert_array_equal(gradient[others], expected[others])


def test_there_is_no_second_derivative() -> None:
    inner = jax.grad(lambda x: linear_token_scores(x, W, TARGET).logprob.sum())
    with pytest.raises(NotImplementedError, match=r"^linear_token_scores: the gradients have no derivative here"):
        jax.grad(lambda x: inner(x).sum())(X)
