# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradients from hidden states against float64 and derived bounds: types, layouts, options, reductions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy.host.reference import BackwardInputs
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    linear_forward_reference,
)
from nkilib.jax import linear_cross_entropy
from tests.jax.linear_inputs import (
    CLASSES,
    FEATURES,
    POSITIONS,
    Operands,
    assert_within,
    make_operands,
    make_targets,
    problem_of,
)

RECIPE: dict[str, Any] = {
    "label_smoothing": 0.1,
    "logit_softcap": 8.0,
    "lse_square_scale": 1e-2,
    "temperature": 0.7,
    "logit_scale": 1.5,
}
WEIGHT = jnp.asarray((0.5 + np.random.default_rng(3).random(CLASSES)).astype(np.float32))


def assert_loss_and_gradients(
    loss: jax.Array, gradients: Any, problem: LinearProblem, operands: Operands, divisor: float
) -> None:
    """Check a sum of losses over ``divisor``, and the gradients of all operands in their types."""
    result = linear_forward_reference(problem)
    assert loss.dtype == jnp.float32
    assert_within(loss, result.loss.sum() / divisor, linear_forward_bounds(problem)["loss"].sum() / divisor)
    upstream = BackwardInputs(result.lse, np.full(POSITIONS, 1.0 / divisor, np.float32))
    types = {"input_dtype": operands.input.dtype, "weight_dtype": operands.weight.dtype}
    exact, bounds = linear_gradients_and_bounds(problem, upstream, **types)
    for gradient, operand, values, bound in zip(gradients, operands, exact, bounds, strict=True):
        assert gradient.dtype == operand.dtype
        assert_within(gradient, values, bound)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_mean_with_ignored_positions(dtype: Any) -> None:
    operands, target = make_operands(dtype), make_targets(ignored=-100)

    def loss(input: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return linear_cross_entropy(input, weight, target, linear_bias=bias)

    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*operands)
    assert_loss_and_gradients(value, gradients, problem_of(operands, target), operands, 4.0)
    assert not np.asarray(gradients[0])[1::3].any()


def test_all_options_of_a_weight_with_features_first() -> None:
    """[batch, sequence, D], targets of numpy, and the weight as Flax has it."""
    operands, target = make_operands(), make_targets(ignored=7)

    def loss(input: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return linear_cross_entropy(
            input.reshape(2, 3, FEATURES),
            weight,
            np.asarray(target, np.int64).reshape(2, 3),
            linear_bias=bias,
            weight=WEIGHT,
            ignore_index=7,
            weight_layout="dv",
            **RECIPE,
        )

    inputs = (operands.input, operands.weight.T, operands.bias)
    value, (of_input, of_weight, of_bias) = jax.value_and_grad(loss, (0, 1, 2))(*inputs)
    divisor = float(np.asarray(WEIGHT, np.float64)[np.asarray(target)[np.asarray(target) != 7]].sum())
    problem = problem_of(operands, target, class_weight=WEIGHT, ignore_index=7, **RECIPE)
    assert_loss_and_gradients(value, (of_input, of_weight.T, of_bias), problem, operands, divisor)


def test_operands_that_are_rounded_for_the_products() -> None:
    """float32 hidden states, a bfloat16 weight: gradients have the type of their operand."""
    operands, target = make_operands(jnp.float32, jnp.bfloat16, jnp.float32), make_targets()

    def loss(input: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return linear_cross_entropy(
            input, weight, target, linear_bias=bias, compute_dtype=jnp.bfloat16, reduction="sum"
        )

    value, gradients = jax.value_and_grad(loss, (0, 1, 2))(*operands)
    problem = problem_of(operands, target, compute_dtype=jnp.bfloat16)
    assert_loss_and_gradients(value, gradients, problem, operands, 1.0)


def test_outputs_and_their_gradients() -> None:
    """Losses apart; upstream gradients of loss, log-probability, log-sum-exp and entropy in one backward."""
    operands, target = make_operands(), make_targets(ignored=-100)
    problem = problem_of(operands, target)
    result, bounds = linear_forward_reference(problem), linear_forward_bounds(problem)
    valid = np.asarray(target) != -100
    upstream = {
        name: np.random.default_rng(seed).standard_normal(POSITIONS).astype(np.float32)
        for seed, name in enumerate(("loss", "logprob", "lse", "entropy"))
    }

    def total(input: jax.Array, weight: jax.Array, bias: jax.Array) -> Any:
        outputs = linear_cross_entropy(input, weight, target, linear_bias=bias, reduction="none", return_outputs=True)
        return sum((getattr(outputs, name) * values).sum() for name, values in upstream.items()), outputs

    gradients, outputs = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*operands)
    assert_within(outputs.loss, result.loss, bounds["loss"])
    assert_within(outputs.lse, result.lse, bounds["lse"])
    assert_within(outputs.logprob, np.where(valid, -result.loss, 0.0), bounds["loss"])
    assert_within(outputs.entropy, result.entropy, bounds["entropy"])
    assert outputs.argmax.dtype == jnp.int32 and outputs.argmax.tolist() == result.argmax.tolist()
    assert not outputs.z_loss.any()
    of_loss, of_logprob, of_lse, of_entropy = upstream.values()
    inputs = BackwardInputs(result.lse, of_loss, of_lse, of_logprob, result.entropy, of_entropy)
    exact, room = linear_gradients_and_bounds(problem, inputs)
    for gradient, values, bound in zip(gradients, exact, room, strict=True):
        assert_within(gradient, values, bound)


def test_no_position_counts_or_is_there() -> None:
    operands, ignored = make_operands(), jnp.full((POSITIONS,), -100)
    loss, gradients = jax.value_and_grad(linear_cross_entropy, (0, 1))(*operands[:2], ignored)
    assert jnp.isnan(loss) and not gradients[0].any() and not gradients[1].any()
    of_none = jax.grad(lambda *given: linear_cross_entropy(*given, ignored[:0], reduction="sum"), (0, 1))
    gradients = of_none(operands.input[:0], operands.weight)
    assert gradients[0].shape == (0, FEATURES) and gradients[1].shape == (CLASSES, FEATURES) and not gradients[1].any()
