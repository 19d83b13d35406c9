# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The run of a prepared launch, from its first instruction to its results."""

from __future__ import annotations

from typing import Any

from .prepared import PreparedLaunch
from .progress import launching
from .running import run_cores


def run_to_end(launched: PreparedLaunch, name: str) -> Any:
    """Run the cores of a launch, make the checks that need the whole launch, and return the result.

    Args:
        launched: the prepared launch.
        name: the name of the kernel.
    """
    has_ended = False
    try:
        with launching(name, [run.core for run in launched.running]):
            run_cores(launched.running)
        launched.check_loop_counts()
        has_ended = True
    finally:
        launched.conclude(has_ended)
    return launched.results()
