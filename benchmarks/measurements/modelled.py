# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The model's figures for the rows of the table, and how near they come: goals, and figures that were recorded.

:class:`Model` models rows (:class:`Found`), :func:`summary` and :func:`goals` sum them up, and :func:`record` and
:func:`recorded` keep them in ``figures.json``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.measurements import kernels
from benchmarks.measurements.sources import SourceError, Sources
from benchmarks.measurements.table import Measurement, PublicKernel, measurements
from nkilib.nki import nl
from nkilib.simulator import ModelParameters, profile, spec, using

FIGURES = Path(__file__).parent / "figures.json"
# The goals for the half that the model is not fitted to.
GOAL_MEDIAN, GOAL_CLOSE, GOAL_SHARE, GOAL_WORST, GOAL_RATIO = 1.15, 1.35, 0.90, 1.60, 1.30


@dataclass(frozen=True)
class Found:
    """A row with the model's figure, in microseconds or as a ratio."""

    measurement: Measurement
    modelled: float

    @property
    def ratio(self) -> float:
        return self.modelled / self.measurement.in_base_units

    @property
    def factor(self) -> float:
        """How far the model is off, either way: at least 1."""
        return max(self.ratio, 1.0 / self.ratio)


@dataclass(frozen=True)
class Summary:
    """A summary of the factors of some rows.

    Attributes:
        rows: number of rows.
        median: median of the factors.
        median_ratio: median of modelled over measured: 1 is no bias.
        close: share within ``GOAL_CLOSE``.
        worst: the row with the largest factor.
    """

    rows: int
    median: float
    median_ratio: float
    close: float
    worst: Found


def summary(results: Sequence[Found]) -> Summary:
    """Raises:
    ValueError: without rows.
    """
    if not results:
        raise ValueError("summary: needs at least one row")
    return Summary(
        rows=len(results),
        median=statistics.median(result.factor for result in results),
        median_ratio=statistics.median(result.ratio for result in results),
        close=sum(result.factor <= GOAL_CLOSE for result in results) / len(results),
        worst=max(results, key=lambda item: item.factor),
    )


@dataclass(frozen=True)
class Goal:
    """A goal for the half that the model is not fitted to, and how it stands."""

    text: str
    is_met: bool


def goals(times: Sequence[Found], ratios: Sequence[Found]) -> list[Goal]:
    """The goals for times, then that for ratios; those without a row are left out."""
    results = []
    if times:
        of = summary(times)
        results += [
            Goal(f"median factor {of.median:.2f}, goal {GOAL_MEDIAN}", of.median <= GOAL_MEDIAN),
            Goal(f"{of.close:.0%} within {GOAL_CLOSE}, goal {GOAL_SHARE:.0%}", of.close >= GOAL_SHARE),
            Goal(f"worst factor {of.worst.factor:.2f}, goal {GOAL_WORST}", of.worst.factor <= GOAL_WORST),
        ]
    if ratios:
        of = summary(ratios)
        close = sum(ratio.factor <= GOAL_RATIO for ratio in ratios)
        text = f"ratios: {close} of {of.rows} within {GOAL_RATIO}, goal all; worst factor {of.worst.factor:.2f}"
        results.append(Goal(text, close == of.rows))
    return results


class Model:
    """Models rows on the simulator, one launch after the other; what a ratio needs twice is modelled once.

    Args:
        sources: where kernels of others are; without, only kernels of our own are modelled.
        parameters: the assumptions of the model.
        with_launches: add what the launches take, where the figure includes it.
    """

    def __init__(
        self,
        sources: Sources | None = None,
        parameters: ModelParameters | None = None,
        with_launches: bool = True,
    ) -> None:
        self.sources = sources
        self.parameters = parameters
        self.with_launches = with_launches
        self._times: dict[str, float] = {}

    def figure(self, row: Measurement) -> float:
        """Microseconds, or the ratio.

        Raises:
            SourceError: if the kernel cannot be had.
        """
        if row.is_ratio:
            return self._time(_row(row.source, row.baseline)) / self._time(_row(row.source, row.optimised))
        return self._time(row)

    def _time(self, row: Measurement) -> float:
        if row.name not in self._times:
            kernel = self._kernel(row)
            keywords = {name: _argument(value) for name, value in row.keywords.items()}
            with using(target=row.hardware):
                self._times[row.name] = sum(
                    profile(kernel, *map(_argument, call), parameters=self.parameters, **keywords).time_us
                    for call in row.calls
                )
        return self._times[row.name] + (row.launch_us if self.with_launches else 0.0)

    def _kernel(self, row: Measurement) -> Any:
        if isinstance(row.kernel, PublicKernel):
            if self.sources is None:
                raise SourceError(f"{row.kernel.repository}: needs --sources")
            kernel = self.sources.kernel(row.kernel)
        else:
            assert row.kernel is not None  # only ratios have none
            kernel = getattr(kernels, row.kernel.function)
        return kernel[row.cores] if row.cores > 1 else kernel


def _argument(value: Any) -> Any:
    """An argument as the table has it: a ``{"spec": shape, "dtype": name}``, or itself."""
    if isinstance(value, dict):
        return spec(tuple(value["spec"]), getattr(nl, value["dtype"]))
    return value


@cache
def _by_name() -> dict[str, Measurement]:
    return {row.name: row for row in measurements()}


def _row(source: str, row: str) -> Measurement:
    return _by_name()[f"{source}|{row}"]


def recorded(of: str) -> list[Found]:
    """The rows with the figures that were recorded under a name, in the table's order; the others are left out."""
    figures = _figures().get(of, {})
    return [Found(row, figures[row.name]) for row in measurements() if row.name in figures]


def record(of: str, actual: Iterable[Found]) -> None:
    """Keep figures under a name, beside those of other rows that were recorded earlier."""
    figures = _figures()
    known = figures.get(of, {}) | {result.measurement.name: round(result.modelled, 4) for result in actual}
    figures[of] = {row.name: known[row.name] for row in measurements() if row.name in known}
    FIGURES.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _figures() -> dict[str, dict[str, float]]:
    return json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
