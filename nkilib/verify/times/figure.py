# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A figure: a time on the device compared with the time of the performance model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from nkilib.verify.observation import Array, Observation
from nkilib.verify.step import Stage, Step
from nkilib.verify.times import clocks, kernels
from nkilib.verify.times.timed import Timed
from nkilib.verify.times.wall import wall_times
from nkilib.verify.verdict import Status, Verdict

# The directory of the compiled program; read when `nki` is imported (nrtpy's tutorial "debug a kernel", SDK 2.33).
ARTIFACTS: Final = "NKI_ARTIFACTS_DIR"
_PROGRAM: Final = "kernel.neff"
_ASIDE: Final = "programs"
_BASE: Final = "base"
_WALL: Final = "the wall clock"


@dataclass(frozen=True)
class Figure(Step):
    """A time: the difference of two launches, or a single launch.

    Attributes:
        description: the work whose time is compared.
        timed: the launch.
        base: the launch whose time is subtracted; None: the time of an empty launch is subtracted, if the clock
            includes it.
        times: the number of times that ``timed`` does the work in addition to ``base``, by which the difference is
            divided.
        published_seconds: a published time of the same work; None if there is none.
        within: the largest accepted ratio of the times of device and model, in either direction.
    """

    description: str
    timed: Timed
    base: Timed | None
    times: int
    published_seconds: float | None
    within: float

    @property
    def cores(self) -> int:
        return self.timed.cores

    @property
    def what(self) -> str:
        return f"{self.description}, {self.cores} core{'s' * (self.cores > 1)}"

    @property
    def stages_on_device(self) -> tuple[Stage, ...]:
        return Stage.LAUNCH, Stage.MEASURE, Stage.JUDGE

    @property
    def modelled_seconds(self) -> float:
        """The time in seconds by the performance model."""
        base = 0.0 if self.base is None else self.base.modelled_seconds()
        return (self.timed.modelled_seconds() - base) / self.times

    def observe(self, is_device: bool) -> Observation:
        """Keep the compiled programs for the clocks of the SDK, and measure wall-clock times."""
        if not is_device:
            return Observation()
        try:
            arrays = {launch.name: _wall_seconds(launch) for launch in self._launches()}
        except Exception as error:  # of NKI, its compiler, or the runtime
            return Observation(error=f"{type(error).__name__}: {error}")
        return Observation(arrays)

    def measure(self, observation: Observation, directory: Path) -> Observation:
        """Ask the clocks of the SDK, the best first, until one answers for all launches of the figure."""
        if observation.error is not None:
            return observation
        launches = [launch for launch in (self.timed, self.base) if launch is not None]
        try:
            programs = [
                clocks.Program(timed.name, _compiled_program(directory, timed.name), timed.arrays())
                for timed in launches
            ]
        except clocks.ClockError as error:
            return observation.with_notes(refusals={"clocks of the SDK": str(error)})
        reading = clocks.measured(programs, directory)
        seconds = {_by_clock(name): values for name, values in reading.seconds.items()}
        return observation.with_arrays(seconds).with_notes(clock=reading.clock, refusals=reading.refusals)

    def judge(self, observation: Observation, is_device: bool) -> Verdict:
        if observation.error is not None:
            return Verdict(Status.FAILED, observation.error)
        modelled = self.modelled_seconds
        details: dict[str, Any] = {"modelled_us": modelled * 1e6, "published_us": _us(self.published_seconds)}
        beside = f"modelled {_shown(modelled)}"
        if self.published_seconds is not None:
            beside += f", published {_shown(self.published_seconds)}"
        if not is_device:
            return Verdict(Status.MODELLED, f"{beside}; modelled, not measured", details)
        clock = observation.notes.get("clock")
        seconds, spread = self._measured(clock, observation)
        name = clock or _WALL
        details |= {"measured_us": seconds * 1e6, "spread_us": spread * 1e6, "clock": name}
        details["not_used"] = observation.notes.get("refusals", {})
        if seconds <= spread:
            text = f"not resolved by {name}: {_shown(seconds)}, spread {_shown(spread)}; {beside}"
            return Verdict(Status.MEASURED, text, details)
        ratio = details["model_over_measured"] = modelled / seconds
        text = f"measured {_shown(seconds)} by {name}, {beside}: the model is {ratio:.3g} times it"
        if clock is None:
            return Verdict(Status.MEASURED, f"{text}; it includes what the host does, and is not judged", details)
        is_near = 1 / self.within <= ratio <= self.within
        return Verdict(Status.AS_EXPECTED if is_near else Status.DIFFERS, text, details)

    def _launches(self) -> Iterator[Timed]:
        """Yield the launch, and the one that is subtracted: ``base``, or else an empty kernel on the same arrays."""
        yield self.timed
        if self.base is not None:
            yield self.base
        else:
            names = ("first", "second", "third")
            shapes = dict(zip(names, self.timed.shapes.values(), strict=False))
            yield Timed(_BASE, kernels.nothing, shapes, cores=self.cores)

    def _measured(self, clock: str | None, observation: Observation) -> tuple[float, float]:
        """Return the measured seconds of the work, and their spread."""
        base = None if self.base is None else self.base.name
        if clock is None:  # every launch includes the transfers and the loading of the program
            timed_seconds, base_seconds = observation.arrays[self.timed.name], observation.arrays[base or _BASE]
        else:
            timed_seconds = observation.arrays[_by_clock(self.timed.name)]
            base_seconds = np.zeros(1) if base is None else observation.arrays[_by_clock(base)]
        return _difference(timed_seconds, base_seconds, self.times)


def _difference(timed: Array, base: Array, times: int) -> tuple[float, float]:
    """Return the difference of two medians, and half the sum of the interquartile ranges, both divided by ``times``."""
    spread = sum(float(np.subtract(*np.percentile(seconds, [75, 25]))) for seconds in (timed, base)) / 2
    return float(np.median(timed) - np.median(base)) / times, spread / times


def _by_clock(launch: str) -> str:
    """Return the name, in an observation, of the times of a launch by a clock of the SDK."""
    return f"{launch} by the clock"


def _wall_seconds(launch: Timed) -> Array:
    """Return the wall-clock seconds of some launches, and move their compiled programs to a folder of that name."""
    seconds = wall_times(launch)
    home = Path(os.environ.get(ARTIFACTS, ""))
    if os.environ.get(ARTIFACTS) and home.is_dir():
        aside = home.parent / _ASIDE / launch.name
        aside.mkdir(parents=True)
        for path in home.iterdir():
            shutil.move(path, aside / path.name)
    return seconds


def _compiled_program(directory: Path, launch: str) -> Path:
    """Return the program of a launch from the folder that :func:`_wall_seconds` moved it to.

    Raises:
        ClockError: if there is none, or more than one.
    """
    paths = sorted((directory / _ASIDE / launch).rglob("*.neff"))
    named = [path for path in paths if path.name == _PROGRAM] or paths
    if len(named) != 1:
        raise clocks.ClockError(f"{ARTIFACTS} holds {len(named)} programs of the launch {launch!r}, one was expected")
    return named[0]


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _shown(seconds: float) -> str:
    return f"{seconds * 1e6:,.2f} us"
