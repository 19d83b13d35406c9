# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""multilabel_margin_loss against float64, within its derived bounds: types, shapes, lists, cores, in place."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.host.error_bounds import rounding
from nkilib.experimental.loss import multilabel_margin_loss_backward, multilabel_margin_loss_forward
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.loss.multilabel_margin.host import (
    MultilabelMarginReference,
    gradient_bounds,
    loss_bounds,
    sum_bound,
)
from nkilib.experimental.loss.multilabel_margin.launch import BLOCKS_MAX
from nkilib.nki import nl
from nkilib.simulator import profile, spec

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
SHAPES = [(1, 1), (1, 9), (5, 7), (130, 3), (300, 20), (3, 150)]


def arguments(shape: tuple[int, int], type_name: str, longest: int) -> dict[str, Any]:
    """Scores, and lists of targets of up to that length, with classes that are there twice, and some behind the end."""
    random = np.random.default_rng(sum(shape))
    rows, classes = shape
    targets = random.integers(0, classes, shape, dtype=np.int32)
    ends = random.integers(0, min(longest, classes) + 1, rows)
    for row, end in enumerate(ends):
        targets[row, end : end + 1] = -1
    return {"input_hbm": random.standard_normal(shape).astype(TYPES[type_name]), "targets_hbm": targets}


@settings(deadline=None, max_examples=16)
@given(
    shape=st.sampled_from(SHAPES),
    type_name=st.sampled_from(sorted(TYPES)),
    longest=st.sampled_from([0, 1, 5, 1000]),
    reduction=st.sampled_from(["none", "sum", "mean"]),
    inplace=st.booleans(),
)
def test_losses_and_gradient(
    shape: tuple[int, int], type_name: str, longest: int, reduction: str, inplace: bool
) -> None:
    options = arguments(shape, type_name, longest)
    x, factor = options["input_hbm"], 1.0 / shape[0] if reduction == "mean" else 1.0
    reference = MultilabelMarginReference.of(x, options["targets_hbm"])
    one, two = (multilabel_margin_loss_forward[cores](**options, reduction=reduction) for cores in (1, 2))
    assert one.tobytes() == two.tobytes()
    losses = reference.losses()
    if reduction == "none":
        exact, bound = losses, loss_bounds(x, reference) + rounding(losses, x.dtype)
    else:
        exact = np.array([factor * losses.sum()])
        bound = factor * sum_bound(x, reference) + 2.0**-23 * exact
    assert error_over_bound(two, exact, bound).max() <= 1.0
    upstream = np.full(shape[0] if reduction == "none" else 1, -1.75, np.float32)
    gradients = []
    for cores in (1, 2):
        own = {**options, "input_hbm": x.copy(), "grad_loss_hbm": upstream, "reduction": reduction}
        gradients.append(multilabel_margin_loss_backward[cores](**own, inplace=inplace))
        assert (gradients[-1].tobytes() == own["input_hbm"].tobytes()) is inplace or shape == (1, 1)
    assert gradients[0].tobytes() == gradients[1].tobytes()
    scale = factor * upstream.astype(np.float64)
    of_gradient = gradient_bounds(x, reference, scale) + 2.0**-126
    assert error_over_bound(gradients[0], reference.gradient(scale), of_gradient).max() <= 1.0


@pytest.mark.parametrize("change", [np.zeros_like, np.negative, lambda gradient: gradient.T.copy()])
def test_the_bound_tells_wrong_results(change: Any) -> None:
    options, one = arguments((20, 20), "float32", 5), np.ones(1, np.float32)
    reference = MultilabelMarginReference.of(options["input_hbm"], options["targets_hbm"])
    right = multilabel_margin_loss_backward[2](**options, grad_loss_hbm=one, reduction="sum")
    bound = gradient_bounds(options["input_hbm"], reference, one) + 2.0**-126
    assert error_over_bound(right, reference.gradient(one), bound).max() <= 1.0
    assert error_over_bound(change(right), reference.gradient(one), bound).max() > 100.0


def test_classes_that_are_masked_and_targets_that_are_none() -> None:
    inf = np.inf
    x = np.array([[-inf, 1, -inf, 0.5], [inf, 1, 0, 0], [0, 0, 0, 0], [np.nan, 0, 0, 0]], np.float32)
    targets = np.array([[1, -1, 2, 3], [0, -1, 1, 1], [-7, 0, 1, 2], [1, -1, 0, 0]], np.int32)
    losses = multilabel_margin_loss_forward[2](x, targets, reduction="none")
    np.testing.assert_array_equal(losses, [0.125, 0.0, 0.0, np.nan])
    gradient = multilabel_margin_loss_backward[2](x[:3], targets[:3], np.ones(1, np.float32), reduction="sum")
    np.testing.assert_array_equal(gradient, [[0, -0.25, 0, 0.25], [0] * 4, [0] * 4])


@pytest.mark.parametrize("target", [4, 2**31 - 1])
def test_a_target_out_of_range_touches_no_other_row(target: int) -> None:
    x, targets = np.zeros((3, 4), np.float32), np.array([[0, -1, 0, 0], [target, -1, 0, 0], [1, -1, 0, 0]], np.int32)
    losses = multilabel_margin_loss_forward[2](x, targets, reduction="none")
    np.testing.assert_array_equal(losses[[0, 2]], [0.75, 0.75])
    gradient = multilabel_margin_loss_backward[2](x, targets, np.ones(1, np.float32), reduction="sum")
    np.testing.assert_array_equal(gradient[[0, 2]], [[-0.75, 0.25, 0.25, 0.25], [0.25, -0.75, 0.25, 0.25]])


def test_the_loops_run_as_often_as_the_longest_list_needs() -> None:
    """Whichever row and core has it."""
    for row in (0, 299):
        options = arguments((300, 40), "float32", 3)
        options["targets_hbm"][row, :9], options["targets_hbm"][row, 9] = np.arange(9), -1
        profiled = profile(multilabel_margin_loss_forward[2], **options)
        assert {name.split(" ")[0]: trips for name, trips in profiled.trips.items()} == {
            "find_targets": 3,
            "sum_terms": 3,
        }


@pytest.mark.parametrize("classes", [500, 1000, 1333, 2048, 4096])
def test_groups_of_blocks_fit_on_chip(classes: int) -> None:
    """A group has as many blocks as pass a loop together. Starting a loop takes 25 us, modelled."""
    options = {"input_hbm": spec((4096, classes), nl.float32), "targets_hbm": spec((4096, classes), nl.int32)}
    most = nl.tile_size.sbuf_fmax_bytes
    for kernel, further in (
        (multilabel_margin_loss_forward, {}),
        (multilabel_margin_loss_backward, {"grad_loss_hbm": spec((1,), nl.float32)}),
    ):
        profiled = profile(kernel[2], **options, **further, trips=1)
        assert 0 < profiled.sbuf_peak_bytes_per_partition <= most


def test_modelled_bytes() -> None:
    """The targets are read twice: once for the longest list."""
    profiled = profile(
        multilabel_margin_loss_forward[2], spec((300, 40), nl.float32), spec((300, 40), nl.int32), trips=1
    )
    assert profiled.hbm_read_bytes == 3 * 300 * 40 * 4 and BLOCKS_MAX == 2048
