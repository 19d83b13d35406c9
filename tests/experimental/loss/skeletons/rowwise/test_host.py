# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The error of each row-wise loss in u of its largest term: references derive what is stated, and kernels keep it. What
the bounds of triplet margin set aside for numbers that float32 or a logarithm loses is worked out by hand.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from nkilib.core.hardware import LIMIT_OF_LOG
from nkilib.core.host.error_bounds import SIMULATED, SMALLEST_NORMAL, UNIT, Derived
from nkilib.core.host.loss import Sample
from nkilib.experimental.loss.rowwise.triplet_margin_host import TripletReference
from nkilib.experimental.loss.skeletons.rowwise.host import additions
from nkilib.verify.kernels.inputs import MAKERS
from nkilib.verify.kernels.rowwise import ENTRIES, RowwiseEntry
from tests.experimental.loss.skeletons.term_errors import assert_kept, assert_near, assert_same_functions

Numbers = np.ndarray
# Rows of one number and of some, and one of several runs.
SHAPES: Final = [(256, 1), (128, 7), (40, 130), (12, 2600)]
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def hard_numbers(random: np.random.Generator, shape: tuple[int, int]) -> Numbers:
    """Rows of all magnitudes, whose numbers are of one magnitude, or of many."""
    of_row = 2.0 ** random.uniform(-20.0, 6.0, (shape[0], 1))
    sizes = np.where(random.random((shape[0], 1)) < 0.5, 1.0, 2.0 ** random.uniform(-12.0, 0.0, shape))
    return of_row * sizes * random.choice([-1.0, 1.0], shape) * random.uniform(0.5, 1.0, shape)


def hard_tensors(entry: RowwiseEntry, shape: tuple[int, int]) -> dict[str, Numbers]:
    """Independent ones, and rows that nearly equal those of the first one."""
    random = np.random.default_rng(shape[1])
    results: dict[str, Numbers] = {}
    for seed, (name, sample) in enumerate(entry.tensors.items()):
        is_number = sample in (Sample.NUMBERS, Sample.WIDE_LOGITS)
        values = hard_numbers(random, shape) if is_number else MAKERS[sample](seed, shape)
        if sample is Sample.NUMBERS and results:
            near = next(iter(results.values())) * (1.0 + 2.0**-8 * random.standard_normal(shape))
            values = np.where(random.random((shape[0], 1)) < 0.5, near, values)
        results[name] = values.astype(np.float32)
    return results


def derived(entry: RowwiseEntry, tensors: dict[str, Numbers]) -> Derived:
    """Derive the losses and their errors."""
    with np.errstate(all="ignore"):
        return entry.reference.value({name: tensor.astype(np.float64) for name, tensor in tensors.items()})


def units(errors: Any, result: Derived) -> float:
    """The largest one in u of the largest term."""
    is_normal = result.largest > 2.0**-60
    return float((errors[is_normal] / (UNIT * result.largest[is_normal])).max())


def observed(entry: RowwiseEntry, tensors: dict[str, Numbers], result: Derived, change: Any = np.copy) -> float:
    """How far the kernel is off in the simulator."""
    returned = entry.forward(**entry.arguments(tensors), reduction="none")
    losses = change(np.asarray(returned[0] if isinstance(returned, tuple) else returned)).reshape(-1)
    return units(np.maximum(np.abs(losses - result.value) - result.beside - SMALLEST_NORMAL, 0.0), result)


def allowed(entry: RowwiseEntry, columns: int) -> float:
    """The stated error, with the simulator's functions."""
    stated = entry.reference.stated
    functions = sum(SIMULATED.further(name) * factor for name, factor in stated.functions.items())
    return stated.own + stated.additions * additions(columns) + functions


@every_entry
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stated_error_is_derived_and_kept(entry: RowwiseEntry, shape: tuple[int, int]) -> None:
    """The derived error is never more than the stated one; the kernel's error is never more either."""
    tensors, stated = hard_tensors(entry, shape), entry.reference.stated
    result = derived(entry, tensors)
    assert_same_functions(entry.name, stated.functions, result.functions)
    own = stated.own + stated.additions * additions(shape[1])
    assert_near(entry.name, "own and additions", own, units(result.own, result), 0.4)
    for function, errors in result.functions.items():
        part = f"functions[{function!r}]"
        assert_near(entry.name, part, stated.functions[function], units(errors, result), 0.4)
    assert_kept(entry.name, observed(entry, tensors, result), allowed(entry, shape[1]))


@every_entry
@pytest.mark.parametrize("change", [np.zeros_like, np.negative, lambda losses: losses[::-1].copy()])
def test_a_stated_error_tells_wrong_results(entry: RowwiseEntry, change: Any) -> None:
    shape = SHAPES[1]
    tensors = hard_tensors(entry, shape)
    assert observed(entry, tensors, derived(entry, tensors), change) > allowed(entry, shape[1])


COLUMNS = 5
EPS = 2.0**-60


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_small_magnitudes_count_as_the_least_that_has_a_logarithm(p: float) -> None:
    """Each distance errs by D^(1/p) times u eps, that least magnitude and the root of a power flushed to zero."""
    random = np.random.default_rng(0)
    rows = {name: random.standard_normal((3, COLUMNS)) for name in ("anchor", "positive", "negative")}
    result = TripletReference(1.0, p, EPS, False).value(rows)
    of_element = UNIT * EPS + 1.0 / LIMIT_OF_LOG + SMALLEST_NORMAL ** (1.0 / p)
    np.testing.assert_allclose(result.beside, 2.0 * COLUMNS ** (1.0 / p) * of_element, rtol=1e-12)


def test_squares_that_are_flushed_to_zero_are_set_aside() -> None:
    rows = {name: np.ones((3, COLUMNS)) for name in ("anchor", "positive", "negative")}
    result = TripletReference(1.0, 2.0, EPS, False).value(rows)
    of_element = UNIT * EPS + SMALLEST_NORMAL**0.5
    np.testing.assert_allclose(result.beside, 2.0 * COLUMNS**0.5 * of_element, rtol=1e-12)
