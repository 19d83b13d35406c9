# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Results do not depend on the tiling: one input under many legal ones, each of which agrees with float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem, linear_forward_reference
from tests.experimental.loss.linear_cross_entropy.linear_inputs import (
    BF16,
    Sizes,
    arguments_of,
    problem_of,
    with_options,
)

# Several stripes of features, pieces of positions and groups of tiles of dW, all with a ragged end.
SIZES = Sizes(530, 530, 1300, BF16)
# One block or several of positions and of classes, in whole tiles or not; None: the default of that size.
FORWARD_TILINGS = ((None, None), (128, 128), (128, 512), (256, 384), (384, 256), (640, 128), (1024, 512))
GRADIENT_TILINGS = (
    (None, None),
    (128, 128),
    (128, 1408),
    (256, 384),
    (384, 1024),
    (640, 768),
    (640, 896),
    (1024, 1408),
)
SCALE = np.float32(1 / 530)

Results = dict[str, Any]
Launch = Callable[[LinearProblem, int, dict[str, int | None]], Results]


def _forward(problem: LinearProblem, cores: int, tiling: dict[str, int | None]) -> Results:
    results = linear_cross_entropy_forward[cores](
        problem.input, problem.weight, problem.targets, **arguments_of(problem), **tiling
    )
    return dict(zip(("loss", "lse"), results, strict=True))


def _backward(problem: LinearProblem, cores: int, tiling: dict[str, int | None]) -> Results:
    upstream = _upstream(problem)
    results = linear_cross_entropy_backward[cores](
        problem.input,
        problem.weight,
        problem.targets,
        upstream.lse,
        upstream.grad_loss,
        **arguments_of(problem),
        **tiling,
    )
    return dict(zip(("input", "weight", "bias"), results, strict=True))


def _both(problem: LinearProblem, cores: int, tiling: dict[str, int | None]) -> Results:
    results = linear_cross_entropy_forward_backward[cores](
        problem.input, problem.weight, problem.targets, grad_scale=float(SCALE), **arguments_of(problem), **tiling
    )
    return dict(zip(("loss", "lse", "input", "weight", "bias"), results, strict=True))


def _upstream(problem: LinearProblem) -> BackwardInputs:
    """The gradients of the mean."""
    lse = linear_forward_reference(problem).lse.astype(np.float32)
    return BackwardInputs(lse, np.full(len(problem.targets), SCALE, np.float32))


@pytest.fixture(scope="module", params=["vd", "dv"])
def problem(request: pytest.FixtureRequest) -> LinearProblem:
    """Return the problem in each of both layouts."""
    return with_options(problem_of("30% ignored", SIZES, layout=request.param), "bias")


@pytest.fixture(scope="module")
def references_and_bounds(problem: LinearProblem) -> Iterator[tuple[Results, Results]]:
    """Yield the references and the bounds of all results."""
    forward, upstream = linear_forward_reference(problem), _upstream(problem)
    exact, bounds_of_exact = linear_gradients_and_bounds(problem, upstream)
    references = {"loss": forward.loss, "lse": forward.lse, **exact._asdict()}
    yield references, linear_forward_bounds(problem) | bounds_of_exact._asdict()


@pytest.mark.parametrize(
    ("launch", "tilings"),
    [(_forward, FORWARD_TILINGS), (_backward, GRADIENT_TILINGS), (_both, GRADIENT_TILINGS)],
    ids=["forward", "backward", "one launch"],
)
def test_results_do_not_depend_on_the_tiling(
    launch: Launch,
    tilings: tuple[tuple[int | None, int | None], ...],
    problem: LinearProblem,
    references_and_bounds: tuple[Results, Results],
) -> None:
    """Every result is within its bound of the reference, and so are any two within the sum of theirs of each other."""
    references, bounds = references_and_bounds
    collected = []
    for number, blocks in enumerate(tilings):
        results = launch(problem, 2 - number % 2, dict(zip(("position_block", "class_block"), blocks, strict=True)))
        collected.append({name: np.asarray(result, dtype=np.float64) for name, result in results.items()})
        for name, result in collected[-1].items():
            off = np.abs(result - references[name])
            assert (off <= bounds[name]).all(), f"{blocks}: {name}: {np.nanmax(off / bounds[name])} of its bound"
    for one, other in combinations(collected, 2):
        for name, result in one.items():
            assert (np.abs(result - other[name]) <= 2.0 * bounds[name]).all(), name
    assert any((collected[0][name] != other[name]).any() for other in collected[1:] for name in other), (
        "all tilings are one"
    )
