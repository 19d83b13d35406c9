"""What the commands that model a launch have in common: its arguments, the launch itself, and how errors are shown."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nkilib.simulator import Profile

_TARGETS = ("trn2", "trn3")  # the kernels need trn2 or newer
_DTYPES = ("bfloat16", "float32")
_DIRECTIONS = ("forward", "backward")
_NOT_SIMULATED = (
    "profiles are made in the simulator, and nkilib runs on the real NKI here: set NKILIB_BACKEND=simulator"
)


def add_launch_arguments(command: argparse.ArgumentParser) -> None:
    """The launch but for its tiling."""
    command.add_argument("--positions", type=positive, required=True, metavar="N", help="rows of logits: tokens")
    command.add_argument("--vocab", type=positive, required=True, metavar="V", help="columns of logits")
    command.add_argument("--dtype", choices=_DTYPES, default="bfloat16", help="of logits and tiles (default bfloat16)")
    command.add_argument("--direction", choices=_DIRECTIONS, default="forward", help="default forward")
    command.add_argument("--target", choices=_TARGETS, default="trn2", help="generation (default trn2)")


def profile_launch(options: argparse.Namespace, cores: int, positions_per_batch: int, chunk_size: int) -> Profile:
    """The profile of a kernel with a tiling, from shapes alone.

    Raises:
        AssertionError: if the kernel does not take the sizes.
        NkiValidationError: if the hardware does not.
    """
    from nkilib.experimental import loss
    from nkilib.nki import nl
    from nkilib.simulator import profile, spec, using

    count, dtype = options.positions, getattr(nl, options.dtype)
    arguments: list[Any] = [spec((count, options.vocab), dtype), spec((count,), nl.int32)]
    if options.direction == "backward":
        arguments.append(spec((count,), nl.float32))
    kernel = getattr(loss, f"cross_entropy_{options.direction}")[cores]
    with using(target=options.target):
        return profile(kernel, *arguments, positions_per_batch=positions_per_batch, chunk_size=chunk_size, dtype=dtype)


def reason_against_profiles() -> str | None:
    """Why no profile can be made here, if none can."""
    from nkilib.nki import SIMULATED

    return None if SIMULATED else _NOT_SIMULATED


def fail(command: str, message: str) -> int:
    """Print an error of a command; returns the exit code."""
    print(f"python -m nkilib {command}: error: {message}", file=sys.stderr)
    return 1


def positive(text: str) -> int:
    """A positive integer of the command line."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)
