# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib tune``: model a launch with many tilings and list them, the fastest first.

Modelled, not measured. ``choose_tiling`` and ``choose_linear_tiling`` of ``nkilib.experimental.loss`` choose by
arithmetic, without a search; this command shows the alternatives to their choice.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from .arguments import MOST_COLUMNS, add_launch_arguments, fail, reason_against_profiles
from .modelled.family import Family
from .modelled.registry import add_family_arguments, kernels_of
from .named_kernel import ValueRefusedError, arguments_of

_LISTED = 10
_CORES = 2
_HEAD_WIDTH = 13  # of a column with sizes if its name takes several lines
_LEAST_WIDTH = 10


class TriedTiling(NamedTuple):
    """A tiling that the kernel accepts, with its modelled time.

    Attributes:
        tiling: the sizes, a named tuple.
        time_us: the modelled time of the launch in microseconds.
        times_bound: the ratio of this time to its lower bound.
    """

    tiling: Any
    time_us: float
    times_bound: float


def _columns(values: Iterable[Any], widths: Iterable[int]) -> str:
    shown = ("default" if value is None else str(value) for value in values)
    return " ".join(f"{value:>{width}}" for value, width in zip(shown, widths, strict=True))


def _folded(name: str) -> list[str]:
    """Return the name of a size in lines that fit the width of a column; a line breaks only after an underscore."""
    lines = [""]
    for word in re.findall(r"[^_]+_?", name):
        if lines[-1] and len(lines[-1] + word) > _HEAD_WIDTH:
            lines.append("")
        lines[-1] += word
    return lines


def _heads(names: Sequence[str], chooser: str) -> list[list[str]]:
    """Return the lines of the head of each column of sizes.

    A head is one line, the full name, if the table then fits :data:`MOST_COLUMNS`, else the folded name.
    """
    longest = f"{_columns(names, map(len, names))} {'us':>12} {'times bound':>11}  {chooser}"
    return [[name] if len(longest) <= MOST_COLUMNS else _folded(name) for name in names]


def _profiles(
    kernels: Family, arguments: dict[str, Any], tilings: Sequence[Any], refused: list[str]
) -> Iterator[TriedTiling]:
    """Yield the tilings that the kernel accepts, with their modelled times.

    Args:
        kernels: the family of the kernel.
        arguments: the options of the kernel.
        tilings: the tilings to try.
        refused: receives the kernel's error message for every tiling that it does not accept.
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
    """Print the fastest tilings; return exit code 0, or 1 if the kernel accepts no tiling."""
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
    heads = _heads(type(chosen)._fields, kernels.CHOOSER)
    widths = [max(_LEAST_WIDTH, *map(len, head)) for head in heads]
    *above, last = zip(*([""] * (max(map(len, heads)) - len(head)) + head for head in heads), strict=True)
    for line in above:
        print(_columns(line, widths).rstrip())
    print(f"{_columns(last, widths)} {'us':>12} {'times bound':>11}")
    for place, entry in enumerate(tried):
        if place < _LISTED or entry.tiling == chosen:
            mark = f"  {kernels.CHOOSER}" if entry.tiling == chosen else ""
            numbers = f"{entry.time_us:>12,.1f} {entry.times_bound:>11.3f}"
            print(f"{_columns(entry.tiling, widths)} {numbers}{mark}")
    print(f"{len(tried)} tilings modelled, {len(refused)} not accepted by the kernel")
    return 0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``python -m nkilib tune`` to the parser of this command."""
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
