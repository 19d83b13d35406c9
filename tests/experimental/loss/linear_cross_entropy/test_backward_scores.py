# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradients of entropies, log-probabilities and lse together: against float64 within derived bounds, and their
errors.

Errors and bias are those of launches as trainers ask for them: X ~ N(0, 1), W ~ N(0, (2.5 / sqrt D)^2), uniform
targets, upstream gradients N(0, 1) of the log-probability and a tenth of that of the entropy; the reference is float64
of the very inputs. A gradient of bfloat16 products is rounded twice, each tile of the logits' gradient and the result,
by 1.7e-3 of itself each in norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import linear_cross_entropy_backward
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    linear_backward_reference,
    linear_forward_reference,
)
from tests.experimental.loss.linear_cross_entropy.linear_inputs import (
    BF16,
    FP16,
    FP32,
    OPTIONS,
    PROBLEMS,
    Array,
    Sizes,
    normal_problem,
    problem_of,
    upstream_of,
    with_ignored,
    with_options,
)
from tests.experimental.loss.linear_cross_entropy.test_backward import BLOCKS, Launched, launched

SIZES = Sizes(150, 160, 310)
# With maximum and log_sum, and without: of each type one is always tested, and the other one is swept.
FORMS = [
    pytest.param(dtype, with_pair, id=f"{dtype}-{with_pair}", marks=() if is_usual else pytest.mark.sweep)
    for dtype, with_pair, is_usual in (
        (BF16, True, True),
        (BF16, False, False),
        (FP16, True, False),
        (FP16, False, True),
        (FP32, True, True),
        (FP32, False, False),
    )
]
TYPES_AND_PAIRS = pytest.mark.parametrize(("dtype", "with_pair"), FORMS)
# Of temperature, scale and cap.
SCALES = ((0.05, 1.0, None), (20.0, 1.0, None), (0.8, 2.5, None), (0.05, 1.0, 8.0), (20.0, 0.25, 5.0), (1.0, 3.0, 30.0))

# Of dX and dW: in norm and of the worst row, relative, at the size that peers were measured at. The best of them has
# 2.33e-3 and 4.3e-3 of dW there; at most 1.01 and 1.1 of that.
LARGE = Sizes(2048, 2048, 32000)
OF_INPUT, OF_WEIGHT = (2.35e-3, 4.5e-3), (1.01 * 2.33e-3, 1.1 * 4.3e-3)
# Of few positions and classes a sum has fewer terms, and what they are rounded by is less equal.
SMALL, OF_SMALL = Sizes(256, 256, 2000), (2.45e-3, 5.0e-3)
OF_FLOAT32 = 1.8e-3
BATCHES, STANDARD_ERRORS = 64, 4.0
BIAS = {BF16: 1e-4, FP32: 1e-6}
Gradients = dict[str, Array]


def given_to(problem: LinearProblem, further: bool = True) -> BackwardInputs:
    """Upstream gradients of the entropy and of the loss; ``further``: of lse and log-probability too."""
    forward = linear_forward_reference(problem)
    lse, entropy = forward.lse.astype(np.float32), forward.entropy.astype(np.float32)
    return upstream_of(problem, lse, further, entropy)


def pair_of(problem: LinearProblem) -> dict[str, Array]:
    """The two numbers of each position that lse is the sum of, as the forward returns them."""
    logits = problem.logits_of(slice(None), problem.classes_first)
    maximum = problem.recipe.scores(logits, None).max(axis=1).astype(np.float32)
    return {
        "maximum_hbm": maximum,
        "log_sum_hbm": (linear_forward_reference(problem).lse - maximum).astype(np.float32),
    }


def scaled_problem(problem: LinearProblem, scale: tuple[float, float, float | None]) -> LinearProblem:
    """The problem with a temperature, a scale of its logits and a cap."""
    temperature, logit_scale, cap = scale
    options = replace(problem.options, temperature=temperature, logit_softcap=cap)
    return replace(problem, options=options, logit_scale=logit_scale)


def wrong_results(result: Launched) -> list[Launched]:
    """The same launch with results that no bound may take: zeros, the opposite, and rows in another order."""
    changes = (np.zeros_like, np.negative, lambda array: np.roll(array, 1, axis=0))
    return [
        replace(result, found={name: change(np.asarray(array))})
        for change in changes
        for name, array in result.found.items()
    ]


@TYPES_AND_PAIRS
@pytest.mark.parametrize("kind", PROBLEMS)
def test_gradients_of_hard_rows_are_within_their_bounds(kind: str, with_pair: bool, dtype: Any) -> None:
    problem = problem_of(kind, replace(SIZES, dtype=dtype), layout="dv" if dtype == FP32 else "vd")
    actual = launched(problem, given_to(problem), **(pair_of(problem) if with_pair else {}))
    assert all(np.isfinite(np.float32(result)).all() for result in actual.found.values())
    actual.check()


def test_the_bounds_refuse_other_gradients() -> None:
    for kind in ("normal", "half at 0.999", "masked classes"):
        problem = problem_of(kind, SIZES)
        for wrong in wrong_results(launched(problem, given_to(problem))):
            with pytest.raises(AssertionError):
                wrong.check()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if dtype == BF16 or name == "all" else pytest.mark.sweep)
        for name in OPTIONS
        for dtype in (BF16, FP16, FP32)
    ],
    ids=str,
)
def test_gradients_with_options_are_within_their_bounds(name: str, dtype: Any) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(140, 64, 300, dtype)), name)
    launched(problem, given_to(problem)).check()


@TYPES_AND_PAIRS
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_temperatures_scales_and_caps(scale: tuple[float, float, float | None], dtype: Any, with_pair: bool) -> None:
    problem = scaled_problem(problem_of("half at 0.999", Sizes(140, 64, 300, dtype)), scale)
    pair = pair_of(problem) if with_pair else {}
    launched(problem, given_to(problem), **pair).check()
    if dtype == BF16:
        launched(problem, replace(given_to(problem), entropy=None, grad_entropy=None), **pair).check()


@pytest.mark.parametrize(
    ("dtype", "with_pair", "scale"),
    [(BF16, True, SCALES[1]), (FP16, False, SCALES[2]), (FP32, True, SCALES[2]), (BF16, False, SCALES[3])],
    ids=str,
)
def test_masked_classes_get_no_gradient(scale: tuple[float, float, float | None], dtype: Any, with_pair: bool) -> None:
    problem = scaled_problem(problem_of("masked classes", Sizes(140, 64, 300, dtype)), scale)
    assert problem.bias is not None
    masked = np.isneginf(problem.bias)
    result = launched(problem, given_to(problem), **(pair_of(problem) if with_pair else {}))
    result.check()
    assert not np.float32(result.found["weight"])[masked].any() and not result.found["bias"][masked].any()


@pytest.mark.parametrize("positions", [1, 2, 127, 128, 129, 300])
def test_any_number_of_positions(positions: int) -> None:
    for cores, dtype in ((1, FP32), (2, BF16)):
        problem = problem_of("normal", Sizes(positions, 48, 260, dtype))
        launched(problem, given_to(problem), cores, position_block=None, class_block=None).check()


@pytest.mark.parametrize(
    ("dtype", "cap", "with_pair"),
    [(BF16, None, True), (BF16, 6.0, False), (FP16, None, False), (FP32, 6.0, True)],
    ids=str,
)
@pytest.mark.parametrize("given", [("entropy",), ("lse",), ("logprob",), ("entropy", "lse"), ("entropy", "logprob")])
def test_a_gradient_that_is_not_given_is_zero(
    given: tuple[str, ...], cap: float | None, dtype: Any, with_pair: bool
) -> None:
    """Without a gradient of the loss its options are not looked at, whatever else is given."""
    base = with_options(problem_of("30% ignored", Sizes(130, 48, 260, dtype)), "weights, smoothing")
    problem = replace(base, options=replace(base.options, logit_softcap=cap))
    whole = given_to(problem)
    kept = {f"grad_{name}": getattr(whole, f"grad_{name}") for name in given}
    upstream = BackwardInputs(
        whole.lse,
        np.zeros_like(whole.lse),
        kept.get("grad_lse"),
        kept.get("grad_logprob"),
        whole.entropy if "entropy" in given else None,
        kept.get("grad_entropy"),
    )
    launched(problem, upstream, grad_loss_hbm=None, **(pair_of(problem) if with_pair else {})).check()


def test_ignored_positions_have_the_gradients_of_entropy_and_lse_alone() -> None:
    problem = with_ignored(normal_problem(SIZES, np.random.default_rng(3)), np.random.default_rng(4), 1.1)
    whole = given_to(problem)
    results = launched(problem, whole).found
    nothing = np.full_like(whole.grad_loss, np.nan)
    other = launched(problem, replace(whole, grad_loss=nothing, grad_logprob=nothing), grad_weight_wanted=True).found
    for name, array in results.items():
        assert np.asarray(array).any()
        np.testing.assert_array_equal(other[name], array)


@pytest.mark.parametrize("power", [-40, -10])
def test_float16_takes_the_power_of_two_of_the_largest_gradient(power: int) -> None:
    """The entropy's gradient is by far the largest one, or the smallest one: neither overflows, nor is it lost."""
    problem = problem_of("half at 0.999", Sizes(140, 48, 260, FP16))
    for ratio in (2.0**-20, 1.0, 2.0**20):
        usual = given_to(problem)
        usual = replace(usual, grad_entropy=usual.grad_entropy * np.float32(ratio))
        scaled = {
            name: getattr(usual, name) * np.float32(2.0**power)
            for name in ("grad_loss", "grad_lse", "grad_logprob", "grad_entropy")
        }
        first, second = (launched(problem, item, grad_input_float32=True) for item in (usual, replace(usual, **scaled)))
        second.check()
        np.testing.assert_array_equal(second.found["input"], first.found["input"] * np.float32(2.0**power))


@pytest.mark.parametrize(("dtype", "least"), [(BF16, 2.0**-9), (FP16, 2.0**-11), (FP32, 2.0**-21)], ids=str)
def test_maximum_and_log_sum_keep_the_digits_of_large_logits(dtype: Any, least: float) -> None:
    """Logits about 2^17 that are exact, being integers: lse loses 2^-7 of them to its rounding, and p a share of that.

    With the pair p loses nothing. log p, which the entropy takes, does in 16 bits, where a tile has no more time.
    """
    rng, sizes = np.random.default_rng(6), Sizes(130, 64, 300, dtype)
    problem = replace(
        normal_problem(sizes, rng),
        input=rng.integers(-1, 2, (sizes.positions, sizes.features)).astype(dtype),
        weight=rng.integers(-1, 2, (sizes.classes, sizes.features)).astype(dtype),
        bias=np.full(sizes.classes, 2.0**17, np.float32),
    )
    forward, usual = linear_forward_reference(problem), given_to(problem)
    for upstream in (replace(usual, entropy=None, grad_entropy=None), usual):
        expected = linear_backward_reference(problem, replace(upstream, lse=forward.lse)).bias
        off = []
        for pair in ({}, pair_of(problem)):
            result = launched(problem, upstream, **pair).found["bias"]
            off.append(float(np.linalg.norm(result - expected) / np.linalg.norm(expected)))
        assert off[0] > 1e-3 and off[1] < least + (0.0 if upstream.entropy is None or dtype == FP32 else 2.0**-8), off


def test_shards_of_the_vocabulary_give_the_parts_of_the_whole() -> None:
    problem = problem_of("30% ignored", Sizes(100, 64, 300, FP32))
    upstream = given_to(problem)
    exact = linear_backward_reference(problem, upstream)
    of_input = np.zeros(problem.input.shape)
    for first, end in ((0, 130), (130, 300)):
        shard = slice(first, end)
        result, of_weight = linear_cross_entropy_backward[2](
            problem.input,
            problem.weight[shard],
            problem.targets,
            upstream.lse,
            upstream.grad_loss,
            grad_lse_hbm=upstream.grad_lse,
            grad_logprob_hbm=upstream.grad_logprob,
            entropy_hbm=upstream.entropy,
            grad_entropy_hbm=upstream.grad_entropy,
            **pair_of(problem),
            **BLOCKS,
            first_class=first,
            num_classes=300,
        )
        of_input += result
        np.testing.assert_allclose(of_weight, exact.weight[shard], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(of_input, exact.input, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("blocks", "layout"), [((128, 256), "dv"), ((256, 384), "vd"), ((512, 1024), "vd")])
def test_gradients_do_not_depend_on_the_blocks(blocks: tuple[int, int], layout: str) -> None:
    problem = problem_of("normal", Sizes(300, 200, 1100, BF16), layout=layout)
    total = np.zeros(problem.weight.shape, np.float32)
    further = {"grad_weight_sum_hbm": total} if blocks == (256, 384) else {}
    launched(problem, given_to(problem), position_block=blocks[0], class_block=blocks[1], **further).check()


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_is_in_its_position_and_in_the_weight(value: float) -> None:
    for dtype in (BF16, FP32):
        problem = problem_of("normal", Sizes(140, 48, 260, dtype))
        upstream = given_to(problem)
        changed = upstream.grad_entropy.copy()
        changed[3] = value
        results = launched(problem, replace(upstream, grad_entropy=changed)).found
        rows = ~np.isfinite(np.float32(results["input"]))
        assert rows[3].all() and not np.delete(rows, 3, axis=0).any()
        assert not np.isfinite(np.float32(results["weight"])).any()


def test_logits_that_are_not_finite_make_nan_of_their_position() -> None:
    problem = problem_of("normal", Sizes(140, 48, 260, FP32))
    changed = problem.input.copy()
    changed[3, 0] = np.inf
    problem = replace(problem, input=changed)
    with np.errstate(all="ignore"):
        upstream = given_to(problem)
        results = launched(problem, upstream).found
    rows = np.isnan(results["input"])
    assert rows[3].all() and not np.delete(rows, 3, axis=0).any()


def gradients(sizes: Sizes, seed: int, *, unrounded: bool = False) -> tuple[Gradients, Gradients]:
    """Return the gradients of a launch, and those of the reference."""
    rng = np.random.default_rng(seed)
    problem = normal_problem(sizes, rng, spread=2.5)
    of_logprob = rng.standard_normal(sizes.positions).astype(np.float32)
    of_entropy = (0.1 * rng.standard_normal(sizes.positions)).astype(np.float32)
    forward = linear_forward_reference(problem)
    further: dict[str, Any] = {}
    if unrounded:
        further["grad_weight_sum_hbm"] = np.zeros(problem.weight.shape, np.float32)
    results = linear_cross_entropy_backward[2](
        problem.input,
        problem.weight,
        problem.targets,
        forward.lse.astype(np.float32),
        None,
        grad_logprob_hbm=of_logprob,
        entropy_hbm=forward.entropy.astype(np.float32),
        grad_entropy_hbm=of_entropy,
        grad_input_float32=unrounded,
        **further,
    )
    nothing = np.zeros(sizes.positions, np.float32)
    inputs = BackwardInputs(forward.lse, nothing, None, of_logprob, forward.entropy, of_entropy)
    expected = linear_backward_reference(problem, inputs)
    names = ("input", "weight")
    return (
        {name: np.asarray(result, np.float64) for name, result in zip(names, results, strict=True)},
        {name: getattr(expected, name) for name in names},
    )


def errors(result: Array, expected: Array) -> tuple[float, float]:
    """Relative: in norm, and of the worst row."""
    off = result - expected
    worst = np.linalg.norm(off, axis=1) / np.linalg.norm(expected, axis=1)
    return float(np.linalg.norm(off) / np.linalg.norm(expected)), float(worst.max())


def biases(sizes: Sizes) -> Iterator[tuple[str, float, float]]:
    """The mean over the batches of the error along each gradient, relative, and its standard error."""
    shares: dict[str, list[float]] = {}
    for seed in range(BATCHES):
        result, expected = gradients(sizes, seed)
        for name, exact in expected.items():
            along = float(((result[name] - exact) * exact).sum() / np.square(exact).sum())
            shares.setdefault(name, []).append(along)
    for name, values in shares.items():
        yield name, float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(BATCHES))


def test_errors_are_those_of_two_roundings() -> None:
    result, expected = gradients(SMALL, 0)
    for name, exact in expected.items():
        norm, worst = errors(result[name], exact)
        assert norm <= OF_SMALL[0] and worst <= OF_SMALL[1], (name, norm, worst)
        for wrong in (0.0 * exact, -exact, np.roll(exact, 1, axis=0)):
            assert errors(wrong, exact)[0] > 0.5


def test_errors_of_unrounded_gradients_are_those_of_one() -> None:
    result, expected = gradients(SMALL, 0, unrounded=True)
    for name, exact in expected.items():
        assert errors(result[name], exact)[0] <= OF_FLOAT32, name


@pytest.mark.sweep
def test_errors_at_the_size_of_a_model() -> None:
    result, expected = gradients(LARGE, 0)
    for name, (most, worst) in (("input", OF_INPUT), ("weight", OF_WEIGHT)):
        norm, of_row = errors(result[name], expected[name])
        assert norm <= most and of_row <= worst, (name, norm, of_row)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("sizes", [(48, 32, 160), pytest.param((256, 256, 2000), marks=pytest.mark.sweep)], ids=str)
def test_training_has_no_bias(sizes: tuple[int, int, int], dtype: Any) -> None:
    for name, mean, standard_error in biases(Sizes(*sizes, dtype)):
        assert abs(mean) <= max(STANDARD_ERRORS * standard_error, BIAS[dtype]), (name, mean, standard_error)


def test_a_bias_would_be_found() -> None:
    """Rounding towards zero, as bits that are cut off have it, is more than the limit allows."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(BATCHES):
        exact = rng.standard_normal(4000).astype(np.float32)
        cut_off = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
        shares.append(float(((cut_off - exact) * exact).sum() / np.square(exact).sum()))
    standard_error = np.std(shares, ddof=1) / np.sqrt(BATCHES)
    assert abs(np.mean(shares)) > max(STANDARD_ERRORS * standard_error, BIAS[BF16])
