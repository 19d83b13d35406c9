"""What the commands that model a launch have in common: its arguments, and how errors are shown."""

from __future__ import annotations

import argparse
import sys

_TARGETS = ("trn2", "trn3")  # the kernels need trn2 or newer
_DTYPES = ("bfloat16", "float32")
_DIRECTIONS = ("forward", "backward")


def add_launch_arguments(command: argparse.ArgumentParser) -> None:
    """The launch but for its tiling."""
    command.add_argument("--positions", type=positive, required=True, metavar="N", help="rows of logits: tokens")
    command.add_argument("--vocab", type=positive, required=True, metavar="V", help="columns of logits")
    command.add_argument("--dtype", choices=_DTYPES, default="bfloat16", help="of logits and tiles (default bfloat16)")
    command.add_argument("--direction", choices=_DIRECTIONS, default="forward", help="default forward")
    command.add_argument("--target", choices=_TARGETS, default="trn2", help="generation (default trn2)")


def launch_of(options: argparse.Namespace) -> tuple[int, int, str, str]:
    """The launch as ``choose_tiling`` and ``profile_launch`` take it."""
    return options.positions, options.vocab, options.dtype, options.direction


def reason_against_profiles() -> str | None:
    """Why no profile can be made here, if none can: there is no simulator, or the environment asks for nonsense."""
    try:
        from nkilib.nki import NOT_SIMULATED, SIMULATED
        from nkilib.simulator.target.options import current_options

        current_options()
    except (ImportError, ValueError) as error:
        return str(error)
    return None if SIMULATED else NOT_SIMULATED


def fail(command: str, message: str) -> int:
    """Print an error of a command; returns the exit code."""
    print(f"python -m nkilib {command}: error: {message}", file=sys.stderr)
    return 1


def positive(text: str) -> int:
    """A positive integer of the command line."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)
