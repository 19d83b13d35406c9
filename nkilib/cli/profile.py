# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib profile``: model the time that a kernel takes on a device, and explain it. Modelled, not measured.

Any kernel: ``profile file.py:kernel --arg x=bf16[4096,8192] --arg n=8``, or ``package.module:kernel``; the file may
import nki or nkilib.nki, and the kernel may be a plain function. This library's cross-entropy: ``profile --positions
4096 --vocab 129280``; add ``--features 4096`` for its linear cross-entropy, or ``--family softmax`` (for example) for
its other kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nkilib.base.installation import extra_remedy

from .arguments import add_launch_arguments, fail, output_file, picture_file, reason_against_profiles
from .modelled.registry import FAMILIES, add_family_arguments, kernels_of
from .named_kernel import (
    SourceRefusedError,
    ValueRefusedError,
    arguments_of,
    bound_arguments,
    described,
    kernel_of,
)

if TYPE_CHECKING:
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.profile import AskedTrips

_TARGETS = ("trn1", "trn2", "trn3")
_DEFAULT_CORES = 2
# The names of the options that only this library's kernels have.
_OF_THE_LIBRARY = (
    *("positions", "vocab", "dtype", "direction", "family"),
    *(name for family in FAMILIES for name in family.OPTIONS),
)


class _RefusedError(Exception):
    """Raised if no profile can be made; the message says why."""


def _check_form(options: argparse.Namespace) -> None:
    """End the process with an error if required arguments are missing, or if the two forms of the command are mixed.

    One form names a kernel of a file; the other selects a kernel of this library.
    """
    library_options = [name for name in _OF_THE_LIBRARY if getattr(options, name)]
    if options.kernel:
        if library_options:
            option = f"--{library_options[0].replace('_', '-')}"
            options.refuse(f"{option} is for this library's kernels; {options.kernel} takes --arg NAME=VALUE")
        return
    missing = [f"--{name}" for name in ("positions", "vocab") if getattr(options, name) is None]
    if missing:
        either = "" if library_options else ", or a kernel as FILE.py:KERNEL"
        options.refuse(f"the following arguments are required: {', '.join(missing)}{either}")
    if options.target == "trn1":
        options.refuse("argument --target: invalid choice: 'trn1': the library's kernels need trn2 or newer")
    if options.arg and not kernels_of(options).takes_options:
        options.refuse("--arg gives the options of the extended kernels: add --extended, or name a kernel")


@dataclass(frozen=True)
class _Values:
    arguments: dict[str, Any]
    trips: AskedTrips | None


def _trips_of(texts: Sequence[str]) -> AskedTrips | None:
    """Return the argument ``trips`` of :func:`nkilib.simulator.profile` for the values of the option ``--trips``.

    A value is ``N``, ``none``, ``all`` or ``LOOP=N``; no values give None.

    Raises:
        ValueRefusedError: a value has another form, or one of several values names no loop.
    """
    if not texts:
        return None
    if list(texts) == ["none"]:
        return "none"
    if list(texts) == ["all"]:
        return "all"
    named: dict[str, int] = {}
    for text in texts:
        loop, _, count = text.rpartition("=")
        if not (count.isdecimal() and count.isascii()) or (len(texts) > 1 and not loop):
            raise ValueRefusedError(f"--trips must be a number, none, all, or LOOP=N for each loop; got {text!r}")
        named[loop] = int(count)
    return named.get("", named)


def _values(options: argparse.Namespace) -> _Values:
    refuse: Callable[[str], NoReturn] = options.refuse
    try:
        return _Values(arguments_of(options.arg), _trips_of(options.trips))
    except ValueRefusedError as error:
        refuse(str(error))


def _profile_of_file(options: argparse.Namespace, values: _Values, named: str) -> Profile:
    from nkilib.simulator import NkiValidationError, profile, using
    from nkilib.simulator.profiling.profile import TripsRefusedError

    try:
        kernel = kernel_of(named)
        args, kwargs = bound_arguments(kernel, values.arguments)
        if options.cores:
            kernel = kernel[options.cores]
        with using(target=options.target) if options.target else nullcontext():
            return profile(kernel, *args, trips=values.trips, **kwargs)
    except (SourceRefusedError, TripsRefusedError, NkiValidationError) as error:
        raise _RefusedError(str(error)) from error
    except Exception as error:  # any exception of a user's kernel
        raise _RefusedError(f"{named} raised {described(error)}") from error


def _profile_of_library(options: argparse.Namespace, values: _Values) -> Profile:
    from nkilib.simulator import NkiValidationError

    kernels, cores = kernels_of(options), options.cores or _DEFAULT_CORES
    try:
        asked = {name: getattr(options, name) for name in kernels.SIZES if getattr(options, name)}
        tiling = kernels.cut(asked, **values.arguments)
        trips = {} if values.trips is None else {"trips": values.trips}
        result = kernels.profile(tiling, cores, **trips, **values.arguments)
    except (AssertionError, TypeError, ValueError, NkiValidationError) as error:  # of kernel, chooser and simulator
        raise _RefusedError(str(error)) from error
    if tiling:
        print(", ".join(f"{name}={'default' if size is None else size}" for name, size in tiling._asdict().items()))
    return result


def _is_report(other: str) -> bool:
    return Path(other).suffix.lower() in (".html", ".htm")


def _check_comparison(options: argparse.Namespace) -> None:
    """End the process with an error if ``--against`` is given without ``--html``, or names nothing that can be
    compared.

    If the profiled kernel is in a file, ``--against`` may name another such kernel or a report; otherwise only a
    report.
    """
    other = options.against
    if other is None:
        return
    if not options.html:
        options.refuse("--against compares two profiles in a report: add --html FILE.html")
    if not _is_report(other) and not options.kernel:
        options.refuse(
            f"argument --against: beside a kernel of this library it must be a report that --html wrote, FILE.html, "
            f"got {other!r}"
        )


def _check_report(options: argparse.Namespace) -> None:
    # Reads the report of --against before the profile is made, which may take a while.
    if options.against and _is_report(options.against):
        from nkilib.simulator.profiling.page.writer import content_in

        try:
            content_in(options.against)
        except (OSError, ValueError) as error:
            raise _RefusedError(f"--against: {error}") from error


def _other_profile(options: argparse.Namespace, values: _Values) -> Profile | str | None:
    other: str | None = options.against
    return other if other is None or _is_report(other) else _profile_of_file(options, values, other)


def _has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def main(options: argparse.Namespace) -> int:
    """Print the profile and write the requested files; return exit code 0, or 1 if the profile or a file cannot be
    made.
    """
    _check_form(options)
    _check_comparison(options)
    reason = reason_against_profiles()
    if reason:
        return fail("profile", reason)
    if options.plot and not _has_matplotlib():
        return fail("profile", f"--plot needs matplotlib, and there is none; {extra_remedy('plot')}")
    values = _values(options)
    try:
        _check_report(options)
        named = options.kernel
        result = _profile_of_file(options, values, named) if named else _profile_of_library(options, values)
        against = _other_profile(options, values)
    except _RefusedError as error:
        return fail("profile", str(error))
    print(result)
    try:
        if options.trace:
            result.to_perfetto(options.trace)
        if options.plot:
            result.plot(options.plot)
        if options.html:
            result.to_html(options.html, against)
    except (OSError, ValueError) as error:
        return fail("profile", f"cannot write: {error}")
    return 0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``python -m nkilib profile`` to the parser of this command."""
    command.add_argument(
        "kernel", nargs="?", metavar="FILE.py:KERNEL", help="a kernel of your own; without it, this library's"
    )
    command.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the kernel: a tensor such as bf16[4096,8192], a name such as nl.float32, or JSON; "
        "repeatable",
    )
    command.add_argument(
        "--trips",
        action="append",
        default=[],
        metavar="[LOOP=]N",
        help="iterations of loops whose bounds only the device knows: N, none or all; LOOP=N for one loop (default: as "
        "the kernel states)",
    )
    command.add_argument(
        "--cores",
        type=int,
        choices=(1, 2),
        help="cores of the launch (default: as KERNEL states, else 1; this library's: 2)",
    )
    add_launch_arguments(command, targets=_TARGETS, is_required=False)
    add_family_arguments(command, several=False)
    command.add_argument(
        "--trace", type=output_file, metavar="FILE.json", help="write a trace for https://ui.perfetto.dev"
    )
    command.add_argument(
        "--html",
        type=output_file,
        metavar="FILE.html",
        help="write a page to look at: timeline, source, on-chip memory; one file, which needs no network",
    )
    command.add_argument(
        "--against",
        metavar="OTHER",
        help="with --html, compare: with a report that --html wrote (FILE.html), or with another kernel "
        "(FILE.py:KERNEL), which gets the same --arg, --cores and --target",
    )
    command.add_argument("--plot", type=picture_file, metavar="FILE.png", help="draw the timeline (needs nkilib[plot])")
    command.set_defaults(run=main, refuse=command.error)
