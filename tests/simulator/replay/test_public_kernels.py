# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replays of public kernels are bitwise identical: the kernels against which the time model is checked.

Kernels of others are launched where ``NKILIB_MEASURED_SOURCES`` names a directory with a clone of each repository, as
``python -m benchmarks.measurements --sources`` takes it; kernels of ours that do the work of one always.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from benchmarks.measurements import kernels
from benchmarks.measurements.sources import SourceError, Sources
from benchmarks.measurements.table import Measurement, PublicKernel, measurements
from nkilib.nki import nl
from nkilib.simulator import using
from tests.simulator.replay.both_ways import both_ways

VARIABLE: Final = "NKILIB_MEASURED_SOURCES"
# Larger launches take minutes, and have the instructions of smaller ones.
MOST_ELEMENTS: Final = 1 << 23
# 76,800 instructions, all alike.
LONG: Final = "1 row a step"
# The logs of nki-library print in each launch, and what prints is not replayed.
QUIET: Final = {"NKILIB_LOG_LEVEL": "ERROR"}


def _smallest() -> Iterator[Measurement]:
    """One row of each kernel with its keywords: that with the smallest arguments."""
    results: dict[str, Measurement] = {}
    for row in sorted(measurements(), key=_elements):
        if row.kernel is not None and _elements(row) <= MOST_ELEMENTS and LONG not in row.name:
            results.setdefault(f"{row.kernel} {json.dumps(row.keywords, sort_keys=True)}", row)
    return iter(results.values())


def _elements(row: Measurement) -> int:
    return sum(
        prod(results["spec"])
        for call in row.calls
        for results in call
        if isinstance(results, dict) and "spec" in results
    )


def _argument(value: Any, rng: np.random.Generator) -> Any:
    if not isinstance(value, dict) or "spec" not in value:
        return value
    dtype = getattr(nl, value["dtype"]).numpy
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 2, value["spec"]).astype(dtype)
    return rng.standard_normal(tuple(value["spec"]), np.float32).astype(dtype)


def _check(row: Measurement, kernel: Any) -> None:
    rng = np.random.default_rng(0)
    with using(target=row.hardware, psum_groups="ignore", uninitialized="ignore"):
        for call in row.calls:
            report = both_ways(kernel[row.cores], *[_argument(item, rng) for item in call], **row.keywords)
            assert "the recorded data" in report.replayed, report.refusal


_OURS = [row for row in _smallest() if not isinstance(row.kernel, PublicKernel)]
_THEIRS = [row for row in _smallest() if isinstance(row.kernel, PublicKernel)]


@pytest.mark.sweep
@pytest.mark.parametrize("row", _OURS, ids=lambda row: row.name)
def test_kernels_of_ours(row: Measurement) -> None:
    assert row.kernel is not None and not isinstance(row.kernel, PublicKernel)
    _check(row, getattr(kernels, row.kernel.function))


@pytest.mark.sweep
@pytest.mark.parametrize("row", _THEIRS, ids=lambda row: row.name)
def test_kernels_of_others(row: Measurement, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = os.environ.get(VARIABLE)
    if directory is None:
        pytest.skip(f"{VARIABLE} names no directory with clones")
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    assert isinstance(row.kernel, PublicKernel)
    with Sources(Path(directory)) as sources:
        try:
            kernel = sources.kernel(row.kernel)
        except SourceError as error:
            pytest.skip(str(error))
        _check(row, kernel)
