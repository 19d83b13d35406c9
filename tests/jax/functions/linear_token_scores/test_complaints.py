# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals before anything is compiled: they say who refuses, what is required, what came and what to do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.jax import linear_token_scores
from tests.jax.linear_inputs import CLASSES, POSITIONS, make_operands, make_targets

X, W, B = make_operands()
TARGET = make_targets()
# Of numpy, for the cases below: collection waits for each operation that JAX compiles.
LABELS = np.asarray(TARGET)


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        (TARGET, {"outputs": "entropy"}, TypeError, r"'outputs' must be an iterable of names, .* pass \('entropy',\)"),
        (TARGET, {"outputs": ("variance",)}, ValueError, r"outputs must be among entropy, lse, .*, got 'variance'"),
        (
            TARGET,
            {"temperature": jnp.asarray(np.float32(1.0))},
            TypeError,
            r"temperature must be a Python number, which is compiled",
        ),
        (TARGET, {"temperature": 1e-7}, ValueError, r"temperature must be a number from 1e-06 to"),
        (TARGET, {"logit_scale": -1.0}, ValueError, r"logit_scale must be a number from 1e-06 to .* got -1.0"),
        (TARGET, {"weight_layout": "dv"}, ValueError, r"linear_weight must be \[features, classes\] .* pass weight_la"),
        (jnp.asarray(LABELS[:4]), {}, ValueError, r"target must have the shape of input, .* \(6,\), got \(4,\)"),
        (
            jnp.asarray(LABELS[:4, None]),
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
        (jnp.asarray(LABELS.astype(np.float32)), {}, TypeError, r"target must be class indices, integers, got float32"),
        (np.full((6, 2), CLASSES), {}, IndexError, r"target at position \[0, 0\] must be a class from 0 to 19"),
    ],
)
def test_refused(target: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"linear_token_scores: .*{message}"):
        linear_token_scores(X, W, target, **options)


def test_a_class_that_does_not_exist_is_nan_where_targets_are_traced() -> None:
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
