# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""kl_div against float64, within its derived bounds: types, shapes, hard values, cores, in place."""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.host.error_bounds import Exact
from nkilib.experimental.loss import kl_div_backward, kl_div_forward
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.loss.elementwise.kl_div import KlDivReference, kl_div_reference
from nkilib.experimental.loss.skeletons.elementwise import host as reference

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
REDUCTIONS = ("none", "sum", "mean", "batchmean")


def pair(shape: tuple[int, ...], log_target: bool, types: tuple[str, str] = ("float32", "float32")) -> Any:
    """Log-probabilities and a target, some of whose probabilities are 0 and nearly 1."""
    random = np.random.default_rng(prod(shape))
    target = random.random(shape) ** 4
    target[random.random(shape) < 0.1] = 0.999
    if log_target:
        target = np.log(target + 1e-12)
    else:
        target[random.random(shape) < 0.1] = 0.0
    log_probabilities = -5.0 * random.random(shape) ** 2
    return log_probabilities.astype(TYPES[types[0]]), target.astype(TYPES[types[1]])


def is_within(result: Any, exact: Exact) -> bool:
    """Tell whether every number is within its bound."""
    return bool(error_over_bound(result, exact.value, exact.error).max() <= 1.0)


@settings(deadline=None, max_examples=12)
@given(
    shape=st.sampled_from([(1,), (127,), (128,), (3, 43), (2, 3, 5, 7), (129, 1030), (1, 66000)]),
    types=st.tuples(st.sampled_from(sorted(TYPES)), st.sampled_from(sorted(TYPES))),
    log_target=st.booleans(),
    reduction=st.sampled_from(REDUCTIONS),
    buffers=st.sampled_from([2, 3]),
)
def test_losses_and_gradients(
    shape: tuple[int, ...], types: tuple[str, str], log_target: bool, reduction: str, buffers: int
) -> None:
    x, t = pair(shape, log_target, types)
    options = {"log_target": log_target, "reduction": reduction, "columns": 512, "buffers": buffers}
    one, two = (kl_div_forward[cores](x, t, **options) for cores in (1, 2))
    assert one.tobytes() == two.tobytes()
    tensors, known = {"input": x, "target": t}, KlDivReference(log_target)
    if reduction == "none":
        assert is_within(two, reference.losses(known, tensors, x.dtype))
    else:
        assert two.dtype == np.float32 and is_within(two, reference.reduced(known, tensors, reduction, columns=512))
    upstream = np.full(shape if reduction == "none" else (1,), 1.75, np.float32)
    options["grad_target_wanted"] = True
    gradients, again = (kl_div_backward[cores](x, t, upstream, **options) for cores in (1, 2))
    exact = reference.gradients(known, tensors, upstream, reduction)
    for gradient, other, (name, like) in zip(gradients, again, tensors.items(), strict=True):
        assert gradient.tobytes() == other.tobytes() and gradient.dtype == like.dtype
        assert is_within(gradient, exact[name])


@pytest.mark.parametrize("change", [np.zeros_like, np.negative, lambda loss: loss.T.copy()])
def test_the_bound_tells_wrong_results(change: Any) -> None:
    x, t = pair((40, 40), False)
    wrong = change(kl_div_forward[2](x, t, reduction="none"))
    exact = reference.losses(KlDivReference(), {"input": x, "target": t}, np.float32)
    assert error_over_bound(wrong, exact.value, exact.error).max() > 100.0


def test_probabilities_near_one_and_tiny_ones() -> None:
    """Nothing cancels at t = 0.999, and targets down to the smallest normal number have their gradient."""
    x = np.full(6, -1e-3, np.float32)
    t = np.array([0.999, 1.0, 0.9999999, 2.0**-33, 1e-30, 2.0**-126], np.float32)
    loss = kl_div_forward(x, t, reduction="none")
    assert is_within(loss, reference.losses(KlDivReference(), {"input": x, "target": t}, np.float32))
    one = np.ones(6, np.float32)
    gradient = kl_div_backward(x, t, one, reduction="none", grad_input_wanted=False, grad_target_wanted=True)
    np.testing.assert_allclose(gradient, np.log(t.astype(np.float64)) + 1.0 - x, rtol=1e-6)


def test_edges_of_pytorch() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([-1.0, -inf, -inf, inf, nan, -1.0], np.float32)
    t = np.array([0.0, 0.0, 0.5, 0.5, 0.5, nan], np.float32)
    for cores in (1, 2):
        np.testing.assert_array_equal(kl_div_forward[cores](x, t, reduction="none"), [0.0, nan, inf, -inf, nan, nan])
    np.testing.assert_array_equal(kl_div_forward[2](x[2:3], t[2:3], reduction="sum"), [inf])
    one = np.ones(6, np.float32)
    by_input, by_target = kl_div_backward[2](x, t, one, reduction="none", grad_target_wanted=True)
    np.testing.assert_array_equal(by_input, -t)
    np.testing.assert_array_equal(np.isnan(by_target), [True, True, False, False, True, True])
    logs = np.array([-inf, 0.0], np.float32)
    np.testing.assert_array_equal(kl_div_forward[2](x[:2], logs, log_target=True, reduction="none"), [nan, inf])


def test_an_infinite_element_leaves_its_neighbours() -> None:
    """No sum over partitions is taken of single losses."""
    x, t = pair((128, 512), True)
    x[7, 9] = -np.inf
    losses = kl_div_forward[2](x, t, log_target=True, reduction="none")
    assert np.isinf(losses[7, 9]) and np.isfinite(np.delete(losses.reshape(-1), 7 * 512 + 9)).all()


def test_sums_of_equal_numbers() -> None:
    """A sum in one accumulator would round equal numbers in one direction."""
    x, t = np.full((300, 1000), -0.1, np.float32), np.full((300, 1000), 0.3, np.float32)
    loss = float(kl_div_forward[2](x, t)[0])
    assert abs(loss / kl_div_reference(x, t, False)[0, 0] - 1.0) < 5e-7


def test_in_place_and_what_is_read() -> None:
    x, t = pair((150, 600), False)
    expected = kl_div_backward[2](x, t, np.ones(1, np.float32), reduction="sum", columns=512)
    unread = np.full_like(x, np.nan)
    result = kl_div_backward[2](unread, t, np.ones(1, np.float32), reduction="sum", columns=512, inplace=True)
    assert result.tobytes() == expected.tobytes() == unread.tobytes()
