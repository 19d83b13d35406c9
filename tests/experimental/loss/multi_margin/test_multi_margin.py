# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""multi_margin_loss against float64, within its derived bounds: types, shapes, powers, weights, cores, in place; and
the bounds at points that can be worked out by hand.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.host.error_bounds import reduction_factor, rounding
from nkilib.experimental.loss import multi_margin_loss_backward, multi_margin_loss_forward
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.loss.multi_margin.host import (
    MultiMarginReference,
    gradient_bounds,
    hinge_errors,
    loss_bounds,
    sum_bound,
)
from nkilib.simulator import OutOfRangeError, profile, recording, spec

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
SHAPES = [(1, 1), (5, 7), (130, 3), (3, 1000), (300, 40)]


def arguments(shape: tuple[int, int], type_name: str, is_weighted: bool, **options: Any) -> dict[str, Any]:
    """Scores, targets and weights."""
    random = np.random.default_rng(sum(shape))
    return {
        "input_hbm": (2.0 * random.standard_normal(shape)).astype(TYPES[type_name]),
        "targets_hbm": random.integers(0, shape[1], shape[0], dtype=np.int32),
        "class_weight_hbm": random.random(shape[1]).astype(np.float32) if is_weighted else None,
        **options,
    }


def reference_of(inputs: dict[str, Any]) -> MultiMarginReference:
    names = ("input_hbm", "targets_hbm", "class_weight_hbm")
    return MultiMarginReference.of(*(inputs[name] for name in names), p=inputs["p"], margin=inputs["margin"])


@settings(deadline=None, max_examples=16)
@given(
    shape=st.sampled_from(SHAPES),
    type_name=st.sampled_from(sorted(TYPES)),
    is_weighted=st.booleans(),
    p=st.sampled_from([1, 2]),
    margin=st.sampled_from([1.0, 0.3, 0.0, -0.5, 40.0]),
    reduction=st.sampled_from(["none", "sum", "mean"]),
    inplace=st.booleans(),
)
def test_losses_and_gradient(
    shape: tuple[int, int], type_name: str, is_weighted: bool, p: int, margin: float, reduction: str, inplace: bool
) -> None:
    options = arguments(shape, type_name, is_weighted, p=p, margin=margin, reduction=reduction, chunk_size=384)
    reference, x = reference_of(options), options["input_hbm"]
    one, two = (multi_margin_loss_forward[cores](**options) for cores in (1, 2))
    assert one.tobytes() == two.tobytes()
    losses, factor = reference.losses(), reduction_factor(shape[:1], reduction)
    if reduction == "none":
        exact, bound = losses, loss_bounds(x, reference, margin) + rounding(losses, x.dtype)
    else:
        exact = np.array([factor * losses.sum()])
        bound = factor * sum_bound(x, reference, margin) + 2.0**-23 * exact
    assert error_over_bound(two, exact, bound).max() <= 1.0
    upstream = np.full(shape[0] if reduction == "none" else 1, -1.75, np.float32)
    gradients = []
    for cores in (1, 2):
        own = {**options, "input_hbm": x.copy()}
        gradients.append(multi_margin_loss_backward[cores](**own, grad_loss_hbm=upstream, inplace=inplace))
        assert (gradients[-1].tobytes() == own["input_hbm"].tobytes()) is inplace
    assert gradients[0].tobytes() == gradients[1].tobytes()
    scale = factor * upstream.astype(np.float64)
    of_gradient = gradient_bounds(x, reference, margin, scale)
    assert error_over_bound(gradients[0], reference.gradient(scale), of_gradient).max() <= 1.0


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("change", [np.zeros_like, np.negative, lambda gradient: gradient.T.copy()])
def test_the_bound_tells_wrong_results(change: Any, p: int) -> None:
    options = arguments((20, 20), "float32", True, p=p, margin=1.0, reduction="sum")
    reference, one = reference_of(options), np.ones(1, np.float32)
    right = multi_margin_loss_backward[2](**options, grad_loss_hbm=one)
    bound = gradient_bounds(options["input_hbm"], reference, 1.0, one)
    assert error_over_bound(right, reference.gradient(one), bound).max() <= 1.0
    assert error_over_bound(change(right), reference.gradient(one), bound).max() > 100.0


@pytest.mark.parametrize("p", [1, 2])
def test_a_target_that_wins_by_the_margin_costs_nothing(p: int) -> None:
    """Exactly: the target's own term is subtracted as it was added."""
    x = np.full((3, 5000), -3.0, np.float32)
    targets = np.array([0, 4999, 77], np.int32)
    x[np.arange(3), targets] = [0.1, 1e4, -1.5]
    losses = multi_margin_loss_forward[2](x, targets, p=p, reduction="none")
    np.testing.assert_array_equal(losses, np.zeros(3))
    gradient = multi_margin_loss_backward[2](x, targets, np.ones(1, np.float32), p=p)
    np.testing.assert_array_equal(gradient, np.zeros(x.shape))


def test_infinities_and_nan() -> None:
    """A class that is masked adds nothing; a target that is masked makes the loss infinite; a NaN stays one."""
    inf, nan = np.inf, np.nan
    x = np.array([[-inf, 1, -inf, 0.5], [0, -inf, -inf, 1], [nan, 0, 0, 0], [0, nan, 0, 0]], np.float32)
    targets = np.array([1, 1, 1, 1], np.int32)
    losses = multi_margin_loss_forward[2](x, targets, reduction="none")
    np.testing.assert_array_equal(losses[:2], [0.125, inf])
    assert np.isnan(losses[2:]).all()
    gradient = multi_margin_loss_backward[2](x[:2], targets[:2], np.ones(1, np.float32), reduction="sum")
    np.testing.assert_array_equal(gradient, [[0, -0.25, 0, 0.25], [0.25, -0.5, 0, 0.25]])


@pytest.mark.parametrize("target", [-1, 4, 2**31 - 1, -(2**31)])
def test_a_target_out_of_range_touches_nothing(target: int) -> None:
    x, targets = np.ones((3, 4), np.float32), np.array([0, target, 1], np.int32)
    for launch in (
        lambda: multi_margin_loss_forward[2](x, targets, reduction="none"),
        lambda: multi_margin_loss_backward[2](x, targets, np.ones(1, np.float32)),
    ):
        with pytest.raises(OutOfRangeError, match=f"has target {target}, outside"):
            launch()


def test_the_input_is_read_once_and_the_gradient_written_once() -> None:
    options = arguments((150, 700), "float32", False, p=1, margin=1.0, reduction="sum")
    with recording() as record:
        multi_margin_loss_forward[2](**options)
    assert record.hbm_read_bytes == (150 * 700 + 2 * 150) * 4
    with recording() as record:
        multi_margin_loss_backward[2](**options, grad_loss_hbm=np.ones(1, np.float32))
    assert record.hbm_written_bytes == (150 * 700 + 150) * 4


@pytest.mark.parametrize(("chunks", "of_vector"), [(1, 0), (2, 1), (4, 1), (5, 2), (9, 3)])
def test_vector_takes_every_third_chunk(chunks: int, of_vector: int) -> None:
    """The second of every three: neither engine is then behind the loads."""
    counts = []
    for number in (1, chunks):
        x, targets = np.zeros((1, 64 * number - 32), np.float32), np.zeros(1, np.int32)  # the first one is halved
        with recording() as record:
            multi_margin_loss_forward[1](x, targets, reduction="none", chunk_size=64)
        counts.append(record.instruction_counts["activation"])
    assert counts[1] - counts[0] == chunks - 1 - of_vector


@pytest.mark.parametrize(("type_name", "forward", "backward"), [("bfloat16", 1.2, 1.05), ("float32", 1.05, 1.05)])
def test_modelled_times(type_name: str, forward: float, backward: float) -> None:
    """Over the bound that the DMA engines set, on two cores of trn2."""
    x, targets, one = spec((1024, 32128), type_name), spec((1024,), "int32"), spec((1,), "float32")
    result = profile(multi_margin_loss_forward[2], x, targets).fraction_of_bound
    assert result is not None and result <= 1.15 * forward  # a short launch has the latencies of a long one
    result = profile(multi_margin_loss_backward[2], x, targets, one).fraction_of_bound
    assert result is not None and result <= 1.15 * backward


U = 2.0**-23
MARGIN = 1.0
SCORES = np.array([[2.0, 3.0, -5.0]], np.float32)  # the first one is the target: hinges 2 and 0


@pytest.mark.parametrize("p", [1, 2])
def test_the_bound_of_a_loss(p: int) -> None:
    """A hinge h may be off by u (|m| + (|x_t| + h) / 2), its square by twice h times that and u / 2 of the square."""
    reference = MultiMarginReference.of(SCORES, np.zeros(1, np.int32), p=p, margin=MARGIN)
    of_hinges = 0.5 * U * (2.0 * MARGIN + 2.0 + np.array([0.0, 2.0, 0.0]))
    np.testing.assert_allclose(hinge_errors(SCORES, reference, MARGIN)[0], of_hinges, rtol=1e-12)
    of_terms = of_hinges
    if p == 2:
        of_terms = 2.0 * reference.hinges[0] * of_hinges + of_hinges**2 + 0.5 * U * reference.hinges[0] ** 2
    additions = 3 + 1 + 2  # of the row, of its chunks, and of the target's own term
    total = of_terms.sum() + 0.5 * U * additions * (2.0**p + MARGIN**p)
    expected = total / 3.0 + 2.0 * U * 2.0**p / 3.0
    np.testing.assert_allclose(loss_bounds(SCORES, reference, MARGIN), [expected], rtol=1e-12)
