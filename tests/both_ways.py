# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A plugin of pytest: every launch of the tests runs with ``skip_arithmetic`` too, and the two verdicts are compared.

Under ``python -m pytest -p tests.both_ways`` the file that ``NKILIB_BOTH_WAYS`` names gets a line of JSON for each
launch of which they differ, and one with what was counted. Tests that count how often their kernels run may fail; it is
the file that matters.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from nkilib.simulator.launch import kernel as launches
from nkilib.simulator.launch.arguments import leaves_of
from nkilib.simulator.launch.kernel import Kernel
from nkilib.simulator.launch.settings import LaunchEnvironment, Skipping
from nkilib.simulator.terms.spec import Spec
from tests.launches_unseen import current_test, unseen, write_line

VARIABLE = "NKILIB_BOTH_WAYS"
# Of two cores that fail either may be named; and an integer that only the device knows shows no value where it was
# left out.
_BY_CHANCE = re.compile(r"core,? \d|got '?\d'?$|NkiScalar\(\w+|0x[0-9a-f]+")

_counts: Counter[str] = Counter()
_compute = launches._run_unreplayed


class Verdict(NamedTuple):
    """How a launch ended: the class and message of its error, or the shapes of its results."""

    error: str
    message: str
    shapes: list[str]


def _shapes(result: Any) -> list[str]:
    return [str(tuple(leaf.shape)) if hasattr(leaf, "shape") else type(leaf).__name__ for leaf in leaves_of(result)]


def _verdict(error: Exception | None, result: Any) -> Verdict:
    if error is None:
        return Verdict("", "", _shapes(result))
    return Verdict(type(error).__name__, _BY_CHANCE.sub("", str(error)), [])


def _bytes_of(arguments: Any) -> list[bytes]:
    return [leaf.tobytes() for leaf in leaves_of(arguments) if isinstance(leaf, np.ndarray)]


def _skipped(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Verdict:
    """The verdict of a launch that leaves arithmetic out; its arguments must stay as they are."""
    made = Kernel(kernel.func, kernel.cores, kernel.schedule, replace(kernel.settings, skipping=Skipping()))
    before = _bytes_of((args, kwargs))
    error, result = None, None
    with unseen():
        try:
            result = made(*args, **kwargs)
        except Exception as raised:
            error = raised
    if _bytes_of((args, kwargs)) != before:
        error = AssertionError("arguments were written")
    return _verdict(error, result)


def _run_both_ways(
    kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], environment: LaunchEnvironment
) -> Any:
    if any(isinstance(leaf, Spec) for leaf in leaves_of((args, kwargs))):
        return _compute(kernel, args, kwargs, environment)
    skipped = _skipped(kernel, args, kwargs)
    error, result = None, None
    try:
        result = _compute(kernel, args, kwargs, environment)
    except Exception as raised:
        error = raised
        raise
    finally:
        computed = _verdict(error, result)
        _counts["launches"] += 1
        _counts["failing"] += error is not None
        if skipped != computed:
            write_line(VARIABLE, {"test": current_test(), "skipped": skipped, "computed": computed})
    return result


def pytest_configure() -> None:
    os.environ["NKILIB_REPLAY"] = "0"  # a launch that is replayed does not run as today
    launches._run_unreplayed = _run_both_ways


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    write_line(VARIABLE, {"counts": dict(_counts)})
