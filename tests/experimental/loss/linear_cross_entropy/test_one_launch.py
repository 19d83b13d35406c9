# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradients of a single launch, checked against float64 of the same inputs within the bounds of two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.experimental.loss import linear_cross_entropy_forward_backward
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs
from nkilib.experimental.loss.linear.backward.geometry import BackwardBuffers, BackwardSizes
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from tests.experimental.loss.linear_cross_entropy.linear_inputs import (
    BF16,
    FP16,
    FP32,
    OPTIONS,
    Sizes,
    arguments_of,
    problem_of,
    with_options,
)

BLOCKS = {"position_block": 128, "class_block": 128}
# Of what one launch returns, in its order.
NAMES = ("loss", "lse", "input", "weight", "bias")


@dataclass(frozen=True)
class Launched:
    """The results of a launch, the reference and the allowed errors, by the names of ``NAMES``."""

    found: dict[str, Any]
    expected: dict[str, Any]
    bounds: dict[str, Any]

    def check(self) -> None:
        """All that was returned is within its bounds."""
        for name, result in self.found.items():
            off = np.abs(np.asarray(result, dtype=np.float64) - self.expected[name])
            assert (off <= self.bounds[name]).all(), (name, np.nanmax(off / self.bounds[name]))


def launched(problem: LinearProblem, cores: int = 2, **kwargs: Any) -> Launched:
    """A launch with everything wanted, for the mean unless a scale is given, of small blocks unless others are."""
    scale = np.float32(kwargs.pop("grad_scale", 1.0 / len(problem.targets)))
    given_scale = {} if "grad_scale_hbm" in kwargs else {"grad_scale": float(scale)}
    results = linear_cross_entropy_forward_backward[cores](
        problem.input, problem.weight, problem.targets, **arguments_of(problem), **given_scale, **{**BLOCKS, **kwargs}
    )
    scale = kwargs["grad_scale_hbm"][0] if "grad_scale_hbm" in kwargs else scale
    forward = linear_forward_reference(problem)
    upstream = BackwardInputs(forward.lse.astype(np.float32), np.full(len(problem.targets), scale, np.float32))
    exact, bounds_of_exact = linear_gradients_and_bounds(problem, upstream)
    references = {"loss": forward.loss, "lse": forward.lse} | exact._asdict()
    bounds = linear_forward_bounds(problem) | bounds_of_exact._asdict()
    return Launched(dict(zip(NAMES, results, strict=False)), references, bounds)


# Every option in the dtype that models are trained in, and all together in the others; hard inputs: test_hard_rows.
GIVEN = [(name, BF16) for name in OPTIONS] + [("all", FP32), ("all", FP16)]


@pytest.mark.parametrize(("name", "dtype"), GIVEN, ids=str)
def test_options(name: str, dtype: Any) -> None:
    launched(with_options(problem_of("30% ignored", Sizes(140, 64, 300, dtype)), name)).check()


@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize("name", ["none", "all"])
def test_several_blocks_of_positions(name: str, layout: str) -> None:
    """The scratch holds the logits of 128 or 256 positions, and dW of all blocks is a float32 sum."""
    problem = with_options(problem_of("30% ignored", Sizes(700, 40, 300, BF16), layout=layout), name)
    for tiles in (1, 2):
        launched(problem, scratch_bytes=tiles * 128 * 300 * 4).check()


@pytest.mark.parametrize("layout", ["vd", "dv"])
def test_a_loop_of_the_device(layout: str) -> None:
    """The classes are so many that neither pass is unrolled, and the last block is ragged."""
    problem = with_options(problem_of("30% ignored", Sizes(130, 16, 15_011, BF16), layout=layout), "bias")
    launched(problem).check()


def test_blocks_of_any_size() -> None:
    problem = with_options(problem_of("normal", Sizes(300, 200, 1100, BF16)), "weights, smoothing")
    for position_block, class_block in ((128, 256), (256, 384), (512, 1536)):
        launched(problem, position_block=position_block, class_block=class_block).check()


def test_more_features_than_a_stripe_and_classes_than_banks() -> None:
    for layout in ("vd", "dv"):
        problem = problem_of("normal", Sizes(260, 1100, 1000, BF16), layout=layout)
        launched(problem, position_block=384, class_block=1024, cores=1).check()


@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize("buffers", [BackwardBuffers(), BackwardBuffers(weight_stripes=2, tiles_of_piece=2)], ids=str)
def test_few_buffers(buffers: BackwardBuffers, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is short, what streams waits until its buffer is done with: the next stripe of W among it."""
    sizes = Sizes(300, 600, 300, BF16)
    of_launch = BackwardSizes(sizes.positions, sizes.features, sizes.classes, 2, layout == "vd", keeps_logits=True)
    plan = replace(BackwardPlan.of(of_launch, 256, 256), buffers=buffers)
    monkeypatch.setattr(BackwardPlan, "of", classmethod(lambda *_: plan))
    launched(problem_of("normal", sizes, layout=layout), cores=1).check()


def test_the_scale_may_come_from_the_device() -> None:
    problem = problem_of("30% ignored", Sizes(140, 48, 260, BF16))
    launched(problem, grad_scale_hbm=np.array([-0.25], np.float32)).check()


@pytest.mark.parametrize("transformed", [np.zeros_like, np.negative, lambda array: array[::-1]])
def test_the_bounds_refuse_other_results(transformed: Any) -> None:
    result = launched(problem_of("normal", Sizes(150, 96, 330, BF16)))
    for name, array in result.found.items():
        wrong = replace(result, found={name: transformed(np.asarray(array))})
        with pytest.raises(AssertionError):
            wrong.check()


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(16, 150),
    st.integers(1, 400),
    st.sampled_from([BF16, FP32, FP16]),
    st.sampled_from(["vd", "dv"]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_any_shape(
    positions: int, features: int, classes: int, dtype: Any, layout: str, cores: int, several: bool
) -> None:
    problem = problem_of("normal", Sizes(positions, features, classes, dtype), layout=layout)
    scratch = {"scratch_bytes": 128 * 4 * classes} if several else {}
    launched(problem, cores, **scratch).check()


@pytest.mark.parametrize("wanted", ["input", "weight", "bias"])
def test_what_is_not_wanted_is_not_there(wanted: str) -> None:
    problem = with_options(problem_of("normal", Sizes(140, 48, 260, BF16)), "bias")
    flags = {f"grad_{name}_wanted": name == wanted for name in ("input", "weight", "bias")}
    every = launched(problem, scratch_bytes=128 * 4 * 260).found
    results = list(launched(problem, scratch_bytes=128 * 4 * 260, **flags).found.values())
    assert len(results) == 3
    for array, name in zip(results, ("loss", "lse", wanted), strict=True):
        np.testing.assert_array_equal(array, every[name])


def test_all_ignored_gives_zeros() -> None:
    result = launched(problem_of("all ignored", Sizes(140, 48, 260, BF16))).found
    assert not any(np.asarray(result[name]).any() for name in ("loss", "input", "weight"))
