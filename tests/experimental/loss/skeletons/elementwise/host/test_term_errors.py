# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The error of each elementwise loss in u of its largest term: references derive the bound, and kernels keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from nkilib.core.host.exact import Derived
from nkilib.core.host.function_errors import SIMULATED
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT
from nkilib.core.host.samples import Sample
from nkilib.experimental.loss.skeletons.elementwise.host import reference
from nkilib.verify.kernels.elementwise_entries import ENTRIES, ElementwiseEntry
from nkilib.verify.kernels.samples import MAKERS
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


def test_the_sum_of_losses_that_are_nothing_is_exact() -> None:
    """But for what is flushed to zero."""
    entry = next(entry for entry in ENTRIES if entry.name == "mse_loss")
    tensors = {name: np.ones((3, 4), np.float32) for name in entry.tensors}
    result = reference.reduced(entry.reference, tensors, "sum", columns=512)
    assert result.value == 0.0 and 0.0 < result.error <= 12 * SMALLEST_NORMAL
