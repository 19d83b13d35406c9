# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The timing of launches: the launches that are timed (:class:`Timed`), and clocks.

The clocks of the Neuron SDK (:data:`CLOCKS`) time a compiled program (NEFF) on the device, without the host.
:func:`measured` uses the first clock that works. :func:`wall_times` measures with the clock of the host instead.

- nrtpy, the Python package of the runtime: ``NrtpyModel.load_from_neff`` and ``benchmark(mode="device")``
  (``neuron-runtime/nrtpy/model`` of SDK 2.33).
- neuron-explorer, and neuron-profile before it: ``capture`` runs a program and traces its second execution, ``view
  --output-format summary-json`` prints its ``total_time`` in seconds. The page of SDK 2.33 on profiling a kernel,
  ``nki/guides/use-neuron-profile``, names ``capture``; the form of the summary is from public code that reads it.

The authors have run none of these clocks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import ml_dtypes
import numpy as np

from nkilib.verify.step import Array, on_cores

_WARM_UP: Final = 5
_TIMES: Final = 50
_CAPTURES: Final = 3
_TRACED: Final = 2
# Seconds that a tool may take before the next clock is tried.
_LIMIT: Final = 180
_TOTAL: Final = "total_time"

# The wall clock: if a launch compiles or loads its program again, few launches are enough.
_WALL_WARM_UP: Final = 2
_WALL_LEAST: Final = 3
_WALL_MOST: Final = 15
_WALL_SECONDS: Final = 30.0

_NUMPY: Final = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
_US: Final = 1e-6


@dataclass(frozen=True)
class Shape:
    """The sizes and the type of an array of a launch. Its values do not affect the time, as long as they are valid.

    Attributes:
        sizes: the sizes of its dimensions.
        dtype: ``"bfloat16"``, ``"float32"`` or ``"int32"``.
    """

    sizes: tuple[int, ...]
    dtype: str

    def array(self) -> Array:
        """Return an array of ones; 1 is also valid where integers are classes."""
        return np.ones(self.sizes, _NUMPY.get(self.dtype, self.dtype))


@dataclass(frozen=True)
class Timed:
    """A launch that is timed, described by the shapes of its arrays.

    Attributes:
        name: a word that is unique among the launches of a :class:`.figures.Figure`.
        kernel: a kernel from ``nki.jit``.
        shapes: the shapes of its arrays, by name.
        constants: its other arguments.
        cores: the number of cores of the launch.
    """

    name: str
    kernel: Any
    shapes: Mapping[str, Shape]
    constants: Mapping[str, Any] = field(default_factory=dict)
    cores: int = 1

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the launch by name, filled with ones."""
        return {name: shape.array() for name, shape in self.shapes.items()}

    def launch(self, arrays: Mapping[str, Array]) -> None:
        """Run the launch on these arrays, and wait for its end."""
        on_cores(self.kernel, self.cores)(**arrays, **self.constants)

    def modelled_seconds(self) -> float:
        """Return the seconds that the performance model of the simulator gives for the launch."""
        from nkilib.simulator import profile, spec

        arguments: dict[str, Any] = {name: spec(shape.sizes, shape.dtype) for name, shape in self.shapes.items()}
        return profile(self.kernel[self.cores], **arguments, **self.constants).time_us * _US


class ClockError(Exception):
    """Raised if a clock does not exist on this machine or does not work; the message gives the reason."""


@dataclass(frozen=True)
class Program:
    """A compiled launch.

    Attributes:
        name: the name of the launch.
        neff: the path of the compiled file.
        arrays: the arguments, by the names of the kernel's parameters.
    """

    name: str
    neff: Path
    arrays: Mapping[str, Array]


@dataclass(frozen=True)
class ClockTimes:
    """The times that a clock measured.

    Attributes:
        clock: the name of the clock; None if no clock worked.
        seconds: the seconds of each execution, by the name of the launch.
        refusals: the errors of the clocks that were tried before and did not work, by the name of the clock.
    """

    clock: str | None = None
    seconds: dict[str, Array] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)


class Clock(Protocol):
    """A protocol: a clock of the Neuron SDK that times a compiled program on the device."""

    @property
    def name(self) -> str:
        """The name of the clock in the report."""

    def seconds(self, program: Program, directory: Path) -> list[float]:
        """Run a program several times, and return the seconds of each execution.

        If the clock does not work, this method raises an error of any type.

        Args:
            program: the program.
            directory: a folder for files of the clock.
        """


def _named(arrays: Mapping[str, Array], inputs: Sequence[str]) -> dict[str, Array]:
    """Return the arguments of a kernel under the names of the compiled program's inputs.

    If these are not the names of the kernel's parameters, arrays and inputs are matched in order.
    """
    if set(inputs) == set(arrays):
        return dict(arrays)
    if len(inputs) != len(arrays):
        raise ClockError(f"the program has the inputs {', '.join(inputs)}, the kernel {', '.join(arrays)}")
    return dict(zip(inputs, arrays.values(), strict=True))


def _plain(array: Array) -> Array:
    """Return the array as nrtpy takes it: bfloat16, which numpy itself lacks, as uint16 with the same bytes."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


@dataclass(frozen=True)
class Nrtpy:
    """A clock: the benchmark of nrtpy, which times executions on the device."""

    name: str = "nrtpy"

    def seconds(self, program: Program, directory: Path) -> list[float]:
        """Return the times of fifty executions on the device.

        Raises:
            ImportError: nrtpy is not installed.
            ClockError: the program has other inputs than the kernel.
        """
        nrtpy = import_module("nrtpy")
        model = nrtpy.NrtpyModel.load_from_neff(program.neff)
        inputs = {
            name: nrtpy.NrtpyTensor.from_numpy(_plain(array), name=name)
            for name, array in _named(program.arrays, list(model.input_tensors_info)).items()
        }
        result = model.benchmark(inputs=inputs, warmup_iter=_WARM_UP, benchmark_iter=_TIMES, mode="device")
        return [milliseconds / 1000.0 for milliseconds in result.durations_ms]


def _run(command: Sequence[str], directory: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise ClockError(f"{command[1]} took more than {_LIMIT} s") from late
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ClockError(f"{command[1]} ended with {done.returncode}: {''.join(last)}")
    return done.stdout


def _totals(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name == _TOTAL:
                yield float(item)
            else:
                yield from _totals(item)


def _total(summary: str) -> float:
    """Return the largest total time, in seconds, in a profiler's summary: JSON text with a table for each program."""
    start = summary.find("{")
    try:
        tables: Any = json.loads(summary[start:]) if start >= 0 else None
    except ValueError as error:
        raise ClockError(f"the summary is no JSON: {error}") from error
    times = list(_totals(tables))
    if not times:
        raise ClockError(f"the summary has no {_TOTAL}")
    return max(times)


@dataclass(frozen=True)
class Profiler:
    """A clock: a profiler that is run as a command. It makes the inputs of the program itself.

    Attributes:
        name: the name of the command.
    """

    name: str

    def seconds(self, program: Program, directory: Path) -> list[float]:
        """Return the time of the second execution in each of several captures.

        Raises:
            ClockError: there is no such command, it fails, or its summary has no time.
        """
        command = shutil.which(self.name)
        if command is None:
            raise ClockError(f"no command {self.name} on the path")
        return [self._captured(command, program, directory / f"{program.name}-{n}") for n in range(_CAPTURES)]

    def _captured(self, command: str, program: Program, directory: Path) -> float:
        directory.mkdir(parents=True, exist_ok=True)
        trace = directory / "profile.ntff"
        file = ("-n", str(program.neff))
        _run([command, "capture", *file, "-s", str(trace), f"--profile-nth-exec={_TRACED}"], directory)
        traces = sorted(directory.glob(f"*_exec_{_TRACED}*.ntff")) or sorted(directory.glob("*.ntff"))
        if not traces:
            raise ClockError(f"{self.name} capture wrote no trace")
        # Each of two cores may have a trace: the launch ends with the later one.
        views = [["view", "--output-format", "summary-json", *file, "-s", str(trace_file)] for trace_file in traces]
        return max(_total(_run([command, *view], directory)) for view in views)


CLOCKS: Final[Sequence[Clock]] = (Nrtpy(), Profiler("neuron-explorer"), Profiler("neuron-profile"))


def measured(programs: Sequence[Program], directory: Path, clocks: Sequence[Clock] = CLOCKS) -> ClockTimes:
    """Return the times of all programs from the first clock that works for all of them."""
    refusals = {}
    for clock in clocks:
        try:
            seconds = {program.name: np.array(clock.seconds(program, directory)) for program in programs}
        except Exception as error:  # whatever a package or a tool that was never seen raises
            refusals[clock.name] = f"{type(error).__name__}: {error}"
        else:
            return ClockTimes(clock.name, seconds, refusals)
    return ClockTimes(refusals=refusals)


def wall_times(launch: Timed) -> Array:
    """Return the wall-clock seconds of several launches after some warm-up launches. Transfers, and the loading of the
    program, are included.
    """
    arrays = launch.arrays()
    for _ in range(_WALL_WARM_UP):
        launch.launch(arrays)
    seconds: list[float] = []
    while len(seconds) < _WALL_LEAST or (len(seconds) < _WALL_MOST and sum(seconds) < _WALL_SECONDS):
        start = time.perf_counter()
        launch.launch(arrays)
        seconds.append(time.perf_counter() - start)
    return np.array(seconds)
