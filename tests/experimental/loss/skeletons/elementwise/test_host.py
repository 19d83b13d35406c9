# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The error of each elementwise loss in u of its largest term: references derive the bound, and kernels keep it. What
Stirling's estimate adds to the error of Poisson's likelihood is worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from nkilib.core.host.error_bounds import SIMULATED, SMALLEST_NORMAL, UNIT, Derived
from nkilib.core.host.loss import Sample
from nkilib.experimental.loss.elementwise.margin_ranking import MarginRankingReference
from nkilib.experimental.loss.elementwise.poisson_nll import PoissonReference
from nkilib.experimental.loss.skeletons.elementwise.host import reduced
from nkilib.verify.kernels.elementwise import ENTRIES, ElementwiseEntry
from nkilib.verify.kernels.inputs import MAKERS
from tests.experimental.loss.skeletons.term_errors import assert_kept, assert_near, assert_same_functions

Numbers = np.ndarray
SHAPE: Final = (128, 320)


def hard_sizes(random: np.random.Generator) -> Numbers:
    """Draw sizes of all magnitudes that matter beside 1, and beside each other."""
    sizes = 2.0 ** random.uniform(-30.0, 6.0, SHAPE)
    return np.where(random.random(SHAPE) < 0.5, 2.0 ** random.uniform(-2.0, 2.0, SHAPE), sizes)


def hard_numbers(random: np.random.Generator) -> Numbers:
    """Draw numbers of both signs."""
    return hard_sizes(random) * random.choice([-1.0, 1.0], SHAPE)


def hard_logits(random: np.random.Generator) -> Numbers:
    """Draw confident logits of both signs."""
    return hard_numbers(random)


def hard_probabilities(random: np.random.Generator) -> Numbers:
    """Down to 2^-126, and to both sides of 2^-32, of a half and of one; 0 and 1 among them."""
    small = 2.0 ** random.choice([random.uniform(-33.0, 0.0), random.uniform(-126.0, 0.0)], SHAPE)
    near = random.choice([2.0**-32, 0.5, 1.0], SHAPE) * (1.0 - random.choice([-1.0, 1.0], SHAPE) * small)
    result = random.choice([0.0, 1.0, 0.999], SHAPE)
    for probability, values in ((0.9, near), (0.7, 1.0 - small), (0.5, small), (0.3, random.random(SHAPE))):
        result = np.where(random.random(SHAPE) < probability, values, result)
    result = np.clip(result, 0.0, 1.0)
    return np.where(result < SMALLEST_NORMAL, 0.0, result)


def hard_log_probabilities(random: np.random.Generator) -> Numbers:
    """Draw log-probabilities of at most 0."""
    return -hard_sizes(random)


HARD: Final[dict[Sample, Callable[[np.random.Generator], Numbers]]] = {
    Sample.NUMBERS: hard_numbers,
    Sample.LOGITS: hard_logits,
    Sample.POSITIVE: hard_sizes,
    Sample.PROBABILITIES: hard_probabilities,
    Sample.LOG_PROBABILITIES: hard_log_probabilities,
}


every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def hard_tensors(entry: ElementwiseEntry) -> dict[str, Numbers]:
    """Independent ones, and some that nearly equal the first one."""
    random = np.random.default_rng(len(entry.name))
    results: dict[str, Numbers] = {}
    for seed, (name, sample) in enumerate(entry.tensors.items()):
        values = HARD[sample](random) if sample in HARD else MAKERS[sample](seed, SHAPE)
        results[name] = values.astype(np.float32)
    if entry.tensors.get("target") is Sample.NUMBERS:
        first = next(iter(results.values()))
        near = (first * (1.0 + hard_numbers(random) * 2.0**-12)).astype(np.float32)
        results["target"] = np.where(random.random(SHAPE) < 0.3, near, results["target"])
    return results


def derived(entry: ElementwiseEntry, tensors: dict[str, Numbers]) -> Derived:
    """Derive the losses and their errors."""
    with np.errstate(all="ignore"):
        return entry.reference.value({name: tensor.astype(np.float64) for name, tensor in tensors.items()})


def units(errors: Any, result: Derived) -> float:
    """The largest one in u of the largest term."""
    is_normal = (result.largest > 2.0**-100) & np.isfinite(result.value)
    return float((errors[is_normal] / (UNIT * result.largest[is_normal])).max())


def observed(entry: ElementwiseEntry, tensors: dict[str, Numbers], result: Derived, change: Any = np.copy) -> float:
    """How far the kernel is off in the simulator."""
    losses = change(entry.forward(**entry.arguments(tensors), reduction="none"))
    with np.errstate(all="ignore"):
        return units(np.maximum(np.abs(losses - result.value) - result.beside - SMALLEST_NORMAL, 0.0), result)


def allowed(entry: ElementwiseEntry) -> float:
    """The stated error, with the simulator's functions."""
    stated = entry.reference.stated
    return stated.own + sum(SIMULATED.further(name) * factor for name, factor in stated.functions.items())


@every_entry
def test_a_stated_error_is_derived_and_kept(entry: ElementwiseEntry) -> None:
    """The derived error is never more than the stated one, and comes near it; the kernel's is never more either."""
    tensors, stated = hard_tensors(entry), entry.reference.stated
    result = derived(entry, tensors)
    assert_same_functions(entry.name, stated.functions, result.functions)
    assert_near(entry.name, "own", stated.own, units(result.own, result), 0.8)
    for function, errors in result.functions.items():
        part = f"functions[{function!r}]"
        assert_near(entry.name, part, stated.functions[function], units(errors, result), 0.8)
    assert_kept(entry.name, observed(entry, tensors, result), allowed(entry))


@every_entry
@pytest.mark.parametrize(
    "change",
    [
        np.zeros_like,
        np.negative,
        lambda losses: losses.reshape(SHAPE[::-1]).T.copy(),
        lambda losses: losses * np.float32(1.000002),
    ],
)
def test_a_stated_error_tells_wrong_results(entry: ElementwiseEntry, change: Any) -> None:
    tensors = hard_tensors(entry)
    assert observed(entry, tensors, derived(entry, tensors), change) > allowed(entry)


def losses(full: bool, log_input: bool, target: list[float]) -> Derived:
    """Derive the losses of inputs of a quarter."""
    tensors = {"input": np.full(len(target), 0.25), "target": np.array(target)}
    return PoissonReference(log_input, full).value(tensors)


@pytest.mark.parametrize("log_input", [False, True])
def test_a_target_of_at_most_one_has_no_estimate(log_input: bool) -> None:
    """Only the sum with 0, which rounds nothing but is counted."""
    target = [0.0, 0.5, 1.0]
    plain, full = losses(False, log_input, target), losses(True, log_input, target)
    np.testing.assert_array_equal(full.value, plain.value)
    np.testing.assert_array_equal(full.largest, plain.largest)
    np.testing.assert_allclose(full.own, plain.own + 0.5 * UNIT * np.abs(plain.value), rtol=1e-14)
    np.testing.assert_array_equal(full.functions["log"], plain.functions.get("log", np.zeros(3)))


@pytest.mark.parametrize("log_input", [False, True])
def test_the_estimate_adds_the_errors_of_its_terms(log_input: bool) -> None:
    """S = (t + 1/2) log t is off by 3 u / 2; c, S + c, the estimate and the loss round once; u S more for u of log."""
    plain, full = losses(False, log_input, [4.0]), losses(True, log_input, [4.0])
    product, constant = 4.5 * np.log(4.0), 0.5 * np.log(2.0 * np.pi)
    estimate = product + constant - 4.0
    assert full.value[0] == pytest.approx(plain.value[0] + estimate, rel=1e-14)
    terms = 3.0 * product + constant + (product + constant) + estimate + abs(full.value[0])
    assert full.own[0] - plain.own[0] == pytest.approx(0.5 * UNIT * terms, rel=1e-12)
    of_log = plain.functions["log"][0] if "log" in plain.functions else 0.0
    assert full.functions["log"][0] - of_log == pytest.approx(UNIT * product, rel=1e-12)


def test_a_loss_of_exactly_nothing_has_the_derivative_of_those_above() -> None:
    """PyTorch has it too, where t (x1 - x2) is the margin."""
    tensors = {"input1": np.array([1.0, 2.0]), "input2": np.array([0.5, 0.5]), "target": np.array([1.0, 1.0])}
    derivatives = MarginRankingReference(0.5).derivative(tensors)
    np.testing.assert_array_equal(derivatives["input1"].value, [-1.0, 0.0])
    np.testing.assert_array_equal(derivatives["input2"].value, [1.0, 0.0])
    np.testing.assert_array_equal(derivatives["target"].value, [-0.5, 0.0])


def test_the_sum_of_losses_that_are_nothing_is_exact() -> None:
    """But for what is flushed to zero."""
    entry = next(entry for entry in ENTRIES if entry.name == "mse_loss")
    tensors = {name: np.ones((3, 4), np.float32) for name in entry.tensors}
    result = reduced(entry.reference, tensors, "sum", columns=512)
    assert result.value == 0.0 and 0.0 < result.error <= 12 * SMALLEST_NORMAL
