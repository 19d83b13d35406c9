# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Several target ids of each position, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import linear_cross_entropy_backward, linear_cross_entropy_forward
from nkilib.experimental.loss.cross_entropy.host.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.host.reference import ExtendedLoss
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
    ScoreInputs,
    scores_backward_reference,
    scores_forward_bounds,
    scores_forward_reference,
    scores_gradients_and_bounds,
)

from .linear_inputs import BF16, FP16, FP32, Sizes, in_layout, problem_of
from .score_checks import WANTED, Launch, check_backward, check_forward, check_gradients, upstream_of, with_ids

IDS = (2, 9, 64)
TYPES = (FP32, BF16, FP16)


def of_ids(kind: str, ids: int, sizes: Sizes, layout: str = "vd", **options: float | None) -> LinearProblem:
    """One of the problems, with ids."""
    problem = replace(problem_of(kind, sizes), options=ExtendedLoss(**options))  # type: ignore[arg-type]
    return in_layout(with_ids(problem, ids), layout)


def check_both(problem: LinearProblem, launch: Launch, of_lse: bool = False, of_entropy: bool = False) -> None:
    """The forward, and with what it gives the backward."""
    wanted = ("entropy",) if of_entropy else ()
    results = check_forward(problem, replace(launch, wanted=launch.wanted or wanted))
    upstream = upstream_of(problem, results["lse"], results.get("entropy") if of_entropy else None, of_lse=of_lse)
    check_backward(problem, launch, upstream)


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_all_types_and_numbers_of_ids(dtype: np.dtype, ids: int) -> None:
    """Two tiles of positions, ragged; on one core and on two; both layouts; classes in a tile and in several."""
    number = IDS.index(ids) + TYPES.index(dtype)
    sizes = Sizes((130, 200, 60)[number % 3], 48, (300, 1100)[number % 2], dtype)
    problem = of_ids("normal", ids, sizes, ("vd", "dv")[number // 2 % 2])
    check_both(problem, Launch(1 + number % 2, None, None if number % 3 else 128))


@pytest.mark.parametrize("kind", ["half at 0.999", "spread 50", "bias 1e4", "masked classes", "duplicate rows"])
def test_hard_rows(kind: str) -> None:
    """Hard rows are checked with gradients of all results, a temperature, and a cap or none."""
    number = len(kind)
    cap = 5.0 if kind in ("masked classes", "half at 0.999") else None
    problem = of_ids(kind, 9, Sizes(130, 48, 300, TYPES[number % 3]), temperature=0.7, logit_softcap=cap)
    check_both(problem, Launch(class_block=128, wanted=WANTED), of_lse=True, of_entropy=kind != "spread 50")


@pytest.mark.parametrize("ids", [2, 17])
def test_several_blocks_of_positions_and_classes_in_loops(ids: int) -> None:
    """Programs so short that classes are loops of the device; classes that the cores share in the forward."""
    problem = of_ids("normal", ids, Sizes(260, 32, 2300, BF16))
    with shrunk(PlanLimits(program_instructions=900)):
        check_both(problem, Launch(position_block=128, class_block=256))
    with shrunk(PlanLimits(shared_classes=200)):
        check_forward(problem, Launch(position_block=256, class_block=128))


def test_positions_in_parts() -> None:
    """More positions than a part has: rows as of a launch that is not split."""
    problem = of_ids("normal", 3, Sizes(400, 32, 300, FP32))
    lse = scores_forward_reference(problem)["lse"].astype(np.float32)
    upstream = upstream_of(problem, lse)
    whole = check_backward(problem, Launch(), upstream)
    with shrunk(PlanLimits(positions=256)):
        split = check_backward(problem, Launch(), upstream)
    np.testing.assert_array_equal(whole["input"], split["input"])


def test_shards_of_the_vocabulary() -> None:
    """Wrappers combine lse and logits at the ids of all shards, and summands of dX; a shard has its own dW and db."""
    problem = of_ids("masked classes", 5, Sizes(140, 64, 500, FP32))
    assert problem.bias is not None
    expected, bounds = scores_forward_reference(problem), scores_forward_bounds(problem)
    upstream = upstream_of(problem, expected["lse"].astype(np.float32), expected["entropy"].astype(np.float32))
    logits = np.zeros(problem.targets.shape)
    for first, last in ((0, 200), (200, 500)):
        kept = {"weight": problem.weight[first:last], "bias": problem.bias[first:last]}
        part, shard = replace(problem, **kept), {"first_class": first, "num_classes": 500}
        results = Launch(wanted=("target",), class_block=128).results(part, **shard)
        is_here = (problem.targets >= first) & (problem.targets < last)
        np.testing.assert_array_equal(results["target_logit"][~is_here], 0.0)
        logits += results["target_logit"]
        gradients = Launch().gradients(part, upstream, grad_input_float32=True, **shard)
        classes = slice(first, last)
        check_gradients(gradients, *scores_gradients_and_bounds(problem, upstream, classes))
    assert error_over_bound(logits, expected["target_logit"], bounds["target_logit"]).max() <= 1.0


def test_one_id_is_linear_cross_entropy() -> None:
    """Scores are bitwise identical to minus the loss of one id, and gradients to those of its log-probability."""
    problem = problem_of("half at 0.999", Sizes(200, 48, 300, BF16))
    loss, lse = linear_cross_entropy_forward[2](problem.input, problem.weight, problem.targets)[:2]
    one = replace(problem, targets=problem.targets[:, np.newaxis])
    results = Launch().results(one)
    np.testing.assert_array_equal(results["logprob"], 0.0 - loss[:, np.newaxis])
    np.testing.assert_array_equal(results["lse"], lse)
    upstream = upstream_of(one, lse)
    assert upstream.grad_logprob is not None
    expected = linear_cross_entropy_backward[2](
        problem.input, problem.weight, problem.targets, lse, grad_logprob_hbm=upstream.grad_logprob[:, 0]
    )
    for name, gradient in zip(("input", "weight"), expected, strict=True):
        np.testing.assert_array_equal(Launch().gradients(one, upstream)[name], gradient)
    check_backward(one, Launch(), upstream)


def test_equal_ids_are_one_with_the_sum_of_their_gradients() -> None:
    """Large gradients that cancel: what is left is exact, also beside ids that are ignored."""
    problem = problem_of("half at 0.999", Sizes(60, 32, 300, FP32))
    rng = np.random.default_rng(7)
    pairs = np.repeat(problem.targets[:, np.newaxis], 64, axis=1)
    pairs[:, 60:] = -100
    gradients = np.zeros((60, 64), np.float32)
    gradients[:, 0:30] = rng.integers(-(2**18), 2**18, (60, 30))
    gradients[:, 30:60] = -gradients[:, 0:30]
    gradients[:, 59] += 1.0
    lse = scores_forward_reference(replace(problem, targets=pairs))["lse"].astype(np.float32)
    one = replace(problem, targets=problem.targets[:, np.newaxis])
    result = Launch().gradients(replace(problem, targets=pairs), ScoreInputs(lse, gradients))
    expected = check_backward(one, Launch(), ScoreInputs(lse, np.ones((60, 1), np.float32)))
    for name in ("input", "weight"):
        np.testing.assert_allclose(result[name], expected[name], rtol=0, atol=2e-6 * np.abs(expected[name]).max())


def test_ids_of_a_confident_position_lose_nothing() -> None:
    """p is 0.999 at an id among others: dX has the bound of float32 operands, far below what bf16 of g alone leaves."""
    problem = of_ids("half at 0.999", 64, Sizes(130, 48, 300, FP32), ignore_index=-100)
    lse = scores_forward_reference(problem)["lse"].astype(np.float32)
    tile = np.zeros(problem.targets.shape, np.float32)
    tile[:, 0] = 1.0
    check_backward(problem, Launch(), ScoreInputs(lse, tile))


def test_classes_at_ends_of_tiles_and_an_ignore_index_that_is_a_class() -> None:
    """Ids at both ends of every tile of 128 classes of both cores; class 5 is ignored and has no gradient."""
    problem = problem_of("normal", Sizes(130, 32, 1100, FP32))
    ends = np.array([0, 127, 128, 255, 256, 511, 512, 549, 550, 551, 575, 576, 639, 640, 1098, 1099, 5], np.int32)
    targets = np.stack([np.roll(ends, shift) for shift in range(130)])
    ignoring = replace(problem, targets=targets, options=ExtendedLoss(ignore_index=5))
    for class_block in (None, 128):
        check_both(ignoring, Launch(class_block=class_block))


def test_without_a_gradient_of_the_log_probabilities() -> None:
    problem = of_ids("normal", 3, Sizes(60, 32, 300, FP32))
    expected = scores_forward_reference(problem)
    lse, entropy = (expected[name].astype(np.float32) for name in ("lse", "entropy"))
    inputs = upstream_of(problem, lse, entropy, of_lse=True)
    check_backward(problem, Launch(), replace(inputs, grad_logprob=None))
    check_backward(problem, Launch(), replace(inputs, grad_logprob=None, entropy=None, grad_entropy=None))


def test_a_sum_of_dw_and_single_gradients() -> None:
    problem = of_ids("normal", 3, Sizes(60, 32, 300, BF16))
    upstream = upstream_of(problem, scores_forward_reference(problem)["lse"].astype(np.float32))
    start = np.random.default_rng(8).standard_normal(problem.weight.shape).astype(np.float32)
    total = start.copy()
    launched = Launch().gradients(problem, upstream, grad_weight_sum_hbm=total, grad_input_wanted=False)
    exact, bounds = scores_gradients_and_bounds(problem, upstream)
    off = np.abs(launched["weight"].astype(np.float64) - start - exact.weight)
    assert (off <= bounds.weight + 2.0**-23 * np.abs(launched["weight"])).all()
    check_backward(problem, Launch(), upstream, grad_weight_wanted=False)


def test_wrong_results_exceed_the_bounds() -> None:
    """Zeros, other signs, other positions, and gradients in which one of 64 ids is left out."""
    problem = of_ids("normal", 64, Sizes(130, 48, 300, BF16))
    expected, bounds = scores_forward_reference(problem), scores_forward_bounds(problem)
    for wrong in (0.0 * expected["logprob"], -expected["logprob"], expected["logprob"][::-1]):
        assert np.median(error_over_bound(wrong, expected["logprob"], bounds["logprob"])) > 10
    upstream = upstream_of(problem, expected["lse"].astype(np.float32))
    references, allowed = scores_gradients_and_bounds(problem, upstream)
    for value, other in zip(references, scores_backward_reference(problem, upstream), strict=True):
        np.testing.assert_array_equal(value, other)
    assert upstream.grad_logprob is not None
    less = upstream.grad_logprob.copy()
    less[:, 5] = 0.0
    without = scores_backward_reference(problem, replace(upstream, grad_logprob=less))
    for name in ("input", "weight"):
        exact, bound = getattr(references, name), getattr(allowed, name)
        assert (np.abs(getattr(without, name) - exact) > bound).mean() > 0.3, name
        for wrong in (0.0 * exact, -exact, exact[::-1]):
            assert np.median(np.abs(wrong - exact) / bound) > 10
