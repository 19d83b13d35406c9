"""``python -m nkilib profile``: what a cross-entropy kernel would take on a device. Modelled, not measured."""

from __future__ import annotations

import argparse
from pathlib import Path

from .launch_arguments import add_launch_arguments, fail, launch_of, positive, reason_against_profiles


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_launch_arguments(command)
    command.add_argument("--cores", type=int, choices=(1, 2), default=2, help="of the launch (default 2)")
    chosen = "default: that of choose_tiling, for two cores"
    command.add_argument("--positions-per-batch", type=positive, metavar="P", help=chosen)
    command.add_argument("--chunk-size", type=positive, metavar="C", help=chosen)
    command.add_argument("--trace", type=_file, metavar="FILE.json", help="write a trace for https://ui.perfetto.dev")
    command.add_argument("--plot", type=_file, metavar="FILE.png", help="draw the timeline (needs nkilib[plot])")
    command.set_defaults(run=main)


def main(options: argparse.Namespace) -> int:
    """Print the profile and write what was asked for; returns 0, or 1 if that cannot be done."""
    reason = reason_against_profiles()
    if reason:
        return fail("profile", reason)
    if options.plot and not _has_matplotlib():
        return fail("profile", "--plot needs matplotlib: pip install 'nkilib[plot]'")
    from nkilib.experimental.loss import Tiling, choose_tiling
    from nkilib.experimental.loss.profiling import profile_launch
    from nkilib.simulator import NkiValidationError

    launch = launch_of(options)
    try:
        chosen = choose_tiling(*launch, options.target)
        tiling = Tiling(
            options.positions_per_batch or chosen.positions_per_batch, options.chunk_size or chosen.chunk_size
        )
        found = profile_launch(*launch, tiling, target=options.target, cores=options.cores)
    except (AssertionError, ValueError, NkiValidationError) as error:  # of the kernel, the chooser, and the simulator
        return fail("profile", str(error))
    print(f"positions_per_batch={tiling.positions_per_batch}, chunk_size={tiling.chunk_size}\n{found}")
    try:
        if options.trace:
            found.to_perfetto(options.trace)
        if options.plot:
            found.plot(options.plot)
    except (OSError, ValueError) as error:
        return fail("profile", f"cannot write: {error}")
    return 0


def _has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def _file(text: str) -> str:
    """Refused before the profile is made, which may take a while."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must name a file, got the directory {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {str(path.parent)!r}")
    return text
