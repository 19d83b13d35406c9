# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The arguments shared by the commands that model a launch, and the form of their errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

_TARGETS = ("trn2", "trn3")  # the kernels need trn2 or newer
DTYPES = ("bfloat16", "float32", "float16")
_DIRECTIONS = ("forward", "backward", "forward_backward", "mixture")


def add_launch_arguments(
    command: argparse.ArgumentParser, *, targets: Sequence[str] = _TARGETS, is_required: bool = True
) -> None:
    """Add the arguments of a launch of this library's kernels, except the tiling.

    If they are not required, missing ones are None.
    """
    command.add_argument("--positions", type=positive, required=is_required, metavar="N", help="positions (tokens)")
    command.add_argument("--vocab", type=positive, required=is_required, metavar="V", help="classes")
    command.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0] if is_required else None,
        help=f"type of logits and tiles, or of hidden states and weights (default {DTYPES[0]})",
    )
    command.add_argument(
        "--direction",
        choices=_DIRECTIONS,
        default=_DIRECTIONS[0] if is_required else None,
        help=f"default {_DIRECTIONS[0]}; forward_backward with --features, mixture with --family linear_distillation",
    )
    command.add_argument(
        "--target", choices=targets, default="trn2" if is_required else None, help="hardware generation (default trn2)"
    )


def reason_against_profiles() -> str | None:
    """Return the reason why no profile can be made here: no simulator, or invalid environment variables; else None."""
    try:
        from nkilib.nki import NOT_SIMULATED, SIMULATED
        from nkilib.simulator.hardware.options import current_options

        current_options()
    except (ImportError, ValueError) as error:
        return str(error)
    return None if SIMULATED else NOT_SIMULATED


def fail(command: str, message: str) -> int:
    """Print an error of a command, and return the exit code with which it ends."""
    print(f"python -m nkilib {command}: error: {message}", file=sys.stderr)
    return 1


def positive(text: str) -> int:
    """Parse a positive integer of the command line."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)
