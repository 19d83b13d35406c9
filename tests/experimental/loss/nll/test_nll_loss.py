# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""nll_loss against float64, within its derived bounds: types, shapes, weights, ignored targets, cores, in place; and
tiles of few classes, each position in one, within what a partition takes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.experimental.loss import nll_loss_backward, nll_loss_forward
from nkilib.experimental.loss.bounds import error_over_bound
from nkilib.experimental.loss.nll.few_classes import PARTS_MAX, ClassTiling, is_streamed
from nkilib.experimental.loss.nll.host import (
    nll_loss_bound,
    nll_loss_gradient_bound,
    nll_loss_gradient_reference,
    nll_loss_reference,
)
from nkilib.experimental.loss.skeletons.indexed import Shape
from nkilib.nki import nl
from nkilib.simulator import OutOfRangeError, profile, recording, spec

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
SHAPES = [(1, 1), (5, 7), (130, 3), (3, 5, 140), (40, 5, 3, 2), (1, 4, 300), (2, 3, 1)]
IGNORED = -7


def arguments(shape: tuple[int, ...], type_name: str, is_weighted: bool, ignored: float = 0.3) -> dict[str, Any]:
    """An input, targets of which a share is ignored, and weights."""
    random = np.random.default_rng(len(shape))
    targets = random.integers(0, shape[1], (shape[0], *shape[2:]), dtype=np.int32)
    targets[random.random(targets.shape) < ignored] = IGNORED
    return {
        "input_hbm": random.standard_normal(shape).astype(TYPES[type_name]),
        "targets_hbm": targets,
        "class_weight_hbm": random.random(shape[1]).astype(np.float32) if is_weighted else None,
        "ignore_index": IGNORED,
    }


@settings(deadline=None, max_examples=16)
@given(
    shape=st.sampled_from(SHAPES),
    type_name=st.sampled_from(sorted(TYPES)),
    is_weighted=st.booleans(),
    reduction=st.sampled_from(["none", "sum", "mean"]),
    inplace=st.booleans(),
    streamed=st.booleans(),
)
def test_losses_and_gradient(
    shape: tuple[int, ...], type_name: str, is_weighted: bool, reduction: str, inplace: bool, streamed: bool
) -> None:
    options = arguments(shape, type_name, is_weighted)
    way = {"reduction": reduction, "streamed": streamed}
    one, two = (nll_loss_forward[cores](**options, **way) for cores in (1, 2))
    assert [array.tobytes() for array in one] == [array.tobytes() for array in two]
    loss, total_weight = two
    reference = nll_loss_reference(**{name.removesuffix("_hbm"): value for name, value in options.items()})
    exact, bound = reference.reduced(reduction), nll_loss_bound(reference, shape, reduction, loss.dtype, streamed)
    assert error_over_bound(loss, exact.reshape(loss.shape), bound.reshape(loss.shape)).max() <= 1.0
    np.testing.assert_allclose(total_weight[0], reference.weights.sum(), rtol=1e-5)
    upstream = np.full(options["targets_hbm"].shape if reduction == "none" else (1,), -1.75, np.float32)
    scale = upstream.astype(np.float64) / (total_weight[0] if reduction == "mean" and total_weight[0] else 1.0)
    expected = nll_loss_gradient_reference(options["input_hbm"], options["targets_hbm"], reference.weights, scale)
    further = {"grad_loss_hbm": upstream, "total_weight_hbm": total_weight if reduction == "mean" else None}
    gradients = []
    for cores in (1, 2):
        own = {**options, "input_hbm": options["input_hbm"].copy()}
        gradients.append(nll_loss_backward[cores](**own, **further, **way, inplace=inplace))
        assert (gradients[-1].tobytes() == own["input_hbm"].tobytes()) is inplace
    assert gradients[0].tobytes() == gradients[1].tobytes()
    of_gradient = nll_loss_gradient_bound(expected, options["input_hbm"].dtype)
    assert error_over_bound(gradients[0], expected, of_gradient).max() <= 1.0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("change", [np.zeros_like, np.negative, lambda gradient: gradient.T.copy()])
def test_the_bound_tells_wrong_results(change: Any, streamed: bool) -> None:
    options = arguments((20, 20), "float32", True, ignored=0.0)
    weights = nll_loss_reference(**{name.removesuffix("_hbm"): value for name, value in options.items()}).weights
    options["streamed"] = streamed
    right = nll_loss_backward[2](**options, grad_loss_hbm=np.ones(1, np.float32), reduction="sum")
    exact = nll_loss_gradient_reference(options["input_hbm"], options["targets_hbm"], weights, np.ones(()))
    bound = nll_loss_gradient_bound(exact, np.float32)
    assert error_over_bound(right, exact, bound).max() <= 1.0
    assert error_over_bound(change(right), exact, bound).max() > 100.0


@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_counts(streamed: bool) -> None:
    """The mean is NaN and its gradient 0, whatever stands in the input."""
    options = arguments((5, 7), "float32", True, ignored=1.1)
    options["input_hbm"][:] = np.nan
    options["streamed"] = streamed
    loss, total_weight = nll_loss_forward[2](**options)
    assert np.isnan(loss[0]) and total_weight[0] == 0.0
    assert nll_loss_forward[2](**options, reduction="sum")[0][0] == 0.0
    gradient = nll_loss_backward[2](**options, grad_loss_hbm=np.ones(1, np.float32), total_weight_hbm=total_weight)
    np.testing.assert_array_equal(gradient, np.zeros((5, 7)))


@pytest.mark.parametrize("streamed", [False, True])
def test_infinities_and_only_the_target_matters(streamed: bool) -> None:
    x = np.full((3, 4), np.nan, np.float32)
    x[0, 1], x[1, 2], x[2, 3] = -np.inf, -0.5, -np.inf
    targets, weight = np.array([1, 2, 3], np.int32), np.array([1.0, 2.0, 3.0, 0.0], np.float32)
    loss, _ = nll_loss_forward[2](x, targets, weight, reduction="none", streamed=streamed)
    np.testing.assert_array_equal(loss, [np.inf, 1.5, np.nan])  # -inf times a weight of 0
    grad = np.array([np.inf, np.nan, -np.inf], np.float32)
    gradient = nll_loss_backward[2](x, targets, grad, reduction="none", streamed=streamed)
    np.testing.assert_array_equal(gradient, [[0, -np.inf, 0, 0], [0, 0, np.nan, 0], [0, 0, 0, np.inf]])
    gradient = nll_loss_backward[2](x, targets, np.array([np.nan], np.float32), reduction="sum", streamed=streamed)
    np.testing.assert_array_equal(np.isnan(gradient), np.eye(3, 4, 1, bool))


@pytest.mark.parametrize("target", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5)])
def test_a_target_out_of_range_touches_nothing(shape: tuple[int, ...], target: int) -> None:
    targets = np.zeros((shape[0], *shape[2:]), np.int32)
    place = (1, *[0] * (targets.ndim - 1))
    targets[place] = target
    x = np.ones(shape, np.float32)
    with pytest.raises(OutOfRangeError, match=f"has target {target}, outside"):
        nll_loss_forward[2](x, targets, reduction="none", streamed=False)
    with pytest.raises(OutOfRangeError, match=f"has target {target}, outside"):
        nll_loss_backward[2](
            x, targets, np.ones(targets.shape, np.float32), reduction="none", inplace=True, streamed=False
        )
    grad = np.ones(targets.shape, np.float32)
    loss, _ = nll_loss_forward[2](x, targets, reduction="none", streamed=True)
    np.testing.assert_array_equal(np.isnan(loss), targets == target)
    gradient = nll_loss_backward[2](x, targets, grad, reduction="none", streamed=True)
    assert gradient.sum() == -(targets != target).sum()


def test_the_backward_writes_the_gradient_once() -> None:
    options = arguments((150, 300), "float32", False, ignored=0.0)
    with recording() as record:
        nll_loss_backward[2](**options, grad_loss_hbm=np.ones(1, np.float32), reduction="sum")
    assert record.hbm_written_bytes == (150 * 300 + 150) * 4


@pytest.mark.parametrize("ignored", [3, 256, 2**24 + 1, -(2**31)])
def test_an_ignored_target_of_any_size(ignored: int) -> None:
    targets = np.array([0, ignored, 4, ignored, 2], np.int32)
    options = {"input_hbm": np.full((5, 5), -2.0, np.float32), "targets_hbm": targets, "ignore_index": ignored}
    loss, total_weight = nll_loss_forward[2](**options, reduction="none", streamed=True)
    np.testing.assert_array_equal(loss, [2, 0, 2, 0, 2])
    assert total_weight[0] == 3.0
    gradient = nll_loss_backward[2](**options, grad_loss_hbm=np.ones(1, np.float32), reduction="sum", streamed=True)
    np.testing.assert_array_equal(gradient.sum(1), [-1, 0, -1, 0, -1])


@pytest.mark.parametrize("type_name", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 40, 700), (3, 130, 130), (700, 3, 2)])
def test_streamed_as_gathered(shape: tuple[int, ...], type_name: str) -> None:
    """Several tiles, and classes in several groups: every loss and gradient is bitwise identical."""
    options = arguments(shape, type_name, True)
    grad = np.random.default_rng(3).standard_normal(options["targets_hbm"].shape).astype(np.float32)
    streamed, gathered = (
        (
            nll_loss_forward[2](**options, reduction="none", streamed=way)[0],
            nll_loss_backward[2](**options, grad_loss_hbm=grad, reduction="none", streamed=way),
        )
        for way in (True, False)
    )
    for ours, theirs in zip(streamed, gathered, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_way_that_is_modelled_to_be_faster() -> None:
    for shape, expected in (((8, 21, 512, 512), True), ((131072, 64), True), ((4096, 32128), False), ((4, 200), False)):
        assert is_streamed(Shape.of(shape), nl.float32) is expected


def test_modelled_time_of_few_classes() -> None:
    """Over the bound that the DMA engines set, on two cores of trn2."""
    x, targets, one = spec((8, 21, 512, 512), "float32"), spec((8, 512, 512), "int32"), spec((1,), "float32")
    for kernel, further in ((nll_loss_forward, ()), (nll_loss_backward, (one, None, one))):
        result = profile(kernel[2], x, targets, *further).fraction_of_bound
        assert result is not None and result <= 1.30


def test_modelled_time_of_the_backward() -> None:
    """Over the bound that the DMA engines set, on two cores of trn2."""
    x, targets, one = spec((4096, 32128), "bfloat16"), spec((4096,), "int32"), spec((1,), "float32")
    result = profile(nll_loss_backward[2], x, targets, one, None, one).fraction_of_bound
    assert result is not None and result <= 1.10


@settings(max_examples=50)
@given(
    rows=st.sampled_from([1, 2, 127, 300, 9000]),
    places=st.sampled_from([1, 6, 127, 128, 700, 20000]),
    classes=st.sampled_from([1, 21, 256]),
)
def test_every_position_is_in_one_tile(rows: int, places: int, classes: int) -> None:
    if rows * places > 2_000_000:
        rows = 3
    shape = Shape(rows, classes, places)
    tiling = ClassTiling.of(shape, nl.float32)
    tiles = tiling.tiles()
    assert len(tiles) == tiling.number_of_tiles
    counts = np.zeros(rows * places, np.int8)
    for tile in tiles:
        assert tile.partitions <= 128 and tile.positions <= tiling.positions
        unit, start = (places, 0) if tile.row is None else (1, tile.row * places)
        first = start + tile.flat.first * unit
        counts[first : first + tile.partitions * tile.positions] += 1
    assert (counts == 1).all()
    assert tiling.positions * tiling.classes * 4 <= 48 * 1024
    assert tiling.groups[0][0] == 0 and tiling.groups[-1][1] == classes


def test_many_tiles_share_sums() -> None:
    tiles = ClassTiling.of(Shape(3, 1, 2**28), nl.float32).tiles()
    assert len(tiles) > PARTS_MAX
    parts = [tile.part for tile in tiles]
    assert parts == sorted(parts) and parts[-1] < PARTS_MAX
    assert [tile.is_first for tile in tiles] == [a != b for a, b in zip(parts, [-1, *parts], strict=False)]
