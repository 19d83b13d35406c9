"""``python -m nkilib profile``: what a cross-entropy kernel would take on a device. Modelled, not measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nkilib.simulator import Profile

_TARGETS = ("trn2", "trn3")  # the kernels need trn2 or newer
_DTYPES = ("bfloat16", "float32")
_DIRECTIONS = ("forward", "backward")
# All partitions, and of the chunks of equal length the longest up to this one: near the best for long vocabularies.
_POSITIONS_PER_BATCH = 128
_CHUNK_SIZE = 8192


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    command.add_argument("--positions", type=_positive, required=True, metavar="N", help="rows of logits: tokens")
    command.add_argument("--vocab", type=_positive, required=True, metavar="V", help="columns of logits")
    command.add_argument("--dtype", choices=_DTYPES, default="bfloat16", help="of logits and tiles (default bfloat16)")
    command.add_argument("--direction", choices=_DIRECTIONS, default="forward", help="default forward")
    command.add_argument("--target", choices=_TARGETS, default="trn2", help="generation (default trn2)")
    command.add_argument("--cores", type=int, choices=(1, 2), default=2, help="of the launch (default 2)")
    command.add_argument("--positions-per-batch", type=_positive, metavar="P", help="default 128, or N if it is less")
    command.add_argument(
        "--chunk-size",
        type=_positive,
        metavar="C",
        help=f"columns at a time (default: V in the fewest equal chunks of at most {_CHUNK_SIZE})",
    )
    command.add_argument("--trace", type=_file, metavar="FILE.json", help="write a trace for https://ui.perfetto.dev")
    command.add_argument("--plot", type=_file, metavar="FILE.png", help="draw the timeline (needs nkilib[plot])")
    command.set_defaults(run=main)


def main(options: argparse.Namespace) -> int:
    """Print the profile and write what was asked for; returns 0, or 1 if that cannot be done."""
    from nkilib.nki import SIMULATED

    if not SIMULATED:
        return _fail("the profile is made by the simulator, but NKI is the real one here; set NKILIB_BACKEND=simulator")
    if options.plot and not _has_matplotlib():
        return _fail("--plot needs matplotlib: pip install 'nkilib[plot]'")
    from nkilib.simulator import NkiValidationError

    try:
        found = profile_of(options)
    except (AssertionError, NkiValidationError) as error:  # of the kernel, and of the simulator
        return _fail(str(error))
    print(found)
    try:
        if options.trace:
            found.to_perfetto(options.trace)
        if options.plot:
            found.plot(options.plot)
    except (OSError, ValueError) as error:
        return _fail(f"cannot write: {error}")
    return 0


def usual_tiling(num_positions: int, vocab_size: int) -> tuple[int, int]:
    """Positions per batch and chunk size that are near the best for long vocabularies and many positions."""
    chunks = -(-vocab_size // _CHUNK_SIZE)
    return min(_POSITIONS_PER_BATCH, num_positions), -(-vocab_size // chunks)


def profile_of(options: argparse.Namespace) -> Profile:
    """The profile that the options describe, made from shapes alone.

    Raises:
        AssertionError: if the kernel does not take the sizes.
        NkiValidationError: if the hardware does not.
    """
    from nkilib.experimental import loss
    from nkilib.nki import nl
    from nkilib.simulator import profile, spec, using

    count, vocabulary = options.positions, options.vocab
    dtype = getattr(nl, options.dtype)
    positions_per_batch, chunk_size = usual_tiling(count, vocabulary)
    arguments: list[Any] = [spec((count, vocabulary), dtype), spec((count,), nl.int32)]
    if options.direction == "backward":
        arguments.append(spec((count,), nl.float32))
    with using(target=options.target):
        return profile(
            getattr(loss, f"cross_entropy_{options.direction}")[options.cores],
            *arguments,
            positions_per_batch=options.positions_per_batch or positions_per_batch,
            chunk_size=options.chunk_size or chunk_size,
            dtype=dtype,
        )


def _has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def _fail(message: str) -> int:
    print(f"python -m nkilib profile: error: {message}", file=sys.stderr)
    return 1


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)


def _file(text: str) -> str:
    """Refused before the profile is made, which may take a while."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must name a file, got the directory {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {str(path.parent)!r}")
    return text
