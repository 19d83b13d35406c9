# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A result that is wrong is seen: of every function, and of one stripe alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.fuzz.call import Expected
from benchmarks.fuzz.draw import SMALL, Draw
from benchmarks.fuzz.families import cross_entropy, linear, softmax
from benchmarks.fuzz.registry import FUZZED
from benchmarks.fuzz.verdict import Verdict, judged
from benchmarks.fuzz.workers import one_rank
from tests.torch.benchmarks.fuzz.planted import STRIPES, WRONG

SEED = 2712
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
    call = FUZZED[function].drawn(Draw(SEED, number, SMALL), function)
    results = call.run(Draw(SEED, number, SMALL, part=1))
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
    monkeypatch.setattr(linear, "sizes", lambda draw: (300, 320, 400))
    monkeypatch.setattr(linear, "_wanted", lambda draw, has_bias: ("input", "linear_weight"))
    monkeypatch.setattr(linear, "_form", lambda *arguments: "two launches")
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
