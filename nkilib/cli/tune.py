"""``python -m nkilib tune``: model a launch with many tilings and list them, the fastest first.

Modelled, not measured. ``nkilib.experimental.loss.choose_tiling`` chooses by arithmetic, without a search; this shows
what its choice is among.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .kernel_values import ValueRefusedError, arguments_of
from .launch_arguments import add_launch_arguments, fail, launch_of, positive, reason_against_profiles

if TYPE_CHECKING:
    from nkilib.experimental.loss import Tiling

_MOST_EQUAL_CHUNKS = 16
_LISTED = 10


class Found(NamedTuple):
    """A tiling, and what it is modelled to take."""

    tiling: Tiling
    time_us: float
    times_bound: float


def add_arguments(command: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_launch_arguments(command)
    command.add_argument(
        "--positions-per-batch", type=positive, nargs="+", metavar="P", default=[128], help="to try (default 128)"
    )
    command.add_argument(
        "--chunk-size",
        type=positive,
        nargs="+",
        metavar="C",
        help=f"to try (default: V in 1 to {_MOST_EQUAL_CHUNKS} equal chunks)",
    )
    command.add_argument("--extended", action="store_true", help="the extended kernel")
    command.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the extended kernel: a tensor as f32[129280], or JSON; repeatable",
    )
    command.set_defaults(run=main, refuse=command.error)


def main(options: argparse.Namespace) -> int:
    """Print the tilings; returns 0, or 1 if the kernel takes none of them."""
    refuse: Callable[[str], NoReturn] = options.refuse
    if options.arg and not options.extended:
        refuse("--arg gives the options of the extended kernels: add --extended")
    reason = reason_against_profiles()
    if reason:
        return fail("tune", reason)
    from nkilib.core.tiling import div_ceil
    from nkilib.experimental.loss import Tiling, choose_tiling
    from nkilib.experimental.loss.tiling import CORES
    from nkilib.simulator.launch.progress import displaying, doing

    try:
        arguments = arguments_of(options.arg)
    except ValueRefusedError as error:
        refuse(str(error))
    try:
        chosen = choose_tiling(*launch_of(options), options.target, extended=options.extended)
    except ValueError as error:
        return fail("tune", str(error))
    sizes = options.chunk_size or {div_ceil(options.vocab, chunks) for chunks in range(1, _MOST_EQUAL_CHUNKS + 1)}
    tilings = {Tiling(positions, size) for positions in options.positions_per_batch for size in sizes}
    refused: list[str] = []
    try:
        with displaying(), doing("tune"):
            profiles = _profiles(options, arguments, sorted({*tilings, chosen}), refused)
            found = sorted(profiles, key=lambda one: one.time_us)
    except (TypeError, ValueError) as error:  # of --arg
        return fail("tune", str(error))
    if not tilings & {one.tiling for one in found}:
        return fail("tune", refused[0])
    kernel = f"{'extended_' if options.extended else ''}cross_entropy_{options.direction}"
    print(f"{kernel} on {CORES} cores of {options.target}: modelled, not measured")
    print(f"{'positions_per_batch':>19} {'chunk_size':>10} {'us':>12} {'times bound':>11}")
    for place, one in enumerate(found):
        if place < _LISTED or one.tiling == chosen:
            mark = "  choose_tiling" if one.tiling == chosen else ""
            numbers = f"{one.time_us:>12,.1f} {one.times_bound:>11.3f}"
            print(f"{one.tiling.positions_per_batch:>19} {one.tiling.chunk_size:>10} {numbers}{mark}")
    print(f"{len(found)} tilings modelled, {len(refused)} not accepted by the kernel")
    return 0


def _profiles(
    options: argparse.Namespace, arguments: dict[str, Any], tilings: Sequence[Tiling], refused: list[str]
) -> Iterator[Found]:
    """What the kernel takes; the reasons for the others are added to ``refused``."""
    from nkilib.experimental.loss.profiling import profile_launch
    from nkilib.simulator import NkiValidationError
    from nkilib.simulator.launch.progress import doing

    for number, tiling in enumerate(tilings, 1):
        which = f"{number} of {len(tilings)} ({tiling.positions_per_batch} x {tiling.chunk_size})"
        try:
            with doing(which):
                found = profile_launch(
                    *launch_of(options),
                    tiling,
                    target=options.target,
                    extended=options.extended,
                    trips="none",
                    **arguments,
                )
        except (AssertionError, NkiValidationError) as error:
            refused.append(str(error))
            continue
        assert found.fraction_of_bound is not None
        yield Found(tiling, found.time_us, found.fraction_of_bound)
