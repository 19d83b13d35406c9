# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The command line of an example that trains for some steps: ``--quick`` and ``--steps``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parse_steps(
    arguments: Sequence[str] | None, prog: str, description: str, steps: int, quick_steps: int, quick: str
) -> argparse.Namespace:
    """Parse the command line; the result has ``quick`` and ``steps``.

    Args:
        arguments: the command line; None for the command line of this process.
        prog, description: name and description of the example.
        steps: default number of steps.
        quick_steps: default number of steps with ``--quick``.
        quick: the meaning of ``--quick``, for ``--help``.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--quick", action="store_true", help=f"{quick}, for a first look")
    parser.add_argument("--steps", type=int, help=f"of training (default {steps}, or {quick_steps} with --quick)")
    options = parser.parse_args(arguments)
    if options.steps is None:
        options.steps = quick_steps if options.quick else steps
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")
    return options
