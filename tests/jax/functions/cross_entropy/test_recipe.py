# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The options of training recipes beside the float64 reference, and what is returned beside the loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.jax import CrossEntropyOutputs, cross_entropy
from tests.jax.inputs import (
    CLASSES,
    DTYPES,
    POSITIONS,
    make_logits,
    make_probabilities,
    make_targets,
    make_weight,
    of_reference,
)
from tests.jax.telling import assert_gradient, assert_loss

RECIPE: dict[str, Any] = {"label_smoothing": 0.1, "logit_softcap": 5.0, "lse_square_scale": 1e-2}


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_options_with_class_indices(dtype: Any) -> None:
    x, target, weight = make_logits(dtype=dtype), make_targets(ignored=7), make_weight()
    exact = of_reference(x, target, weight, ignore_index=7, **RECIPE)
    counted = np.asarray(target) != 7
    divisor = np.asarray(weight, np.float64)[np.asarray(target)[counted]].sum()
    assert 0 < counted.sum() < POSITIONS

    step = jax.jit(jax.value_and_grad(lambda x: cross_entropy(x, target, weight, 7, **RECIPE)))
    loss, gradient = step(x)
    assert_loss(loss, exact.losses.sum() / divisor, 30.0)
    assert_gradient(gradient, exact.gradient / divisor)
    assert not np.asarray(gradient)[~counted].any()


def test_all_options_with_class_probabilities() -> None:
    x, y, weight = make_logits(), make_probabilities(), make_weight()
    exact = of_reference(x, y, weight, **RECIPE)
    loss, gradient = jax.jit(jax.value_and_grad(lambda x: cross_entropy(x, y, weight, **RECIPE)))(x)
    assert_loss(loss, exact.losses.mean(), 30.0)
    assert_gradient(gradient, exact.gradient / POSITIONS)


def test_gradients_of_probabilities_and_class_weights() -> None:
    """Differences of the float64 reference, which is linear in both."""
    x, y, weight = make_logits(), make_probabilities(), make_weight()
    step = jax.grad(lambda y, w: cross_entropy(x, y, w, reduction="sum", **RECIPE), argnums=(0, 1))
    of_target, of_weight = jax.jit(step)(y, weight)

    def total(y: np.ndarray, w: np.ndarray) -> float:
        return float(of_reference(x, y, w, **RECIPE).losses.sum())

    base, y64, w64 = total(np.asarray(y), np.asarray(weight)), np.asarray(y, np.float64), np.asarray(weight, np.float64)
    by_weight = [total(y64, w64 + unit) - base for unit in np.eye(CLASSES)]
    by_target = [total(y64 + unit.reshape(y.shape), w64) - base for unit in np.eye(y.size)]
    assert_gradient(of_weight, np.array(by_weight), scale=30.0)
    assert_gradient(of_target, np.array(by_target).reshape(y.shape), scale=15.0)


def test_a_normalizer_replaces_the_divisor_and_may_be_traced() -> None:
    x, target = make_logits(), make_targets()
    exact = of_reference(x, target)
    step = jax.jit(jax.value_and_grad(lambda x, n: cross_entropy(x, target, normalizer=n)))
    for number in (4, 10):
        loss, gradient = step(x, number)
        assert_loss(loss, exact.losses.sum() / number, 20.0)
        assert_gradient(gradient, exact.gradient / number)
    for number in (np.float64(4), np.array(4_000_000_000), 4_000_000_000):  # which int32 cannot hold
        scaled = cross_entropy(x, target, normalizer=number) * np.float32(number)
        assert_loss(scaled, exact.losses.sum(), 120.0)


def test_the_mean_of_nothing_is_nan_and_its_gradient_zero() -> None:
    loss, gradient = jax.jit(jax.value_and_grad(cross_entropy))(make_logits(), jnp.full(POSITIONS, -100))
    assert jnp.isnan(loss) and not gradient.any()


def test_outputs() -> None:
    x, target = make_logits(), make_targets(ignored=-100)
    outputs = cross_entropy(x, target, reduction="none", lse_square_scale=1e-2, return_outputs=True)
    assert isinstance(outputs, CrossEntropyOutputs)
    z, counted = np.asarray(x, np.float64), np.asarray(target) != -100
    lse = np.log(np.exp(z).sum(-1))
    softmax = np.exp(z - lse[:, np.newaxis])
    chosen = z[np.arange(POSITIONS), np.where(counted, target, 0)]
    assert_loss(outputs.loss, np.where(counted, lse - chosen + 1e-2 * lse**2, 0.0))
    assert_loss(outputs.lse, lse)
    assert_loss(outputs.z_loss, np.where(counted, 1e-2 * lse**2, 0.0))
    assert outputs.logprob is not None
    assert_loss(outputs.logprob, np.where(counted, chosen - lse, 0.0))
    assert_loss(outputs.entropy, lse - (softmax * z).sum(-1))
    assert outputs.argmax.dtype == jnp.int32 and outputs.argmax.tolist() == z.argmax(-1).tolist()


def test_the_derivative_of_every_output_that_has_one() -> None:
    """loss, lse, z_loss, logprob and entropy together, under a temperature."""
    x, target = make_logits(), make_targets()

    def total(x: jax.Array) -> jax.Array:
        outputs = cross_entropy(x, target, lse_square_scale=1e-2, temperature=0.8, return_outputs=True)
        assert outputs.logprob is not None
        of_positions = 2.0 * outputs.lse.sum() + 4.0 * outputs.logprob.sum() + 5.0 * outputs.entropy.sum()
        return outputs.loss + 3.0 * outputs.z_loss + of_positions

    z, chosen = np.asarray(x, np.float64) / 0.8, np.eye(CLASSES)[np.asarray(target)]
    lse = np.log(np.exp(z).sum(-1, keepdims=True))
    softmax = np.exp(z - lse)
    of_z_loss = 2e-2 * lse * softmax / POSITIONS
    exact = (softmax - chosen) / POSITIONS + 4.0 * of_z_loss + 2.0 * softmax + 4.0 * (chosen - softmax)
    entropy = -(softmax * (z - lse)).sum(-1, keepdims=True)
    exact -= 5.0 * softmax * (z - lse + entropy)
    assert_gradient(jax.jit(jax.grad(total))(x), exact / 0.8, scale=30.0)


def test_outputs_of_class_probabilities_have_no_logprob() -> None:
    outputs = cross_entropy(make_logits(), make_probabilities(), return_outputs=True)
    assert outputs.logprob is None
    assert outputs.lse.shape == (POSITIONS,) and outputs.z_loss == 0.0


@pytest.mark.parametrize("exact_maximum", [True, False, None])
def test_either_form_of_the_forward(exact_maximum: bool | None) -> None:
    x, target = make_logits(), make_targets()

    def loss_of(x: jax.Array, exact_maximum: bool | None) -> jax.Array:
        loss = cross_entropy(x, target, reduction="sum", exact_maximum=exact_maximum)
        assert isinstance(loss, jax.Array)
        return loss

    z, chosen = np.asarray(x, np.float64), np.eye(CLASSES)[np.asarray(target)]
    lse = np.log(np.exp(z).sum(-1, keepdims=True))
    loss, gradient = jax.value_and_grad(loss_of)(x, exact_maximum)
    assert_loss(loss, (lse[:, 0] - (z * chosen).sum(-1)).sum())
    assert_gradient(gradient, np.exp(z - lse) - chosen, scale=1.0)


def test_a_form_that_there_is_not_is_refused_by_the_kernel() -> None:
    with pytest.raises(Exception, match="exact_maximum must be True or None with logit_softcap, got False"):
        cross_entropy(make_logits(), make_targets(), logit_softcap=3.0, exact_maximum=False)
