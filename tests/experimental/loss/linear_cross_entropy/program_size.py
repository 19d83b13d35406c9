# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How long the program of a kernel is."""

from __future__ import annotations

from typing import Any

from benchmarks._program_size import program_instructions
from nkilib.simulator import profile


def instructions_of_core(kernel: Any, *args: Any, **kwargs: Any) -> int:
    """Instructions of the program of the core that has most, of a launch on shapes; loops have one copy of a body."""
    return program_instructions(lambda: profile(kernel, *args, **kwargs))
