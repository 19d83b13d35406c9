# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Settings that hold for every test: random inputs repeat in CI, and reads of memory that was never written and
groups of products that interleave in a bank of PSUM are errors.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import nkilib.simulator
from tests.collected_imports import note_imports
from tests.optional_packages import ABSENT, missing_for, missing_in, summary
from tests.tiers import Tiers

if TYPE_CHECKING:  # without pytest-xdist this file is imported all the same
    from tests.scheduling import FileScheduling

# The variable CI is what hypothesis itself goes by.
settings.register_profile("nkilib", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("nkilib")

# What somebody has set for a kernel of their own must not reach the tests.
for _variable in (
    "NEURON_CC_FLAGS",
    "NEURON_LOGICAL_NC_CONFIG",
    "NKILIB_CAPACITY",
    "NKILIB_IDENTICAL_WRITES",
    "NKILIB_LOST_RESULTS",
    "NKILIB_RACES",
    "NKILIB_STRICT",
    "NKILIB_UNINITIALIZED",
):
    os.environ.pop(_variable, None)
# By the variable: kernels also run in threads of PyTorch's and in processes of their own, which no ``using`` reaches.
os.environ["NKILIB_PSUM_GROUPS"] = "error"
os.environ["NKILIB_OVERLAPPING_COPIES"] = "error"
# A mistake in recording or planning a launch fails the test that makes it, instead of being counted.
os.environ["NKILIB_REPLAY"] = "strict"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", help="write how many tests passed and which failed to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tiers(config), "tiers")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without a look for garbage, and let no later look go through what they hold.

    Modules and tests are a million objects, which stay. To go through them takes half a second each time. Later looks
    are rarer than by default, after 20,000 new objects instead of 700: a modelled launch makes and keeps many, and
    looks took 12% of the time of the tests of programs' sizes and times.
    """
    gc.disable()
    note_imports(None)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 10)
        gc.enable()


_LEFT_OUT: dict[Path, str] = {}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what needs PyTorch or JAX where that is not installed."""
    if not ABSENT or (collection_path.is_dir() and not (collection_path / "conftest.py").is_file()):
        return None
    file = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    missing = missing_in(file) if file.suffix == ".py" else ""
    if missing:
        _LEFT_OUT[collection_path] = missing
    return True if missing else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Note which file imports what takes long: every process of a run waits for it."""
    try:
        return (yield)
    finally:
        note_imports(collector.path)


def pytest_report_collectionfinish() -> str:
    return summary(_LEFT_OUT)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that imports one of them in its body."""
    try:
        return (yield)
    except ImportError as error:
        missing = missing_for(error)
        if missing:
            pytest.skip(f"needs {missing}")
        raise


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import FileScheduling

    return FileScheduling(config, log)


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replay no launch of a test that may replace what kernels read: they state that it does not change."""
    monkeypatch.setenv("NKILIB_REPLAY", "0")
    return monkeypatch


@pytest.fixture(autouse=True)
def _uninitialized_reads_are_errors() -> Iterator[None]:
    """Elsewhere an element never written reads as NaN, which a kernel can use without anybody noticing."""
    with nkilib.simulator.using(uninitialized="error"):
        yield
