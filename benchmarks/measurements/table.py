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
    """

    repository: str
    commit: str
    file: str
    function: str
    package: str = ""
    constants: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnKernel:
    """A kernel of :mod:`benchmarks.measurements.kernels` that does the work of the measured one."""

    module: str
    function: str


@dataclass(frozen=True)
class Measurement:
    """A published figure.

    Attributes:
        source: who published it: a repository.
        row: what was measured.
        commit: the source's revision where the figure stands.
        section: file, and what to look for in it.
        hardware: the generation of the chip.
        cores: how many NeuronCores ran the kernel.
        dtype: of the inputs.
        measured: the figure; for ``ratio``, the time of ``baseline`` over that of ``optimised``.
        unit: ``us``, ``ms`` or ``ratio``.
        doubts: what is doubtful about it.
        half: which half of the table it is in; always :func:`half_of`.
        kernel: what is modelled; absent for a ratio.
        calls: the arguments of each launch that the figure adds up.
        keywords: the keyword arguments of all launches.
        baseline, optimised: the rows of the same source that a ratio compares.
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

    @property
    def name(self) -> str:
        """What decides the half."""
        return f"{self.source}|{self.row}"

    @property
    def is_ratio(self) -> bool:
        return self.unit == RATIO

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
    if kernel is not None:
        kernel = PublicKernel(**kernel) if "repository" in kernel else OwnKernel(**kernel)
    calls = tuple(tuple(call) for call in entry.pop("calls", ()))
    return Measurement(**entry, kernel=kernel, calls=calls)
