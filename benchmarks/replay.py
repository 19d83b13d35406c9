# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""CPU time of repeated launches: ``python -m benchmarks.replay``.

Each line of the table launches kernels without replay, launches them with replay, and runs torch's eager functions for
the same work, alternately, all on one thread except the simulator's own second core. The table shows CPU times, and the
ratio of replayed launches to torch with its goal. Below it are the times of a launch of one copy and of an instruction,
and the memory of processes that replay. With ``--sources`` attention_cte of nki-library is launched from a clone of
that repository.

:class:`ReplayCase` is a line, :func:`cases` are all, and :func:`timed_launches` times the launches of one.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import nkilib.torch
from benchmarks._against_torch import as_tensor
from benchmarks._display import end_verdicts, verdict
from benchmarks._inputs import DTYPES
from benchmarks._linear import LinearCase, LinearInputs
from benchmarks._losses import BACKWARD, FORWARD, LOSSES, LossCase, LossInputs
from benchmarks._replay_memory import MEMORY_CASES, measure_replay_memory
from benchmarks._softmax import PASSES as SOFTMAX_PASSES
from benchmarks._softmax import SoftmaxCase, SoftmaxInputs
from benchmarks._timing import Contender, interleaved_minimum
from benchmarks.measurements.sources import SourceError, Sources
from benchmarks.measurements.table import PublicKernel, measurements
from examples._display import heading, make_console, plain_table
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward, linear_cross_entropy_forward
from nkilib.nki import NOT_SIMULATED, SIMULATED, nisa, nki, nl, replayable
from nkilib.simulator import ReplayCounts, recording, replay_counts, using
from nkilib.simulator.launch.arguments import map_leaves
from nkilib.simulator.launch.kernel import Kernel
from nkilib.simulator.machine.core import current_core_or_none


class Captured(NamedTuple):
    """A launch.

    Attributes:
        kernel: the kernel with its grid.
        args, kwargs: the arguments, as they were when the launch began.
    """

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def captured_launches(call: Callable[[], object]) -> list[Captured]:
    """Run ``call`` and return the launches that it makes from outside of kernels."""
    results: list[Captured] = []
    launch = Kernel.__call__

    def noting(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
        if current_core_or_none() is None:
            results.append(Captured(kernel, *map_leaves((args, kwargs), "", lambda leaf, _: _copied(leaf))))
        return launch(kernel, *args, **kwargs)

    with patch.object(Kernel, "__call__", noting), using(replay=False):
        call()
    return results


def _copied(leaf: Any) -> Any:
    """Copy arrays; return anything else as it is."""
    if hasattr(leaf, "detach"):
        return leaf.detach().clone()
    return copy.copy(leaf) if hasattr(leaf, "dtype") and hasattr(leaf, "copy") else leaf


CORES: Final = 2
# Columns of a chunk: few pieces, since each costs the interpreter's time.
_CHUNKS: Final = {"bf16": 32128, "fp32": 16064}
_NL_TYPES: Final = {"bf16": nl.bfloat16, "fp32": nl.float32}
# Any loss at 128 x 1000: so many times torch's time, or so many seconds, whichever is more.
SMALL_RATIO, SMALL_SECONDS = 5.0, 1.5e-3
_ROWS, _CLASSES = 128, 1000


class Sides(NamedTuple):
    """The two sides of a comparison, on the same data.

    Attributes:
        launches: our launches.
        torch: torch's function for the same work.
    """

    launches: list[Captured]
    torch: Callable[[], object]


@dataclass(frozen=True)
class ReplayCase:
    """A line of the table.

    Attributes:
        name: the launches and their type.
        make: its launches, and torch's function.
        goal: replayed over torch, at most; None where there is none.
        least: seconds that are good enough whatever torch takes.
    """

    name: str
    make: Callable[[], Sides]
    goal: float | None = None
    least: float = 0.0


def _cross_entropy(rows: int, classes: int, dtype: str, direction: str) -> Sides:
    generator = torch.Generator().manual_seed(0)
    logits = np.random.default_rng(0).standard_normal((rows, classes), np.float32).astype(DTYPES[dtype])
    target = torch.randint(classes, (rows,), generator=generator)
    targets, tensor = target.numpy().astype(np.int32), as_tensor(logits)
    tiling = {
        "positions_per_batch": 128,
        "chunk_size": min(classes, _CHUNKS[dtype]),
        "dtype": _NL_TYPES[dtype],
    }
    forward = Captured(cross_entropy_forward[CORES], (logits, targets), {**tiling, "lse_dtype": nl.float32})
    if direction == FORWARD:
        return Sides([forward], partial(F.cross_entropy, tensor, target, reduction="none"))
    lse = forward.kernel(*forward.args, **forward.kwargs)[1]
    leaf = tensor.requires_grad_()
    loss = F.cross_entropy(leaf, target)
    options = {**tiling, "reduction": "mean", "inplace": False}
    backward = Captured(cross_entropy_backward[CORES], (logits, targets, lse), options)
    return Sides([backward], lambda: torch.autograd.grad(loss, leaf, retain_graph=True))


def _softmax(shape: tuple[int, ...], axis: int, dtype: str, direction: str) -> Sides:
    inputs = SoftmaxInputs(SoftmaxCase(shape, axis, dtype))
    if direction == BACKWARD:  # of a softmax, where the measured losses have log-probabilities
        inputs.torch_y = torch.softmax(inputs.torch_x, axis)
        inputs.y = np.asarray(inputs.torch_y.float().numpy(), DTYPES[dtype])
    run = SOFTMAX_PASSES["softmax" if direction == FORWARD else "softmax, backward"]
    return Sides(captured_launches(partial(run.ours, inputs)), partial(run.torch, inputs))


def _loss(name: str, shape: tuple[int, ...], dtype: str, direction: str) -> Sides:
    inputs = LossInputs.of(LossCase(name, shape, dtype))
    run = LossInputs.value if direction == FORWARD else LossInputs.gradient
    run(inputs, F)
    run(inputs, nkilib.torch)  # its graph is made here
    return Sides(captured_launches(partial(run, inputs, nkilib.torch)), partial(run, inputs, F))


def _linear(positions: int, features: int, classes: int) -> Sides:
    inputs = LinearInputs(LinearCase(positions, features, classes))
    launch = Captured(linear_cross_entropy_forward[CORES], (inputs.input, inputs.weight, inputs.targets), {})
    hidden, weight = (as_tensor(item).float() for item in (inputs.input, inputs.weight))
    target = torch.from_numpy(inputs.targets.astype(np.int64))
    return Sides([launch], lambda: F.cross_entropy(F.linear(hidden, weight), target, reduction="none"))


def _named(
    name: str, make: Callable[..., Sides], goals: dict[tuple[str, str], float], *sizes: Any
) -> Iterator[ReplayCase]:
    """A line for each type and direction that has a goal."""
    for (dtype, direction), goal in goals.items():
        yield ReplayCase(f"{name}, {dtype}, {direction}", partial(make, *sizes, dtype, direction), goal)


def _all(bf16: float, fp32: float | None = None) -> dict[tuple[str, str], float]:
    """Return the same goal for forward and backward."""
    types = {"bf16": bf16} if fp32 is None else {"bf16": bf16, "fp32": fp32}
    return {(dtype, way): goal for dtype, goal in types.items() for way in (FORWARD, BACKWARD)}


def _each(fp32: tuple[float, float], bf16: tuple[float, float]) -> dict[tuple[str, str], float]:
    """Goals of forward and backward."""
    goals = {"fp32": fp32, "bf16": bf16}
    return {(dtype, way): of[place] for dtype, of in goals.items() for place, way in enumerate((FORWARD, BACKWARD))}


_MSE: Final = ((0.6, 0.9), (0.6, 2.0))
_TWICE_MSE: Final = _each((1.2, 1.8), (1.2, 4.0))
_MATRICES: Final[dict[str, dict[tuple[str, str], float]]] = {
    "mse_loss": _each(*_MSE),
    "smooth_l1_loss": _each((1.6, 1.0), (3.5, 6.0)),
    "l1_loss": _TWICE_MSE,
    "huber_loss": _TWICE_MSE,
    "margin_ranking_loss": _TWICE_MSE,
    "binary_cross_entropy_with_logits": {("fp32", BACKWARD): 2.6, ("bf16", BACKWARD): 3.2},
}


def cases(quick: bool = False) -> Iterator[ReplayCase]:
    """All lines; the quick ones are small, and have no goals."""
    if quick:
        yield ReplayCase("cross-entropy 4 x 40, fp32, forward", partial(_cross_entropy, 4, 40, "fp32", FORWARD))
        yield ReplayCase("mse_loss [40, 70], bf16, backward", partial(_loss, "mse_loss", (40, 70), "bf16", BACKWARD))
        return
    yield from _named("cross-entropy 128 x 1000", _cross_entropy, _all(3.2, 3.2), 128, 1000)
    yield from _named("cross-entropy 1024 x 32128", _cross_entropy, _all(0.9, 0.6), 1024, 32128)
    yield from _named("cross-entropy 1024 x 129280", _cross_entropy, _all(0.9), 1024, 129280)
    rows, columns = (1024, 32128), (8, 1024, 2048)
    yield from _named("softmax [1024, 32128], axis -1", _softmax, _each((2.4, 0.8), (3.0, 1.9)), rows, -1)
    yield from _named("softmax [8, 1024, 2048], axis 1", _softmax, _all(3.0, 3.0), columns, 1)
    for name, goals in _MATRICES.items():
        yield from _named(f"{name} [4096, 4096]", _loss, goals, name, (4096, 4096))
    yield from _named(
        "ctc_loss [512, 64, 512]",
        _loss,
        {("fp32", way): 2.5 for way in (FORWARD, BACKWARD)},
        "ctc_loss",
        (512, 64, 512),
    )
    yield ReplayCase(
        "linear cross-entropy (1024, 1024, 16000), bf16, forward", partial(_linear, 1024, 1024, 16000), 1.2
    )
    yield ReplayCase("linear cross-entropy (128, 256, 1000), bf16, forward", partial(_linear, 128, 256, 1000), 2.5)
    yield from _small_losses()


def _small_losses() -> Iterator[ReplayCase]:
    """Every loss at 128 x 1000; CTC and a short inner axis, for which there is no goal, at small sizes."""
    for name, loss in LOSSES.items():
        is_exempt = name == "ctc_loss"
        shape = (64, 8, 32) if is_exempt else (_ROWS, _CLASSES)
        for dtype in ("fp32", "bf16") if loss.in_bfloat16 else ("fp32",):
            for direction in (FORWARD, BACKWARD):
                make = partial(_loss, name, shape, dtype, direction)
                goal, least = (None, 0.0) if is_exempt else (SMALL_RATIO, SMALL_SECONDS)
                yield ReplayCase(f"{name} {list(shape)}, {dtype}, {direction}", make, goal, least)
    for direction in (FORWARD, BACKWARD):
        make = partial(_softmax, (8, 64, 128), 1, "fp32", direction)
        yield ReplayCase(f"softmax [8, 64, 128], axis 1, fp32, {direction}", make)


AS_ALWAYS, REPLAYED, TORCH = "as always", "replayed", "torch"
# Launches of a key before it is replayed: as always, recorded, compared.
_WARM = 6
# Seconds that a run of a contender takes at least, as often as its work has to be repeated for that.
_LEAST_SECONDS = 0.01
_MOST_REPEATS = 100
_MILLI, _MICRO, _MIB = 1e3, 1e6, 2**20
# Goals beside the ratios.
LARGEST_MICROSECONDS_OF_INSTRUCTION, LARGEST_MICROSECONDS_OF_COPY = 5.0, 30.0
LEAST_GAIN_OF_ATTENTION = 3.0
LARGEST_MIB = 190.0


@dataclass(frozen=True)
class Timed:
    """A line of the table.

    Attributes:
        case: the case that was timed.
        as_always, replayed, torch: seconds of CPU time: without replay, with replay, of torch.
        instructions: number of instructions of the launches.
        hindrance: why the launches were not replayed; empty if they were.
    """

    case: ReplayCase
    as_always: float
    replayed: float
    torch: float
    instructions: int
    hindrance: str = ""

    @property
    def ratio(self) -> float:
        """Replayed over torch."""
        return self.replayed / self.torch

    @property
    def is_met(self) -> bool:
        """Whether there is no goal, or it is met by launches that were replayed."""
        if self.case.goal is None:
            return True
        return not self.hindrance and (self.ratio <= self.case.goal or self.replayed <= self.case.least)


def run_all(launches: Sequence[Captured]) -> None:
    """Run the launches, one after the other."""
    for launch in launches:
        launch.kernel(*launch.args, **launch.kwargs)


def timed_launches(
    launches: Sequence[Captured], runs: int, other: Callable[[], object]
) -> tuple[dict[str, float], str]:
    """Return the CPU seconds without replay, with replay and of ``other``; and why nothing was replayed, if so."""

    def as_always() -> None:
        with using(replay=False):
            run_all(launches)

    def replayed() -> None:
        with using(replay=True):
            run_all(launches)

    for _ in range(_WARM):
        replayed()
    before = replay_counts()
    replayed()
    hindrance = _hindrance(before, replay_counts(), len(launches))
    work = {AS_ALWAYS: as_always, REPLAYED: replayed, TORCH: other}
    repeats = {name: _repeats(value) for name, value in work.items()}
    contenders = {name: Contender(_repeated(value, repeats[name])) for name, value in work.items()}
    seconds = interleaved_minimum(contenders, runs, time.process_time)
    return {name: seconds[name] / repeats[name] for name in seconds}, hindrance


def _hindrance(before: ReplayCounts, after: ReplayCounts, launches: int) -> str:
    """Why some of the launches between two counts were not replayed; empty if all were."""
    if after.total.replayed - before.total.replayed >= launches:
        return ""
    for name, counts in after.kernels.items():
        known = before.kernels[name].reasons if name in before.kernels else {}
        for reason, count in counts.reasons.items():
            if count > known.get(reason, 0):
                return reason
    return "no two of its launches were equal"


def _repeats(work: Callable[[], object]) -> int:
    """Return how often to run something so that its time is long compared with the clock's resolution."""
    start = time.process_time()
    work()
    return max(1, min(_MOST_REPEATS, int(_LEAST_SECONDS / max(time.process_time() - start, 1e-6))))


def _repeated(work: Callable[[], object], times: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(times):
            work()

    return run


def timed(case: ReplayCase, runs: int) -> Timed:
    """A case, measured."""
    sides = case.make()
    with using(replay=False), recording() as record:
        run_all(sides.launches)
    seconds, hindrance = timed_launches(sides.launches, runs, sides.torch)
    count = sum(record.instruction_counts.values())
    return Timed(case, seconds[AS_ALWAYS], seconds[REPLAYED], seconds[TORCH], count, hindrance)


def table_of(results: Sequence[Timed]) -> Table:
    """The lines, with goals and whether they are met."""
    table = plain_table("Milliseconds of CPU time")
    table.add_column("launches")
    for name in ("as always", "replayed", "torch", "as always x", "replayed x", "goal", "", "instr.", "us each"):
        table.add_column(name, justify="right")
    for result in results:
        goal = "" if result.case.goal is None else f"{result.case.goal:g}"
        if result.case.least:
            goal += f" or {result.case.least * _MILLI:g} ms"
        table.add_row(
            result.case.name + (f" (not replayed: {result.hindrance})" if result.hindrance else ""),
            *[f"{seconds * _MILLI:.3g}" for seconds in (result.as_always, result.replayed, result.torch)],
            f"{result.as_always / result.torch:.2f}",
            f"{result.ratio:.2f}",
            goal,
            "" if result.case.goal is None else verdict(result.is_met),
            f"{result.instructions:,}",
            f"{result.replayed / max(1, result.instructions) * _MICRO:.2f}",
        )
    return table


@nki.jit
@replayable
def one_copy(x: nl.NkiTensor) -> nl.NkiTensor:
    """The shortest kernel."""
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=x)
    return result


def show_copy(console: Console, runs: int) -> bool:
    """Print the time of a launch of one copy, and return whether it meets the goal."""
    launches = [Captured(one_copy, (np.ones((4, 4), np.float32),), {})]
    seconds, hindrance = timed_launches(launches, runs, lambda: None)
    micro = seconds[REPLAYED] * _MICRO
    is_met = not hindrance and micro <= LARGEST_MICROSECONDS_OF_COPY
    console.print(
        f"A launch of one copy: {seconds[AS_ALWAYS] * _MICRO:.0f} us as always, {micro:.1f} us replayed, goal "
        f"{LARGEST_MICROSECONDS_OF_COPY:g}:",
        verdict(is_met),
    )
    return is_met


def show_instruction(console: Console, results: Sequence[Timed]) -> list[bool]:
    """Print the least time of an instruction where tiles are small, and return which lines meet the goal."""
    small = [result for result in results if result.case.name.startswith("ctc_loss [64, 8, 32]")]
    met = []
    for timed in small:
        micro = timed.replayed / timed.instructions * _MICRO
        met.append(not timed.hindrance and micro <= LARGEST_MICROSECONDS_OF_INSTRUCTION)
        goal = f"{micro:.2f} us an instruction, goal {LARGEST_MICROSECONDS_OF_INSTRUCTION:g}:"
        console.print(f"{timed.case.name}: {goal}", verdict(met[-1]))
    return met


def show_attention(console: Console, directory: Path, runs: int) -> list[bool]:
    """Instructions a second of attention_cte, from a clone of nki-library."""
    # Its variable for its log: with it off, the kernel has no effect but its results, as this states for it.
    os.environ.setdefault("NKILIB_LOG_LEVEL", "ERROR")
    row = next(
        measurement
        for measurement in measurements()
        if "attention_cte" in measurement.name and "S=512" in measurement.name
    )
    assert isinstance(row.kernel, PublicKernel)
    try:
        with Sources(directory) as sources:
            kernel = replayable(sources.kernel(row.kernel))
            rng = np.random.default_rng(0)
            arrays = [
                rng.standard_normal(call["spec"], np.float32).astype(getattr(nl, call["dtype"]).numpy)
                for call in row.calls[0]
            ]
            launches = [Captured(kernel, tuple(arrays), dict(row.keywords))]
            with using(replay=False), recording() as record:
                run_all(launches)
            seconds, hindrance = timed_launches(launches, runs, lambda: None)
    except SourceError as error:
        console.print(f"attention_cte: {error}")
        return []
    count = sum(record.instruction_counts.values())
    gain = seconds[AS_ALWAYS] / seconds[REPLAYED]
    is_met = not hindrance and gain >= LEAST_GAIN_OF_ATTENTION
    console.print(
        f"{row.name}: {count / seconds[AS_ALWAYS]:,.0f} instructions a second as always, "
        f"{count / seconds[REPLAYED]:,.0f} replayed, {gain:.2f} times as many, goal {LEAST_GAIN_OF_ATTENTION:g}:",
        verdict(is_met),
        f"(not replayed: {hindrance})" if hindrance else "",
    )
    return [is_met]


def show_memory(console: Console) -> list[bool]:
    """Peaks beyond arrays and results in fresh processes, in which launches come to be replayed."""
    met = []
    for case, name in MEMORY_CASES:
        beyond = measure_replay_memory(case, name).beyond_arrays / _MIB
        met.append(beyond <= LARGEST_MIB)
        console.print(
            f"{name} {case}: {beyond:.0f} MiB beyond arrays and result, goal {LARGEST_MIB:g}:", verdict(met[-1])
        )
    return met


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay",
        description="CPU time of kernel launches as always and replayed, beside torch's eager functions on one thread.",
    )
    parser.add_argument("--only", metavar="REGEX", default="", help="lines whose names match")
    parser.add_argument("--runs", type=int, default=3, help="of each; the shortest counts (default 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes, without goals")
    parser.add_argument("--sources", type=Path, metavar="DIR", help="clones of public kernels, as DIR/owner+name")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 1 if a goal is missed, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    console.print(
        heading(
            "nkilib replay bench",
            "Kernel launches as always and replayed beside torch's eager functions: CPU time, torch on one thread.",
            f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}; BLAS takes one thread a core.",
        )
    )
    torch.set_num_threads(1)
    met: list[bool] = []
    results: list[Timed] = []
    for case in cases(options.quick):
        if re.search(options.only, case.name):
            with console.status(case.name):
                results.append(timed(case, options.runs))
    if results:
        console.print(table_of(results))
        met += [result.is_met for result in results if result.case.goal is not None]
    met += show_instruction(console, results)
    if re.search(options.only, "one copy"):
        met.append(show_copy(console, options.runs))
    if options.sources is not None and re.search(options.only, "attention_cte"):
        met += show_attention(console, options.sources, options.runs)
    if re.search(options.only, "memory") and not options.quick:
        met += show_memory(console)
    return end_verdicts(console, met)


if __name__ == "__main__":
    raise SystemExit(main())
