# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Results of calls of the fuzz are within their bounds, in a short sample and in five minutes of new calls; a wrong
result is seen, of every function and of one stripe alone; a sum in any order is within its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.fuzz.__main__ import main
from benchmarks.fuzz.call import Expected
from benchmarks.fuzz.draw import MIDDLE, SMALL, Draw
from benchmarks.fuzz.families import cross_entropy, linear_cross_entropy, softmax
from benchmarks.fuzz.families.common import sum_error, summed
from benchmarks.fuzz.one_call import Verdict, judged, run_call
from benchmarks.fuzz.registry import FUZZED
from benchmarks.fuzz.workers import one_rank

Array = npt.NDArray[Any]
STRIPE: Final = 128


def not_a_number(values: Array) -> Array:
    """One element in the middle."""
    wrong = values.copy()
    wrong.reshape(-1)[wrong.size // 2] = np.nan
    return wrong


def transposed(values: Array) -> Array:
    """The elements in the order of the transposed matrix; of one dimension, from back to front."""
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    wrong = rows[:, ::-1] if min(rows.shape) == 1 else rows.T
    return np.ascontiguousarray(wrong).reshape(values.shape)


# Results that are wrong in the ways that kernels were.
WRONG: Final[dict[str, Callable[[Array], Array]]] = {
    "zeros": np.zeros_like,
    "flipped": np.negative,
    "NaN": not_a_number,
    "transposed": transposed,
}


def wrong_rows(values: Array) -> Array:
    """One stripe of 128 rows is that of the rows before."""
    wrong = values.copy()
    wrong[STRIPE : 2 * STRIPE] = values[:STRIPE]
    return wrong


def wrong_columns(values: Array) -> Array:
    """The same of columns."""
    wrong = values.copy()
    wrong[..., STRIPE : 2 * STRIPE] = values[..., :STRIPE]
    return wrong


def missing_rows(values: Array) -> Array:
    """One stripe of 128 rows was never written."""
    wrong = values.copy()
    wrong[STRIPE : 2 * STRIPE] = 0
    return wrong


STRIPES: Final = {"wrong rows": wrong_rows, "wrong columns": wrong_columns, "missing rows": missing_rows}


SEED_OF_WRONG_RESULTS = 2712
TRIES = 40
# Elements that a gradient has at least, so that its transposed one is another.
FEWEST = 100


@pytest.fixture(scope="module", autouse=True)
def _rank() -> Iterator[None]:
    with one_rank():
        yield


@dataclass(frozen=True)
class Ran:
    """A call that was right."""

    values: dict[str, np.ndarray]
    expected: dict[str, Expected]

    def with_wrong(self, name: str, values: np.ndarray) -> Verdict:
        """The verdict where one result is another."""
        return judged({**self.values, name: values}, self.expected)


def ran(function: str, number: int) -> Ran:
    """A call, with its reference."""
    call = FUZZED[function].drawn(Draw(SEED_OF_WRONG_RESULTS, number, SMALL), function)
    results = call.run(Draw(SEED_OF_WRONG_RESULTS, number, SMALL, part=1))
    return Ran(results.values, call.reference(results))


@cache
def telling(function: str) -> tuple[Ran, str]:
    """The first call of which a bound is small beside the first gradient, which is no vector of a few elements."""
    for number in range(TRIES):
        sample = ran(function, number)
        verdict = judged(sample.values, sample.expected)
        assert not verdict.complaints, verdict.complaints
        name = next(value for value in sample.values if value.startswith("grad_"))
        values = sample.values[name].astype(np.float64)
        is_large = values.size >= FEWEST and np.isfinite(values).all() and min(values.reshape(len(values), -1).shape)
        if is_large and not verdict.blunt and (values != 0.0).mean() > 0.01 and np.ptp(values) > 0.0:
            return sample, name
    raise AssertionError(f"no call of {function} is telling")


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("function", FUZZED)
def test_a_wrong_gradient_of_every_function_is_seen(function: str, kind: str) -> None:
    sample, name = telling(function)
    verdict = sample.with_wrong(name, WRONG[kind](sample.values[name]))
    assert verdict.complaints and verdict.worst > 1.0


@pytest.mark.parametrize("kind", ["zeros", "flipped", "NaN"])
@pytest.mark.parametrize("function", FUZZED)
def test_a_wrong_loss_of_every_function_is_seen(function: str, kind: str) -> None:
    sample, _ = telling(function)
    name = "logprob" if function in ("token_scores", "linear_token_scores") else "loss"
    assert sample.with_wrong(name, WRONG[kind](sample.values[name])).complaints


@pytest.mark.parametrize("kind", STRIPES)
@pytest.mark.parametrize("name", ["grad_input", "grad_linear_weight"])
def test_one_wrong_stripe_of_a_linear_gradient_is_seen(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_cross_entropy, "sizes", lambda draw: (300, 320, 400))
    monkeypatch.setattr(linear_cross_entropy, "_wanted", lambda draw, has_bias: ("input", "linear_weight"))
    monkeypatch.setattr(linear_cross_entropy, "_form", lambda *arguments: "two launches")
    _check_stripe(ran("linear_cross_entropy", 0), name, kind)


@pytest.mark.parametrize("kind", STRIPES)
def test_one_wrong_stripe_of_a_gradient_of_logits_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draw, "sizes", lambda *arguments, **keywords: (300, 400))
    monkeypatch.setattr(cross_entropy._Layout, "drawn", lambda *arguments: cross_entropy._Layout("[N, V]", (300,), -1))
    sample = ran("cross_entropy", 2)
    _check_stripe(sample, "grad_input", kind)


@pytest.mark.parametrize("kind", STRIPES)
@pytest.mark.parametrize("name", ["loss", "grad_input"])
def test_one_wrong_stripe_of_a_softmax_is_seen(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "_shape", lambda draw: ((300, 400), 1))
    _check_stripe(ran("softmax", 3), name, kind)


def _check_stripe(sample: Ran, name: str, kind: str) -> None:
    assert not judged(sample.values, sample.expected).complaints
    assert sample.with_wrong(name, STRIPES[kind](sample.values[name])).complaints


EXACT: Mapping[str, Expected] = {"loss": Expected(np.array([1.0, -2.0]), np.array([0.1, 0.1]), np.float32)}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"loss": np.array([1.0, -2.0], np.float32)}, ""),
        ({"loss": np.array([1.0, -2.2], np.float32)}, "wrong at 1 of 2 elements"),
        ({"loss": np.array([np.nan, -2.0], np.float32)}, "wrong at 1 of 2 elements"),
        ({"loss": np.array([1.0, np.inf], np.float32)}, "wrong at 1 of 2 elements"),
        ({"loss": np.array([1.0, -2.0], np.float16)}, "is float16, expected float32"),
        ({"loss": np.array([1.0], np.float32)}, "has shape"),
        ({}, "loss is missing"),
        ({"loss": np.array([1.0, -2.0], np.float32), "lse": np.zeros(1)}, "lse is not expected"),
    ],
)
def test_the_verdict(values: dict[str, Any], complaint: str) -> None:
    verdict = judged(values, EXACT)
    assert bool(verdict.complaints) == bool(complaint)
    assert complaint in "".join(verdict.complaints)


def test_what_a_type_has_no_number_for_is_infinite() -> None:
    exact = {"loss": Expected(np.array([1e6, 65519.0, 1.0]), np.array([1.0, 8.0, np.inf]), np.float16)}
    right = np.array([np.inf, np.inf, 7.0], np.float16)
    assert not judged({"loss": right}, exact).complaints
    for wrong in ([65504.0, np.inf, 7.0], [-np.inf, np.inf, 7.0], [np.inf, np.inf, np.nan]):
        assert judged({"loss": np.array(wrong, np.float16)}, exact).complaints


_NUMBERS = 20_000


def _one_by_one(values: np.ndarray) -> float:
    return float(np.cumsum(values, dtype=np.float32)[-1])


@pytest.mark.parametrize("order", ["as they are", "falling", "rising"])
def test_the_bound_holds_in_any_order(order: str) -> None:
    values = np.random.default_rng(3).random(_NUMBERS).astype(np.float32)
    ordered = {"as they are": values, "falling": np.sort(values)[::-1], "rising": np.sort(values)}[order]
    exact, error = summed(ordered.astype(np.float64), np.zeros(_NUMBERS))
    assert exact == pytest.approx(values.astype(np.float64).sum())
    assert abs(_one_by_one(ordered) - exact) <= error


def test_a_sum_one_by_one_may_come_near_the_bound() -> None:
    """Each addition of slightly more than half a unit of the sum rounds up by nearly half of a unit."""
    small = np.float32(2.0**-24 * (1.0 + 2.0**-20))
    values = np.concatenate([[np.float32(1.0)], np.full(1000, small)]).astype(np.float32)
    exact, error = summed(values.astype(np.float64), np.zeros(len(values)))
    off = abs(_one_by_one(values) - exact)
    assert 0.9 * error <= off <= error


def test_one_number_is_no_sum() -> None:
    assert sum_error(1) == sum_error(0) == 0.0 < sum_error(2)


SEED_OF_SAMPLE = 2711
CALLS = 3


@pytest.mark.parametrize("number", range(CALLS))
@pytest.mark.parametrize("function", FUZZED)
def test_results_and_gradients_are_within_their_bounds(function: str, number: int) -> None:
    line = run_call(SEED_OF_SAMPLE, number, SMALL, (function,))
    assert not line.failures, (line.failures, line.command, line.trace)
    assert not line.refusal, "a call of the sample has to run"
    assert line.plans, "no chooser of this function is known: add it to benchmarks.fuzz.plans.CHOOSERS"
    assert line.shares.keys() >= {"logprob" if function in ("token_scores", "linear_token_scores") else "loss"}
    assert any(name.startswith("grad_") for name in line.shares)


# Seeds and numbers of middle calls of linear_cross_entropy in 16 bits, of the smallest whose W is [V, D] with a
# gradient, N and D are over 512 and V over 1,536: two launches of bfloat16, of float16, and one launch with a bias. If
# another order of draws makes other calls of them, `linear_cross_entropy.sizes` of some thousand numbers names others.
KEPT_PIECES = ((2731, 71), (2742, 357), (2720, 162))


@pytest.mark.parametrize(("seed", "number"), KEPT_PIECES)
def test_a_weight_gradient_of_pieces_of_x_that_stay_on_chip(seed: int, number: int) -> None:
    """Several pieces of X of several stripes stay, and several groups of tiles of dW read them, in the default plan.

    Plans of small calls have one of each, where a group can not read the piece of another stripe.
    """
    line = run_call(seed, number, MIDDLE, ("linear_cross_entropy",))
    assert not line.failures, (line.failures, line.command, line.trace)
    is_one = line.settings["form"] == "one launch"
    (plan,) = line.plans["linear gradients in one launch" if is_one else "linear backward"]
    assert plan["keeps_pieces"] and plan["pieces_of_stripe"] > 1, "draw other calls"
    assert plan["features"] > plan["stripe"] and plan["class_tiles"] > plan["weight_group"][0], "draw other calls"
    assert line.shares.keys() >= {"loss", "grad_input", "grad_linear_weight"} and not line.blunt


@pytest.mark.sweep
def test_five_minutes_of_new_calls(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seconds", "300"])
    assert code == 0, capsys.readouterr().out
