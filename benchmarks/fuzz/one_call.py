# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""One call from its seed and number: drawn, run, compared, and written down.

:func:`run_call` does all of it and returns the :class:`Line` of the log; :func:`judged` compares, and
:func:`is_refusal` tells errors that reject arguments from failures.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.fuzz.call import Expected
from benchmarks.fuzz.draw import Array, Draw, Limits
from benchmarks.fuzz.plans import Plans, recorded
from benchmarks.fuzz.registry import FUZZED, function_of

# A result that is nowhere so many times as large as its accepted error would pass as zeros, or nearly.
TELLING = 4.0


@dataclass
class Verdict:
    """The verdict on a call.

    Attributes:
        shares: by result, the largest error as a share of the accepted error; more than 1, NaN or infinite is wrong.
        blunt: results whose bound a wrong result could meet: zeros, for instance, of a gradient that underflows.
        complaints: the failed checks, in words.
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
    """Return errors over bounds, infinite for NaN; 0 where both are the same infinity, or both NaN.

    A number that the type cannot hold is infinite, and so may be a number that the bound moves out of range. An
    infinite bound belongs to a reference with two sides, such as a hinge just at its edge: any finite number passes.
    """
    ratios = np.where(actual == exact, 0.0, np.abs(actual - exact) / error)
    beyond = in_range(np.copysign(np.abs(exact) + error, exact), dtype)
    passes = (actual == exact) | (np.isnan(actual) & np.isnan(exact))
    passes |= np.isinf(actual) & (actual == beyond) & np.isfinite(error)
    passes |= np.isfinite(actual) & np.isposinf(error)
    is_compared = np.isfinite(actual) & np.isfinite(exact) & ~np.isnan(error)
    return np.where(passes, 0.0, np.where(is_compared, ratios, np.inf))


def in_range(exact: Array, dtype: np.dtype[Any]) -> Array:
    """Replace numbers that the type cannot hold by an infinity, as rounding does; leave the others as they are."""
    if dtype.kind in "iu":
        return exact
    return np.where(np.isinf(exact.astype(dtype)), np.copysign(np.inf, exact), exact)


# What a function raises where it refuses arguments, with a message that starts with its name. A kernel raises an
# AssertionError where it can not do what it was given: no function may get there.
REFUSALS = (ValueError, TypeError, NotImplementedError, IndexError)


@dataclass
class Line:
    """The entry of a call in the log.

    Attributes:
        seed, call, limits: the values that the call was drawn from.
        function: the name of the function.
        settings: sizes, types and options.
        plans: the plans of its kernels, as :mod:`benchmarks.fuzz.plans` describes them.
        shares: by result, the largest error as a share of the accepted error.
        blunt: results that are so small beside the accepted error that a wrong one would not be noticed.
        failures: the failed checks.
        refusal: why the function rejected the arguments; empty if it accepted them.
        instructions: number of instructions that the simulated kernels issued.
        seconds: time of drawing, running and comparing.
        trace: traceback of an exception that is not a rejection.
    """

    seed: int
    call: int
    limits: str
    function: str
    settings: dict[str, Any] = field(default_factory=dict)
    plans: Plans = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    blunt: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    refusal: str = ""
    instructions: int = 0
    seconds: float = 0.0
    trace: str = ""

    @property
    def command(self) -> str:
        """The command that runs this call alone."""
        limits = "" if self.limits == "middle" else f" --limits {self.limits}"
        return f"python -m benchmarks.fuzz --seed {self.seed} --call {self.call}{limits} --function {self.function}"


def run_call(seed: int, number: int, limits: Limits, functions: tuple[str, ...] = ()) -> Line:
    """Draw a call of any function, or of some, and run it."""
    start = time.perf_counter()
    function = _chosen(seed, number, limits, functions)
    line = Line(seed, number, limits.name, function)
    try:
        call = FUZZED[function].drawn(Draw(seed, number, limits), function)
        line.settings = call.settings
        with recorded() as line.plans:
            results = call.run(Draw(seed, number, limits, part=1))
        line.instructions = results.instructions
        verdict = judged(results.values, call.reference(results))
        line.shares, line.blunt, line.failures = verdict.shares, verdict.blunt, verdict.complaints
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if is_refusal(error, function):
            line.refusal = text
        else:
            line.failures, line.trace = [f"raised {text}"], traceback.format_exc()
    line.seconds = time.perf_counter() - start
    return line


def is_refusal(error: Exception, function: str) -> bool:
    """Tell whether an error rejects the arguments and names the function or one of its modules; others are failures."""
    names = (function, *FUZZED[function].modules)
    return isinstance(error, REFUSALS) and str(error).startswith(tuple(f"{name}: " for name in names))


def _chosen(seed: int, number: int, limits: Limits, functions: tuple[str, ...]) -> str:
    """Choose a function with random numbers of its own, so that the choice does not change what a function draws."""
    draw = Draw(seed, number, limits, part=2)
    return draw.one_of(functions) if functions else function_of(draw)
