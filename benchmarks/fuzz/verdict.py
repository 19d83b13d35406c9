# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Whether results are right: types, shapes, and errors as shares of what is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.fuzz.call import Expected
from benchmarks.fuzz.values import Array

# A result that is nowhere so many times as large as its accepted error would pass as zeros, or nearly.
TELLING = 4.0


@dataclass
class Verdict:
    """Of a call.

    Attributes:
        shares: by result, the largest error as a share of what is accepted; more than 1, NaN or infinite is wrong.
        blunt: results whose bound a wrong result could meet: zeros, for instance, of a gradient that underflows.
        complaints: what is wrong, in words.
    """

    shares: dict[str, float] = field(default_factory=dict)
    blunt: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The largest share."""
        return max(self.shares.values(), default=0.0)


def judged(values: Mapping[str, Array], expected: Mapping[str, Expected]) -> Verdict:
    """The verdict on the results of a call."""
    verdict = Verdict()
    for name in sorted(values.keys() ^ expected.keys()):
        verdict.complaints.append(f"{name} is {'not expected' if name in values else 'missing'}")
    for name in sorted(values.keys() & expected.keys()):
        _judge(name, values[name], expected[name], verdict)
    return verdict


def _judge(name: str, actual: Array, expected: Expected, verdict: Verdict) -> None:
    if actual.shape != expected.value.shape:
        verdict.complaints.append(f"{name} has shape {actual.shape}, expected {expected.value.shape}")
        return
    if actual.dtype != np.dtype(expected.dtype):
        verdict.complaints.append(f"{name} is {actual.dtype}, expected {np.dtype(expected.dtype)}")
    error = np.broadcast_to(np.asarray(expected.error, np.float64), actual.shape)
    with np.errstate(all="ignore"):
        ratios = _ratios(actual.astype(np.float64), expected.value.astype(np.float64), error, actual.dtype)
        is_telling = np.isfinite(expected.value) & (np.abs(expected.value) >= TELLING * error)
    worst = float(ratios.max(initial=0.0))
    verdict.shares[name] = worst
    if not is_telling.any() and np.any(expected.value):
        verdict.blunt.append(name)
    if worst > 1.0:
        wrong = np.argwhere(ratios > 1.0)
        at = tuple(int(index) for index in wrong[0])
        verdict.complaints.append(
            f"{name} is wrong at {len(wrong)} of {actual.size} elements, at {worst:.3g} of its bound; first at {at}: "
            f"{actual[at]}, expected {expected.value[at]:.9g}"
        )


def _ratios(actual: Array, exact: Array, error: Array, dtype: np.dtype[Any]) -> Array:
    """Errors over bounds, infinite for NaN; 0 where both are the same infinity, or both NaN.

    What the type has no number for is infinite, and so may be what the bound brings there. An infinite bound is that of
    a reference which has two sides, such as a hinge just at its edge: any finite number passes.
    """
    ratios = np.where(actual == exact, 0.0, np.abs(actual - exact) / error)
    beyond = in_range(np.copysign(np.abs(exact) + error, exact), dtype)
    passes = (actual == exact) | (np.isnan(actual) & np.isnan(exact))
    passes |= np.isinf(actual) & (actual == beyond) & np.isfinite(error)
    passes |= np.isfinite(actual) & np.isposinf(error)
    is_compared = np.isfinite(actual) & np.isfinite(exact) & ~np.isnan(error)
    return np.where(passes, 0.0, np.where(is_compared, ratios, np.inf))


def in_range(exact: Array, dtype: np.dtype[Any]) -> Array:
    """Infinite where the type has no number for it, as rounding gives it; else as it is."""
    if dtype.kind in "iu":
        return exact
    return np.where(np.isinf(exact.astype(dtype)), np.copysign(np.inf, exact), exact)
