# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels of several target ids of each position: against float64, and their refusals before anything is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import (
    choose_linear_tiling,
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_token_scores_backward,
    linear_token_scores_forward,
)
from nkilib.experimental.loss.cross_entropy.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.reference import ExtendedLoss
from nkilib.experimental.loss.linear_cross_entropy.host.reference import LinearProblem
from nkilib.experimental.loss.linear_cross_entropy.host.token_scores import (
    ScoreInputs,
    scores_backward_reference,
    scores_forward_bounds,
    scores_forward_reference,
    scores_gradients_and_bounds,
)

from .launch_checks import (
    SCORES_WANTED,
    ScoreLaunch,
    check_backward,
    check_forward,
    check_gradients,
    upstream_of,
    with_ids,
)
from .linear_inputs import BF16, FP16, FP32, Sizes, in_layout, problem_of

IDS = (2, 9, 64)
TYPES = (FP32, BF16, FP16)


def of_ids(kind: str, ids: int, sizes: Sizes, layout: str = "vd", **options: float | None) -> LinearProblem:
    """One of the problems, with ids."""
    problem = replace(problem_of(kind, sizes), options=ExtendedLoss(**options))  # type: ignore[arg-type]
    return in_layout(with_ids(problem, ids), layout)


def check_both(problem: LinearProblem, launch: ScoreLaunch, of_lse: bool = False, of_entropy: bool = False) -> None:
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
    check_both(problem, ScoreLaunch(1 + number % 2, None, None if number % 3 else 128))


@pytest.mark.parametrize("kind", ["half at 0.999", "spread 50", "bias 1e4", "masked classes", "duplicate rows"])
def test_hard_rows(kind: str) -> None:
    """Hard rows are checked with gradients of all results, a temperature, and a cap or none."""
    number = len(kind)
    cap = 5.0 if kind in ("masked classes", "half at 0.999") else None
    problem = of_ids(kind, 9, Sizes(130, 48, 300, TYPES[number % 3]), temperature=0.7, logit_softcap=cap)
    check_both(problem, ScoreLaunch(class_block=128, wanted=SCORES_WANTED), of_lse=True, of_entropy=kind != "spread 50")


@pytest.mark.parametrize("ids", [2, 17])
def test_several_blocks_of_positions_and_classes_in_loops(ids: int) -> None:
    """Programs so short that classes are loops of the device; classes that the cores share in the forward."""
    problem = of_ids("normal", ids, Sizes(260, 32, 2300, BF16))
    with shrunk(PlanLimits(program_instructions=900)):
        check_both(problem, ScoreLaunch(position_block=128, class_block=256))
    with shrunk(PlanLimits(shared_classes=200)):
        check_forward(problem, ScoreLaunch(position_block=256, class_block=128))


def test_positions_in_parts() -> None:
    """More positions than a part has: rows as of a launch that is not split."""
    problem = of_ids("normal", 3, Sizes(400, 32, 300, FP32))
    lse = scores_forward_reference(problem)["lse"].astype(np.float32)
    upstream = upstream_of(problem, lse)
    whole = check_backward(problem, ScoreLaunch(), upstream)
    with shrunk(PlanLimits(positions=256)):
        split = check_backward(problem, ScoreLaunch(), upstream)
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
        results = ScoreLaunch(wanted=("target",), class_block=128).results(part, **shard)
        is_here = (problem.targets >= first) & (problem.targets < last)
        np.testing.assert_array_equal(results["target_logit"][~is_here], 0.0)
        logits += results["target_logit"]
        gradients = ScoreLaunch().gradients(part, upstream, grad_input_float32=True, **shard)
        classes = slice(first, last)
        check_gradients(gradients, *scores_gradients_and_bounds(problem, upstream, classes))
    assert error_over_bound(logits, expected["target_logit"], bounds["target_logit"]).max() <= 1.0


def test_one_id_is_linear_cross_entropy() -> None:
    """Scores are bitwise identical to minus the loss of one id, and gradients to those of its log-probability."""
    problem = problem_of("half at 0.999", Sizes(200, 48, 300, BF16))
    loss, lse = linear_cross_entropy_forward[2](problem.input, problem.weight, problem.targets)[:2]
    one = replace(problem, targets=problem.targets[:, np.newaxis])
    results = ScoreLaunch().results(one)
    np.testing.assert_array_equal(results["logprob"], 0.0 - loss[:, np.newaxis])
    np.testing.assert_array_equal(results["lse"], lse)
    upstream = upstream_of(one, lse)
    assert upstream.grad_logprob is not None
    expected = linear_cross_entropy_backward[2](
        problem.input, problem.weight, problem.targets, lse, grad_logprob_hbm=upstream.grad_logprob[:, 0]
    )
    for name, gradient in zip(("input", "weight"), expected, strict=True):
        np.testing.assert_array_equal(ScoreLaunch().gradients(one, upstream)[name], gradient)
    check_backward(one, ScoreLaunch(), upstream)


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
    result = ScoreLaunch().gradients(replace(problem, targets=pairs), ScoreInputs(lse, gradients))
    expected = check_backward(one, ScoreLaunch(), ScoreInputs(lse, np.ones((60, 1), np.float32)))
    for name in ("input", "weight"):
        np.testing.assert_allclose(result[name], expected[name], rtol=0, atol=2e-6 * np.abs(expected[name]).max())


def test_ids_of_a_confident_position_lose_nothing() -> None:
    """p is 0.999 at an id among others: dX has the bound of float32 operands, far below what bf16 of g alone leaves."""
    problem = of_ids("half at 0.999", 64, Sizes(130, 48, 300, FP32), ignore_index=-100)
    lse = scores_forward_reference(problem)["lse"].astype(np.float32)
    tile = np.zeros(problem.targets.shape, np.float32)
    tile[:, 0] = 1.0
    check_backward(problem, ScoreLaunch(), ScoreInputs(lse, tile))


def test_classes_at_ends_of_tiles_and_an_ignore_index_that_is_a_class() -> None:
    """Ids at both ends of every tile of 128 classes of both cores; class 5 is ignored and has no gradient."""
    problem = problem_of("normal", Sizes(130, 32, 1100, FP32))
    ends = np.array([0, 127, 128, 255, 256, 511, 512, 549, 550, 551, 575, 576, 639, 640, 1098, 1099, 5], np.int32)
    targets = np.stack([np.roll(ends, shift) for shift in range(130)])
    ignoring = replace(problem, targets=targets, options=ExtendedLoss(ignore_index=5))
    for class_block in (None, 128):
        check_both(ignoring, ScoreLaunch(class_block=class_block))


def test_without_a_gradient_of_the_log_probabilities() -> None:
    problem = of_ids("normal", 3, Sizes(60, 32, 300, FP32))
    expected = scores_forward_reference(problem)
    lse, entropy = (expected[name].astype(np.float32) for name in ("lse", "entropy"))
    inputs = upstream_of(problem, lse, entropy, of_lse=True)
    check_backward(problem, ScoreLaunch(), replace(inputs, grad_logprob=None))
    check_backward(problem, ScoreLaunch(), replace(inputs, grad_logprob=None, entropy=None, grad_entropy=None))


def test_a_sum_of_dw_and_single_gradients() -> None:
    problem = of_ids("normal", 3, Sizes(60, 32, 300, BF16))
    upstream = upstream_of(problem, scores_forward_reference(problem)["lse"].astype(np.float32))
    start = np.random.default_rng(8).standard_normal(problem.weight.shape).astype(np.float32)
    total = start.copy()
    launched = ScoreLaunch().gradients(problem, upstream, grad_weight_sum_hbm=total, grad_input_wanted=False)
    exact, bounds = scores_gradients_and_bounds(problem, upstream)
    off = np.abs(launched["weight"].astype(np.float64) - start - exact.weight)
    assert (off <= bounds.weight + 2.0**-23 * np.abs(launched["weight"])).all()
    check_backward(problem, ScoreLaunch(), upstream, grad_weight_wanted=False)


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


ROWS, FEATURES, CLASSES, REFUSED_IDS = 5, 16, 20, 3
VECTOR = np.zeros(ROWS, np.float32)
_OF_TARGETS: list[tuple[dict[str, Any], str]] = [
    (
        {"targets_hbm": np.zeros(ROWS, np.int32)},
        "targets_hbm must have shape (5, K), K target ids for each row of input_hbm, got (5,); pass [N, 1] for one id",
    ),
    (
        {"targets_hbm": np.zeros((4, REFUSED_IDS), np.int32)},
        "targets_hbm must have shape (5, K), K target ids for each row of input_hbm, got (4, 3); "
        "pass [N, 1] for one id",
    ),
    (
        {"targets_hbm": np.zeros((ROWS, 65), np.int32)},
        "targets_hbm must have 1 to 64 target ids for each position, got shape (5, 65); launch several times for more",
    ),
    (
        {"targets_hbm": np.zeros((ROWS, REFUSED_IDS), np.float32)},
        "targets_hbm must be int32, got float32; cast the targets to int32",
    ),
    (
        {"weight_hbm": np.zeros((CLASSES, FEATURES + 1), np.float32)},
        "weight_hbm must be [vocab_size, num_features] with the 16 features of input_hbm by weight_layout='vd', "
        "got shape (20, 17); pass weight_layout='dv' for its transpose",
    ),
    (
        {"temperature": 0.0},
        "temperature must be a number from 1e-06 to 1000000.0, got 0.0; pass 1.0 for none",
    ),
    ({"logit_scale": -1.0}, "logit_scale must be a number from 1e-06 to 1000000.0, got -1.0; pass 1.0 for none"),
]
_OF_UPSTREAM: list[tuple[dict[str, Any], str]] = [
    (
        {"grad_logprob_hbm": VECTOR},
        "grad_logprob_hbm must have the shape of targets_hbm, (5, 3), got (5,); "
        "pass a gradient for each log-probability",
    ),
    (
        {"grad_logprob_hbm": np.zeros((ROWS, REFUSED_IDS), np.float16)},
        "grad_logprob_hbm must be float32, got float16; cast it to float32",
    ),
    (
        {"grad_logprob_hbm": None},
        "at least one of grad_logprob_hbm, grad_lse_hbm, grad_entropy_hbm must be a tensor, got none; "
        "launch nothing where no gradient comes",
    ),
    (
        {"maximum_hbm": VECTOR},
        "maximum_hbm and log_sum_hbm belong together, got one of them; pass both, or neither",
    ),
    (
        {"grad_entropy_hbm": VECTOR},
        "entropy_hbm and grad_entropy_hbm belong together, got one of them; pass both, or neither",
    ),
    (
        {"lse_hbm": np.zeros(4, np.float32)},
        "lse_hbm must have shape (5,), got (4,); flatten it as the rows of the input",
    ),
    (
        {"grad_weight_wanted": False, "grad_input_wanted": False},
        "at least one of grad_input_wanted, grad_weight_wanted and grad_bias_wanted must be True, got none; "
        "launch nothing where no gradient is wanted",
    ),
]


def accepted() -> dict[str, Any]:
    """Arguments of both kernels."""
    return {
        "input_hbm": np.ones((ROWS, FEATURES), np.float32),
        "weight_hbm": np.ones((CLASSES, FEATURES), np.float32),
        "targets_hbm": np.zeros((ROWS, REFUSED_IDS), np.int32),
    }


def refusal_of(kernel: Any, arguments: dict[str, Any]) -> str:
    """The message, without an instruction before it."""
    with nkilib.simulator.recording() as record, pytest.raises(AssertionError) as caught:
        kernel(**arguments)
    assert not record.instruction_counts
    return str(caught.value)


@pytest.mark.parametrize(("wrong", "message"), _OF_TARGETS)
def test_the_forward_refuses(wrong: dict[str, Any], message: str) -> None:
    error = refusal_of(linear_token_scores_forward[2], {**accepted(), **wrong})
    assert error == f"linear_token_scores_forward: {message}"


@pytest.mark.parametrize(("wrong", "message"), [*_OF_TARGETS, *_OF_UPSTREAM])
def test_the_backward_refuses(wrong: dict[str, Any], message: str) -> None:
    upstream = {
        "lse_hbm": VECTOR,
        "grad_logprob_hbm": np.zeros((ROWS, REFUSED_IDS), np.float32),
    }
    error = refusal_of(linear_token_scores_backward[2], {**accepted(), **upstream, **wrong})
    assert error == f"linear_token_scores_backward: {message}"


def test_the_chooser_of_tilings_takes_1_to_64_ids() -> None:
    assert choose_linear_tiling(300, 64, 1000, "bfloat16", "backward", ids=64)
    for ids in (0, 65):
        with pytest.raises(ValueError, match="ids must be"):
            choose_linear_tiling(300, 64, 1000, "bfloat16", "backward", ids=ids)
