# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""One call from its seed and number: drawn, run, compared, and written down."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fuzz.draw import Draw, Limits
from benchmarks.fuzz.plans import Plans, recorded
from benchmarks.fuzz.registry import FUZZED, function_of
from benchmarks.fuzz.verdict import judged

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
