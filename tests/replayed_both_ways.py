# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A plugin of pytest: every launch of the tests is recorded, planned and replayed too, and the bits are compared.

Under ``python -m pytest -p tests.replayed_both_ways`` the file that ``NKILIB_REPLAYED_BOTH_WAYS`` names gets a line of
JSON for each launch whose replay leaves other bits, and one a process with what was counted. Each key is compared
once. Tests that look at how often their kernels run may fail; it is the file that matters.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from nkilib.simulator.launch.kernel import Kernel, UnreplayedRun, run_launches_by
from nkilib.simulator.launch.settings import LaunchEnvironment
from nkilib.simulator.machine.observer import active_watchers
from nkilib.simulator.replay.key import Refusal, candidate_of
from tests.launches_unseen import current_test, unseen, write_line
from tests.simulator.replay.both_ways import Report, compare

VARIABLE = "NKILIB_REPLAYED_BOTH_WAYS"
# On the recorded data, and on others that most kernels take.
_DATA = ("permuted data",)

_counts: Counter[str] = Counter()
_reasons: Counter[str] = Counter()
_compared: set[int] = set()
_inside = threading.local()


def _report(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Report | None:
    """How the launch and its replay compare, on copies of the arguments; None if the launch fails."""
    _inside.launch = True
    try:
        with unseen():
            return compare(kernel, args, kwargs, data=_DATA)
    except Exception:
        return None  # the launch itself says so, right after
    finally:
        _inside.launch = False


def _run_both_ways(
    kernel: Kernel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    environment: LaunchEnvironment,
    run_unreplayed: UnreplayedRun,
    /,
) -> Any:
    if getattr(_inside, "launch", False):
        return run_unreplayed(kernel, args, kwargs, environment)
    _counts["launches"] += 1
    # Whatever a kernel states: it is replayed right after it was recorded.
    candidate = candidate_of(kernel, replace(environment.options, replay="always"), args, kwargs)
    if isinstance(candidate, Refusal):
        _reasons[candidate.reason] += 1
    elif not active_watchers() and hash(candidate.key) not in _compared:
        _compared.add(hash(candidate.key))
        _note(_report(kernel, args, kwargs))
    return run_unreplayed(kernel, args, kwargs, environment)


def _note(report: Report | None) -> None:
    if report is None:
        _counts["failing"] += 1
    elif report.refusal:
        _reasons[report.refusal] += 1
    else:
        _counts["planned"] += 1
    if report is not None and report.differences:
        write_line(VARIABLE, {"test": current_test(), "differences": report.differences})


def pytest_configure() -> None:
    run_launches_by(_run_both_ways)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    if _counts:
        write_line(VARIABLE, {"counts": dict(_counts), "reasons": dict(_reasons)})
