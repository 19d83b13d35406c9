# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The overhead of nkilib.torch over its kernels: ``python -m benchmarks.torch_path`` or ``make bench``.

The same kernels with the same tiling run on the same bytes twice: called with numpy arrays, and through
``nkilib.torch.cross_entropy`` and autograd. Time is a ratio of the two; memory is that of a training step's forward and
backward in place, in a fresh process. A last table counts the files that the first argument of a function passes on its
way to the kernel.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import nkilib.torch
from benchmarks._against_torch import as_tensor, torch_step
from benchmarks._cross_entropy import CORES, FEWEST_RUNS, NKI_DTYPES, Case, Tuning, cases
from benchmarks._display import table_of, verdict
from benchmarks._inputs import make_logits, make_targets
from benchmarks._launch_memory import TORCH_IN_PLACE, measure_memory
from benchmarks._memory import MemoryUse
from benchmarks._timing import Contender, interleaved_minimum
from benchmarks._torch_benchmark import MEBI, TORCH_THREADS, load_line, parse_timing_arguments
from examples._display import heading, make_console
from nkilib.experimental.loss import (
    choose_tiling,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)
from nkilib.nki import NOT_SIMULATED, SIMULATED
from nkilib.simulator.launch.kernel import Kernel

# The goals: at most that many times the seconds of the kernels, and at most that many bytes beyond the logits.
LARGEST_RATIO = 1.15
LARGEST_BEYOND_LOGITS = 700 << 20
DIRECT, PATH = "kernels on numpy", "nkilib.torch"
# nkilib.torch chooses its tiling itself.
_NO_TUNING = Tuning(0, 0)
PASSES = ("forward", "and backward", "in place")


@dataclass(frozen=True)
class Comparison:
    """One pass of one case.

    Attributes:
        case: the problem size.
        name: the pass, one of ``PASSES``.
        path: seconds through nkilib.torch.
        direct: seconds of the kernels on numpy arrays.
        is_equal: whether losses (their mean, to float32) and gradient (to the bit) are the same.
    """

    case: Case
    name: str
    path: float
    direct: float
    is_equal: bool

    @property
    def ratio(self) -> float:
        return self.path / self.direct

    @property
    def meets_time(self) -> bool:
        return self.ratio <= LARGEST_RATIO


class Step:
    """Mean loss and gradient of a case, on numpy arrays or through nkilib.torch.

    The work is done on a copy, so that the gradient may overwrite it; :meth:`prepare` restores it.

    Args:
        case: the problem size.
    """

    def __init__(self, case: Case) -> None:
        self._given = make_logits(case.rows, case.vocabulary, case.dtype)
        self._logits = self._given.copy()
        self._targets = make_targets(case.rows, case.vocabulary)
        self._dtype = NKI_DTYPES[case.dtype]
        size = (case.rows, case.vocabulary, self._dtype)
        self._forward_tiling = choose_tiling(*size, "forward", extended=True)
        self._backward_tiling = choose_tiling(*size, "backward", extended=True)

    def prepare(self) -> None:
        """Restore the logits where an earlier run may have left a gradient."""
        np.copyto(self._logits, self._given)

    def direct(self, backward: bool, inplace: bool) -> tuple[float, np.ndarray | None]:
        """The kernels on numpy arrays, with what a caller computes around them: the mean and its derivative."""
        losses, lse, _, _, maximum, log_sum = extended_cross_entropy_forward[CORES](
            self._logits, self._targets, dtype=self._dtype, with_log_sum=True, **self._forward_tiling._asdict()
        )
        loss = losses.sum() / np.float32(losses.size)
        if not backward:
            return float(loss), None
        grad_loss = np.full(losses.size, np.float32(1.0) / np.float32(losses.size), np.float32)
        gradient = extended_cross_entropy_backward[CORES](
            self._logits,
            self._targets,
            lse,
            grad_loss,
            dtype=self._dtype,
            inplace=inplace,
            maximum_hbm=maximum,
            log_sum_hbm=log_sum,
            **self._backward_tiling._asdict(),
        )
        return float(loss), gradient

    def path(self, backward: bool, inplace: bool) -> tuple[float, torch.Tensor | None]:
        """The same through nkilib.torch and autograd."""
        return torch_step(as_tensor(self._logits), torch.from_numpy(self._targets), backward, inplace)


def compare(case: Case, runs: int) -> list[Comparison]:
    """Time every pass of ``case`` both ways, and compare what they return."""
    step = Step(case)
    compared = []
    for name, options in zip(PASSES, ((False, False), (True, False), (True, True)), strict=True):
        seconds = interleaved_minimum(
            {
                DIRECT: Contender(_bound(step.direct, options), step.prepare),
                PATH: Contender(_bound(step.path, options), step.prepare),
            },
            runs,
        )
        compared.append(Comparison(case, name, seconds[PATH], seconds[DIRECT], _is_equal(step, *options)))
    return compared


def _bound(run: Callable[[bool, bool], object], options: tuple[bool, bool]) -> Callable[[], object]:
    return lambda: run(*options)


def _is_equal(step: Step, backward: bool, inplace: bool) -> bool:
    step.prepare()
    direct_loss, direct = step.direct(backward, inplace)
    expected = None if direct is None else torch.clone(as_tensor(direct))  # in place, the next run writes over it
    step.prepare()
    path_loss, actual = step.path(backward, inplace)
    is_same_loss = bool(np.isclose(path_loss, direct_loss, rtol=1e-6, atol=0.0))  # numpy and torch sum in other orders
    if expected is None or actual is None:
        return is_same_loss and expected is actual
    return is_same_loss and torch.equal(actual, expected)


def time_table(compared: Sequence[Comparison]) -> Table:
    """Seconds of every pass, both ways."""
    table = table_of("Seconds", ("N, V", "pass"), (PATH, DIRECT, "ratio", f"<= {LARGEST_RATIO}"))
    for one in compared:
        case = str(one.case) if one.name == PASSES[0] else ""
        seconds = (f"{one.path:.3f}", f"{one.direct:.3f}", f"{one.ratio:.2f}")
        table.add_row(case, one.name, *seconds, verdict(one.meets_time))
    return table


_NKILIB = Path(nkilib.torch.__file__).parents[1]


class InputPath(NamedTuple):
    """The way of the first argument of a public function to its kernel.

    Attributes:
        frames: the number of calls of functions of nkilib, until the kernel is called.
        files: the files of those that get the argument, in the order of the calls; one entry for calls in a row.
    """

    frames: int
    files: tuple[str, ...]

    @property
    def returns(self) -> int:
        """How often the way comes back to a file that it has left."""
        return len(self.files) - len(set(self.files))


def input_path(call: Callable[[torch.Tensor], object], input: torch.Tensor) -> InputPath:
    """Call a function twice with a tensor, and note the functions of nkilib that get its memory in the second call,
    also within a container or a record.
    """
    call(input)  # what is made once is made now
    memory, files, frames, is_launched = input.untyped_storage().data_ptr(), list[str](), 0, False

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal frames, is_launched
        code = frame.f_code
        is_launched = is_launched or code is Kernel.__call__.__code__
        if event != "call" or is_launched or not Path(code.co_filename).is_relative_to(_NKILIB):
            return
        frames += 1
        has_rest = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + has_rest]
        if any(_holds(frame.f_locals.get(name), memory) for name in arguments):
            files.append(str(Path(code.co_filename).relative_to(_NKILIB)))

    sys.setprofile(note)
    try:
        call(input)
    finally:
        sys.setprofile(None)
    return InputPath(frames, tuple(file for file, _ in groupby(files)))


def _holds(value: Any, memory: int, depth: int = 2) -> bool:
    """Return whether a value is a tensor at the address ``memory``, or holds one."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().data_ptr() == memory
    if isinstance(value, Mapping):
        value = list(value.values())
    elif type(value).__module__.startswith("nkilib.torch.") and hasattr(value, "__dict__"):
        value = list(vars(value).values())
    return depth > 0 and isinstance(value, list | tuple) and any(_holds(one, memory, depth - 1) for one in value)


def path_table() -> Table:
    """The ways of ``input`` in three functions."""
    logits, target = torch.zeros(8, 16), torch.zeros(8, dtype=torch.int64)
    weight = torch.zeros(32, 16)
    functions: dict[str, Callable[[torch.Tensor], object]] = {
        "cross_entropy": lambda input: nkilib.torch.cross_entropy(input, target),
        "linear_cross_entropy": lambda input: nkilib.torch.linear_cross_entropy(input, weight, target),
        "mse_loss": lambda input: nkilib.torch.mse_loss(input, torch.ones(8, 16)),
    }
    table = table_of("The way of input to the kernel", ("function",), ("calls", "files", "returns to a file"))
    for name, function in functions.items():
        path = input_path(function, logits)
        table.add_row(name, str(path.frames), str(len(set(path.files))), str(path.returns))
    return table


def meets_memory(case: Case, memory: MemoryUse) -> bool:
    """Whether forward and backward in place of ``case`` stay within the goal."""
    return memory.growth - case.logits_bytes <= LARGEST_BEYOND_LOGITS


def memory_table(memories: Sequence[tuple[Case, MemoryUse]]) -> Table:
    """Peak memory of forward plus backward in place, beside the logits."""
    table = table_of(
        "Memory of forward and backward in place, in MiB",
        ("N, V",),
        ("growth", "logits", "growth - logits", f"<= {LARGEST_BEYOND_LOGITS // MEBI}"),
    )
    for case, memory in memories:
        sizes = (memory.growth, case.logits_bytes, memory.growth - case.logits_bytes)
        table.add_row(str(case), *(f"{size / MEBI:.0f}" for size in sizes), verdict(meets_memory(case, memory)))
    return table


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torch_path",
        description="Time nkilib.torch against its kernels called on numpy arrays, and measure its memory.",
        epilog="The exit code is 1 only if the results differ; a missed goal leaves it 0.",
    )
    return parse_timing_arguments(parser, arguments, FEWEST_RUNS, knows_cpu=False)


def report(console: Console, compared: Sequence[Comparison], memories: Sequence[tuple[Case, MemoryUse]]) -> int:
    """Print the tables and how many goals were met; returns the exit code."""
    console.print(time_table(compared))
    console.print(memory_table(memories))
    time, memory = sum(one.meets_time for one in compared), sum(meets_memory(*one) for one in memories)
    console.print(f"Goals met: time {time} of {len(compared)}, memory {memory} of {len(memories)}.")
    wrong = [one for one in compared if not one.is_equal]
    for one in wrong:
        console.print(f"[bold red]Wrong:[/] {one.case} {one.name} differs from the kernels' results.")
    if not wrong:
        console.print("Both did the work: their gradients are equal to the bit.")
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 1 if the results differ, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    torch.set_num_threads(TORCH_THREADS)
    console.print(
        heading(
            "nkilib.torch beside its kernels on numpy arrays; simulated, not hardware",
            f"The same kernels, tilings and bytes; minimum of {options.runs} runs of each, alternating, "
            f"on this CPU ({os.cpu_count()} in all).",
            load_line(),
            "Passes: the mean loss; it and its gradient, out of place; it and its gradient, in place.",
            "Memory: growth of the peak resident set after the imports, in a fresh process, logits included.",
            f"Goals: ratio at most {LARGEST_RATIO}; at most {LARGEST_BEYOND_LOGITS // MEBI} MiB beyond the logits.",
        )
    )
    compared: list[Comparison] = []
    memories: list[tuple[Case, MemoryUse]] = []
    for case in cases(options.quick):
        with console.status(f"{case}"):
            compared += compare(case, options.runs)
            memories.append((case, measure_memory(case, TORCH_IN_PLACE, _NO_TUNING)))
    console.print(path_table())
    return report(console, compared, memories)


if __name__ == "__main__":
    raise SystemExit(main())
