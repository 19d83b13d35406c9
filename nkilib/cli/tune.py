# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib tune``: model a launch with many tilings and list them, the fastest first.

Modelled, not measured. ``choose_tiling`` and ``choose_linear_tiling`` of ``nkilib.experimental.loss`` choose by
arithmetic, without a search; this command shows the alternatives to their choice.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from .arguments import add_launch_arguments, fail, reason_against_profiles
from .modelled.family import Family
from .modelled.registry import add_family_arguments, kernels_of
from .named_kernel import ValueRefusedError, arguments_of

_LISTED = 10
_CORES = 2
_WIDTHS = (19, 10, 23, 23)  # of the columns with sizes


class TriedTiling(NamedTuple):
    """A tiling, its modelled time, and the ratio of this time to the lower bound of the launch."""

    tiling: Any
    time_us: float
    times_bound: float


def _columns(values: Iterable[Any], widths: Iterable[int]) -> str:
    shown = ("default" if value is None else str(value) for value in values)
    return " ".join(f"{value:>{width}}" for value, width in zip(shown, widths, strict=True))


def _profiles(
    kernels: Family, arguments: dict[str, Any], tilings: Sequence[Any], refused: list[str]
) -> Iterator[TriedTiling]:
    """Yield the tilings that the kernel accepts, with modelled times; add the kernel's reasons against the others to
    ``refused``.
    """
    from nkilib.simulator import NkiValidationError
    from nkilib.simulator.launch.progress import doing

    for number, tiling in enumerate(tilings, 1):
        which = f"{number} of {len(tilings)} ({' x '.join(map(str, tiling))})"
        try:
            with doing(which):
                result = kernels.profile(tiling, _CORES, trips="none", **arguments)
        except (AssertionError, NkiValidationError) as error:
            refused.append(str(error))
            continue
        assert result.fraction_of_bound is not None
        yield TriedTiling(tiling, result.time_us, result.fraction_of_bound)


def main(options: argparse.Namespace) -> int:
    """Print the tilings; return 0, or 1 if the kernel accepts none of them."""
    refuse: Callable[[str], NoReturn] = options.refuse
    kernels = kernels_of(options)
    if options.arg and not kernels.takes_options:
        refuse("--arg gives the options of the extended kernels: add --extended")
    reason = reason_against_profiles()
    if reason:
        return fail("tune", reason)
    from nkilib.simulator.launch.progress import displaying, doing

    try:
        arguments = arguments_of(options.arg)
    except ValueRefusedError as error:
        refuse(str(error))
    try:
        chosen = kernels.chosen(**arguments)
    except (TypeError, ValueError) as error:
        return fail("tune", str(error))
    tilings = set(kernels.tilings())
    if not tilings:
        return fail("tune", f"{kernels.kernel} has nothing to choose: profile models it")
    refused: list[str] = []
    try:
        with displaying(), doing("tune"):
            profiles = _profiles(kernels, arguments, sorted({*tilings, chosen}, key=str), refused)
            tried = sorted(profiles, key=lambda entry: entry.time_us)
    except (TypeError, ValueError) as error:  # of --arg
        return fail("tune", str(error))
    if not tilings & {entry.tiling for entry in tried}:
        return fail("tune", refused[0])
    print(f"{kernels.kernel} on {_CORES} cores of {options.target}: modelled, not measured")
    names = type(chosen)._fields
    widths = [max(len(name), width) for name, width in zip(names, _WIDTHS, strict=False)]
    print(f"{_columns(names, widths)} {'us':>12} {'times bound':>11}")
    for place, entry in enumerate(tried):
        if place < _LISTED or entry.tiling == chosen:
            mark = f"  {kernels.CHOOSER}" if entry.tiling == chosen else ""
            numbers = f"{entry.time_us:>12,.1f} {entry.times_bound:>11.3f}"
            print(f"{_columns(entry.tiling, widths)} {numbers}{mark}")
    print(f"{len(tried)} tilings modelled, {len(refused)} not accepted by the kernel")
    return 0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_launch_arguments(command)
    add_family_arguments(command, several=True)
    command.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the extended or linear kernel: a tensor such as f32[129280], or JSON; repeatable",
    )
    command.set_defaults(run=main, refuse=command.error)
