# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals before anything is compiled: they say who refuses, what is required, what came and what to do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.jax import cross_entropy
from tests.jax.inputs import CLASSES, POSITIONS, make_logits, make_probabilities, make_targets, make_weight

X, TARGET = make_logits(), make_targets()
# Of numpy, for the cases below: collection waits for each operation that JAX compiles.
ROWS, LABELS = np.asarray(X), np.asarray(TARGET)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            (np.zeros((6, 11)), TARGET),
            {},
            TypeError,
            r"bfloat16, float16 or float32, got float64; pass input.astype\(jnp.float32\)",
        ),
        (
            (jnp.asarray(ROWS.astype(np.int32)), TARGET),
            {},
            TypeError,
            r"bfloat16, float16 or float32, got int32; pass input.astype",
        ),
        (([[1.0]], TARGET), {}, TypeError, r"input must be an array of JAX or numpy, got list; pass jnp.asarray"),
        ((X, 3), {}, TypeError, r"target must be an array of JAX or numpy, got int; pass jnp.asarray"),
        ((X, jnp.asarray(LABELS.astype(np.float32))), {}, TypeError, r"class indices must be integers, got float32"),
        (
            (X, jnp.asarray(np.ones((6, 11), np.int32))),
            {},
            TypeError,
            r"class probabilities, which must be floating, got int32",
        ),
        (
            (X, jnp.asarray(LABELS[:4])),
            {},
            ValueError,
            r"shape of input, \(6, 11\), without axis -1, \(6,\), got \(4,\)$",
        ),
        (
            (jnp.asarray(ROWS.T), TARGET),
            {},
            ValueError,
            r"got \(6,\); the classes seem to be along another axis: pass axis=0",
        ),
        ((jnp.asarray(ROWS[0, 0]), TARGET), {}, ValueError, r"input must have an axis of classes, got shape \(\)"),
        ((jnp.asarray(ROWS[:, :0]), TARGET), {}, ValueError, r"at least one class along axis -1, got shape \(6, 0\)"),
        ((X, TARGET), {"axis": 2}, ValueError, r"axis must be an integer from -2 to 1, .* got 2"),
        ((X, TARGET, make_weight(4)), {}, ValueError, r"weight must have a number for each class, .* got \(4,\)"),
        ((X, TARGET, jnp.asarray(np.ones(11, np.int32))), {}, TypeError, r"weight must be floating, got int32"),
        ((X, TARGET), {"reduction": "Mean"}, ValueError, r"'Mean' is not a valid value for reduction; pass mean"),
        ((X, TARGET), {"label_smoothing": 1.5}, ValueError, r"label_smoothing must be a number from 0 to 1, got 1.5"),
        ((X, TARGET), {"logit_softcap": 0.0}, ValueError, r"logit_softcap must be a number from .* pass None"),
        ((X, TARGET), {"lse_square_scale": -1.0}, ValueError, r"lse_square_scale must be a number from 0 to"),
        ((X, TARGET), {"ignore_index": 1.5}, TypeError, r"argument 'ignore_index' must be int, not float"),
        (
            (X, TARGET),
            {"label_smoothing": jnp.asarray(np.float32(0.1))},
            TypeError,
            r"label_smoothing must be a Python number, ",
        ),
        ((X, TARGET), {"inplace": True}, TypeError, r"there is no argument 'inplace'; the arguments are input, target"),
        ((X, make_probabilities()), {"ignore_index": 3}, ValueError, r"ignore_index is not for class probabilities"),
        ((X, TARGET), {"normalizer": 2, "reduction": "sum"}, ValueError, r"divisor of a mean, got reduction='sum'"),
        (
            (X, TARGET),
            {"normalizer": jnp.asarray(np.ones(2, np.float32))},
            ValueError,
            r"normalizer must have no dimensions, got shape \(2,\)",
        ),
        (
            (X, jnp.asarray(LABELS > 2)),
            {},
            TypeError,
            r"class indices must be integers, got bool for labels of shape .* cast them",
        ),
        ((X, TARGET), {"return_outputs": "a"}, TypeError, r"argument 'return_outputs' must be bool, not str"),
        ((X, TARGET), {"temperature": True}, TypeError, r"argument 'temperature' must be float, not bool"),
        ((X, TARGET), {"normalizer": True}, TypeError, r"normalizer must be a number or an array .*, got bool"),
        ((X, TARGET), {"normalizer": "2"}, TypeError, r"normalizer must be a number or an array .*, got str"),
        (
            (X, TARGET),
            {"normalizer": jnp.asarray(np.complex64(2))},
            TypeError,
            r"normalizer must be real, got a complex number",
        ),
        ((X, np.full(POSITIONS, CLASSES)), {}, IndexError, r"target at position \[0\] must be a class from 0 to 10 or"),
        (
            (X, jnp.asarray(np.where(np.arange(POSITIONS) == 3, -5, LABELS))),
            {},
            IndexError,
            r"target at position \[3\] must be .* ignore_index, -100, got -5",
        ),
    ],
)
def test_refused(arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"cross_entropy: .*{message}"):
        cross_entropy(*arguments, **options)


def test_a_number_that_is_compiled_in_may_not_be_traced() -> None:
    with pytest.raises(TypeError, match=r"label_smoothing must be a Python number.*name it in static_argnames"):
        jax.jit(cross_entropy)(X, TARGET, label_smoothing=0.1)


def test_more_classes_than_an_argmax_counts() -> None:
    x = jax.ShapeDtypeStruct((1, 2**24 + 1), jnp.float32)
    target = jax.ShapeDtypeStruct((1,), jnp.int32)
    with pytest.raises(ValueError, match=r"return_outputs is for at most 16777216 classes, got 16777217; leave it off"):
        jax.eval_shape(lambda x, t: cross_entropy(x, t, return_outputs=True), x, target)


def test_a_class_that_does_not_exist_is_nan_where_targets_are_traced() -> None:
    """The position's loss, log-probability and row of the gradient are NaN; the other positions are as they were."""
    wrong = TARGET.at[2].set(CLASSES)

    @jax.jit
    def step(target: jax.Array) -> Any:
        def total(x: jax.Array) -> Any:
            outputs = cross_entropy(x, target, reduction="none", return_outputs=True)
            return outputs.loss.sum(), outputs

        return jax.grad(total, has_aux=True)(X)

    (gradient, outputs), (expected, kept) = step(wrong), step(TARGET)
    others = np.arange(POSITIONS) != 2
    for item, right in ((outputs.loss, kept.loss), (outputs.logprob, kept.logprob), (gradient, expected)):
        assert jnp.isnan(item[2]).all()
        np.testing.assert_array_equal(item[others], right[others])
    assert outputs.lse.tolist() == kept.lse.tolist()
