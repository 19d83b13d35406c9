# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The published measurements as data: one row a figure, with its source, its doubts and the kernel that is modelled."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

Half = Literal["fit", "check"]
FIT: Half = "fit"
CHECK: Half = "check"
ROWS = Path(__file__).parent / "rows.json"
RATIO = "ratio"
MICROSECONDS = {"us": 1.0, "ms": 1000.0}
# What a launch adds to the time of its kernel where a figure is that of the device's benchmark. From launches that are
# no rows, for it dominates them: copies of 1 and 2 MiB in 17.8 to 23.2 us (yahavb/trainium-agent-labs, whose own
# reckoning is 10 to 17 us) and sums of vectors in 15 to 28 us (xaviergonzalez/asst4-trainium2), modelled 6 to 14 less.
LAUNCH_US = 10.0


@dataclass(frozen=True)
class PublicKernel:
    """A kernel that is run unmodified from the repository that publishes it.

    Attributes:
        repository: owner/name on GitHub.
        commit: the revision that is run.
        file: its path in the repository.
        function: its name in the file.
        package: folder of the package that the file belongs to, if it imports its neighbours.
        constants: constants of the module that the measurement set to other values.
        absent: modules that the file imports and its kernel does not need; empty ones stand for them.
    """

    repository: str
    commit: str
    file: str
    function: str
    package: str = ""
    constants: dict[str, int] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class OwnKernel:
    """A kernel of :mod:`benchmarks.measurements.kernels` that does the work of the measured one."""

    function: str


@dataclass(frozen=True)
class Measurement:
    """A published figure.

    Attributes:
        source: who published it: a repository.
        row: the description of the measurement.
        commit: the source's revision where the figure stands.
        section: file, and what to look for in it.
        hardware: the generation of the chip.
        cores: how many NeuronCores ran the kernel.
        dtype: the type of the inputs.
        measured: the figure; for ``ratio``, the time of ``baseline`` over that of ``optimised``.
        unit: ``us``, ``ms`` or ``ratio``.
        doubts: the doubts about the measurement.
        half: the half of the table that it is in; always :func:`half_of`.
        kernel: the kernel that is modelled; absent for a ratio.
        calls: the arguments of each launch that the figure adds up.
        keywords: the keyword arguments of all launches.
        baseline, optimised: the rows of the same source that a ratio compares.
        launches: how many launches the figure adds up, each with what the runtime adds to it; 0 for slopes over several
            launches and for figures of profiles.
        was_known: the model had been compared with the figure, and causes sought, before the table was split.
        is_for_ratio: the figure itself cannot be right, only its ratio to another; it is in no table of times.
    """

    source: str
    row: str
    commit: str
    section: str
    hardware: str
    cores: int
    dtype: str
    measured: float
    unit: str
    doubts: str
    half: Half
    kernel: PublicKernel | OwnKernel | None = None
    calls: tuple[tuple[Any, ...], ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    baseline: str = ""
    optimised: str = ""
    launches: int = 0
    was_known: bool = False
    is_for_ratio: bool = False

    @property
    def name(self) -> str:
        """The text that decides the half."""
        return f"{self.source}|{self.row}"

    @property
    def is_ratio(self) -> bool:
        return self.unit == RATIO

    @property
    def launch_us(self) -> float:
        """The microseconds that launches add to the kernel's time in the figure."""
        return self.launches * LAUNCH_US

    @property
    def in_base_units(self) -> float:
        """The figure in microseconds; a ratio as it is."""
        return self.measured * MICROSECONDS.get(self.unit, 1.0)


def half_of(source: str, row: str) -> Half:
    """The half of a row: SHA-256 of "source|row" as a number; even is to fit, odd to check."""
    digest = hashlib.sha256(f"{source}|{row}".encode()).hexdigest()
    return CHECK if int(digest, 16) % 2 else FIT


@cache
def measurements() -> tuple[Measurement, ...]:
    """All rows, in the order of the file."""
    return tuple(_measurement(entry) for entry in json.loads(ROWS.read_text(encoding="utf-8")))


def _measurement(entry: dict[str, Any]) -> Measurement:
    kernel = entry.pop("kernel", None)
    if kernel is not None and "repository" in kernel:
        kernel = PublicKernel(**kernel | {"absent": tuple(kernel.get("absent", ()))})
    elif kernel is not None:
        kernel = OwnKernel(**kernel)
    calls = tuple(tuple(call) for call in entry.pop("calls", ()))
    return Measurement(**entry, kernel=kernel, calls=calls)
