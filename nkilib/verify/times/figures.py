# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The timed figures of docs/explanation/performance_model.md, and launches of the library's kernels.

A *figure* (:class:`Figure`) is a step: the time of a launch, or the difference of the times of two launches, compared
with the performance model. :func:`figures` returns all figures.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from nkilib.experimental.loss import (
    choose_tiling,
    cross_entropy_backward,
    cross_entropy_forward,
    extended_cross_entropy_forward,
)
from nkilib.nki import nki, nl
from nkilib.verify.step import Array, Observation, Stage, Status, Step, Verdict
from nkilib.verify.times import clocks, kernels
from nkilib.verify.times.clocks import Shape, Timed, wall_times

# The directory of the compiled program; read when `nki` is imported (nrtpy's tutorial "debug a kernel", SDK 2.33).
ARTIFACTS: Final = "NKI_ARTIFACTS_DIR"
_PROGRAM: Final = "kernel.neff"
_ASIDE: Final = "programs"
_BASE: Final = "base"
_WALL: Final = "the wall clock"
_US: Final = 1e-6
_NS: Final = 1e-9
# The largest accepted deviation of the model, by the goals of docs/explanation/performance_model.md.
CLOSE: Final = 1.15
ROUGH: Final = 1.30
_GB_PER_S: Final = 368e9

_rmsnorm_quant: Final = nki.jit(kernels.rmsnorm_quant)
_matmul: Final = nki.jit(kernels.matmul)
_tiled_matmul: Final = nki.jit(kernels.tiled_matmul)

# Links of a chain.
_FEW: Final = 8
_MANY: Final = 40


def _difference(timed: Array, base: Array, times: int) -> tuple[float, float]:
    """Return the difference of the medians of two launches' times, and its spread, both divided by ``times``.

    The spread is half the sum of the two interquartile ranges.
    """
    spread = sum(float(np.subtract(*np.percentile(seconds, [75, 25]))) for seconds in (timed, base)) / 2
    return float(np.median(timed) - np.median(base)) / times, spread / times


def _by_clock(launch: str) -> str:
    return f"{launch} by the clock"


def _wall_seconds(launch: Timed) -> Array:
    """Return the wall-clock seconds of several runs of a launch.

    Move the programs compiled for it to a folder with the name of the launch, where :func:`_compiled_program` finds
    them.
    """
    seconds = wall_times(launch)
    home = Path(os.environ.get(ARTIFACTS, ""))
    if os.environ.get(ARTIFACTS) and home.is_dir():
        aside = home.parent / _ASIDE / launch.name
        aside.mkdir(parents=True)
        for path in home.iterdir():
            shutil.move(path, aside / path.name)
    return seconds


def _compiled_program(directory: Path, launch: str) -> Path:
    """Return the path of the program (NEFF) that was compiled for a launch.

    Raises:
        ClockError: there is none, or more than one.
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


@dataclass(frozen=True)
class Figure(Step):
    """A step that compares a time on the device with the performance model.

    The time is that of one launch, or the difference of two.

    Attributes:
        description: the work whose time is compared, in words.
        timed: the launch.
        base: the launch whose time is subtracted. None means an empty launch; it is subtracted only from times on the
            wall clock, which include the time around a launch.
        times: how often ``timed`` does the work minus how often ``base`` does it; the time difference is divided by it.
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
        """The time of the work in the performance model, in seconds."""
        base = 0.0 if self.base is None else self.base.modelled_seconds()
        return (self.timed.modelled_seconds() - base) / self.times

    def observe(self, is_device: bool) -> Observation:
        """Launch, and return the wall-clock times. Keep the compiled programs for :meth:`measure`."""
        if not is_device:
            return Observation()
        try:
            arrays = {launch.name: _wall_seconds(launch) for launch in self._launches()}
        except Exception as error:  # of NKI, its compiler, or the runtime
            return Observation(error=f"{type(error).__name__}: {error}")
        return Observation(arrays)

    def measure(self, observation: Observation, directory: Path) -> Observation:
        """Return the observation with the times of all launches from the first clock of the SDK that works; if none
        does, with a note of the reasons.
        """
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
        yield self.timed
        if self.base is not None:
            yield self.base
        else:
            names = ("first", "second", "third")
            shapes = dict(zip(names, self.timed.shapes.values(), strict=False))
            yield Timed(_BASE, kernels.nothing, shapes, cores=self.cores)

    def _measured(self, clock: str | None, observation: Observation) -> tuple[float, float]:
        """Return the seconds of the work and their spread.

        Args:
            clock: the name of the clock of the SDK that measured; None means the wall clock.
            observation: the times.
        """
        base = None if self.base is None else self.base.name
        if clock is None:  # every launch includes the transfers and the loading of the program
            timed_seconds, base_seconds = observation.arrays[self.timed.name], observation.arrays[base or _BASE]
        else:
            timed_seconds = observation.arrays[_by_clock(self.timed.name)]
            base_seconds = np.zeros(1) if base is None else observation.arrays[_by_clock(base)]
        return _difference(timed_seconds, base_seconds, self.times)


def _chain(title: str, kernel: Any, shape: Shape, published_ns: float | None) -> Figure:
    many, few = (Timed(name, kernel, {"x": shape}, {"links": n}) for name, n in (("many", _MANY), ("few", _FEW)))
    return Figure(
        f"time: {title}",
        False,
        "a link of a chain, in which each waits for the one before",
        many,
        few,
        _MANY - _FEW,
        None if published_ns is None else published_ns * _NS,
        CLOSE,
    )


def _chains() -> Iterator[Figure]:
    for columns, ns in ((4096, 3713.0), (128, 401.0)):
        shape = Shape((kernels.PARTITIONS, columns), "bfloat16")
        yield _chain(f"exp, N={columns}", kernels.chain_of_exp, shape, ns)
    wide = Shape((kernels.PARTITIONS, 16384), "bfloat16")
    yield _chain("tensor_scalar_reduce, N=16384", kernels.chain_of_tensor_scalar_reduce, wide, 17250.0)
    yield _chain("activation_reduce, N=16384", kernels.chain_of_activation_reduce, wide, 14000.0)
    # A link is a load with its latency. Only the time of its rows is published, which no difference of launches shows.
    for title, sizes in (("load [4, 4096] bf16, one DMA engine", (4, 4096)), ("load [128, 128] bf16", (128, 128))):
        yield _chain(title, kernels.chain_of_loads, Shape(sizes, "bfloat16"), None)


def _rates() -> Iterator[Figure]:
    """Yield figures for loads of rows of several lengths. AWS publishes the rate of such loads in percent of the peak
    rate, from which the published times are computed.
    """
    few, many = 16, 32
    for row_bytes, percent in ((256, 10), (512, 21), (1024, 42), (2048, 81), (4096, 97)):
        many_loads, few_loads = (
            Timed(
                name,
                kernels.rows_loaded,
                {"x": Shape((links * kernels.PARTITIONS, row_bytes // 2), "bfloat16")},
                {"links": links},
            )
            for name, links in (("many", many), ("few", few))
        )
        seconds = kernels.PARTITIONS * row_bytes / (_GB_PER_S * percent / 100)
        yield Figure(
            f"time: DMA rate of one queue, rows of {row_bytes} B",
            False,
            "a load of 128 rows, from one queue, none of which waits for another",
            many_loads,
            few_loads,
            many - few,
            seconds,
            ROUGH,
        )


def _whole(title: str, timed: Timed, published_seconds: float | None, within: float, is_quick: bool = False) -> Figure:
    return Figure(f"time: {title}", is_quick, "a whole launch", timed, None, 1, published_seconds, within)


def _published_kernels() -> Iterator[Figure]:
    products = {"lhs_t": Shape((8192, 4096), "float32"), "rhs": Shape((8192, 8192), "float32")}
    yield _whole("matmul, every tile loaded", Timed("matmul", _tiled_matmul, products), 39.89e-3, CLOSE)
    yield _whole("matmul, in blocks", Timed("matmul", _matmul, products), 28.2e-3, CLOSE)
    for rows, hidden, us in (
        (2048, 8192, 458.2),
        (2048, 16384, 866.81),
        (32768, 8192, 6287.0),
        (32768, 16384, 13214.4),
    ):
        shapes = {"x": Shape((rows, hidden), "bfloat16"), "gamma": Shape((1, hidden), "bfloat16")}
        timed = Timed("rmsnorm", _rmsnorm_quant, shapes, cores=2)
        yield _whole(f"RMSNorm-Quant, S={rows // 1024}K, H={hidden}", timed, us * _US, ROUGH)


def _losses() -> Iterator[Figure]:
    for positions, vocabulary in ((512, 32768), (4096, 32128), (4096, 129280)):
        shapes = {"logits_hbm": Shape((positions, vocabulary), "bfloat16"), "targets_hbm": Shape((positions,), "int32")}
        for direction, kernel, further, options in (
            ("forward", cross_entropy_forward, {}, {"lse_dtype": nl.float32}),
            ("backward", cross_entropy_backward, {"lse_state_hbm": Shape((positions,), "float32")}, {"inplace": True}),
        ):
            tiling = choose_tiling(positions, vocabulary, "bfloat16", direction)._asdict()
            timed = Timed(direction, kernel, {**shapes, **further}, {**tiling, **options}, 2)
            is_quick = (positions, direction) == (512, "forward")
            yield _whole(f"cross_entropy_{direction}, {positions} x {vocabulary}", timed, None, ROUGH, is_quick)


def _token_scores() -> Iterator[Figure]:
    for positions, vocabulary in ((512, 32768), (4096, 129280)):
        shapes = {"logits_hbm": Shape((positions, vocabulary), "bfloat16"), "targets_hbm": Shape((positions,), "int32")}
        tiling = choose_tiling(positions, vocabulary, "bfloat16", "forward", extended=True)._asdict()
        timed = Timed("scores", extended_cross_entropy_forward, shapes, {**tiling, "with_entropy": True}, 2)
        yield _whole(f"log-probability and entropy, {positions} x {vocabulary}", timed, None, ROUGH)


def figures() -> list[Figure]:
    """Return all figures, in the order in which they are timed."""
    return [*_losses(), *_token_scores(), *_chains(), *_rates(), *_published_kernels()]
