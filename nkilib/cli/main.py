# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The command line of nkilib: one subcommand a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from nkilib.base.ending import ending_quietly

from . import doctor, profile, tune, verify

_EXIT_CODES = "Exit code: 0; 1 if that cannot be done, for the reason printed; 2 if the arguments are wrong."
_PROGRAM = "python -m nkilib"


class _Version(argparse.Action):
    """Ends with the version. It is asked for here alone: in a mixture with another nkilib, in which the doctor has to
    run, there may be none to import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from nkilib import __version__

        print(f"nkilib {__version__}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The arguments of every command."""
    top = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Losses of large models on AWS Trainium: kernels, and the simulator that runs them anywhere.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = top.add_subparsers(title="commands", metavar="command", required=True)
    _add(commands, doctor, "doctor", "which NKI was chosen and why, versions, devices")
    _add(commands, profile, "profile", "what a kernel is modelled to take on a device")
    _add(commands, tune, "tune", "the tilings that are modelled to be fastest")
    _add(commands, verify, "verify", "whether a Neuron device does what the library expects", verify.EXIT_CODES)
    return top


def _add(commands: Any, module: ModuleType, name: str, summary: str, exit_codes: str = _EXIT_CODES) -> None:
    command = commands.add_parser(
        name,
        help=summary,
        description=(module.__doc__ or "").replace("``", ""),
        epilog=f"{exit_codes} After Ctrl-C it is 130, where nobody reads the output 141.",
    )
    module.add_arguments(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the command line names; returns its exit code. Wrong arguments end the process with 2."""
    options = parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def run(arguments: Sequence[str] | None = None) -> int:
    """:func:`main` as a process: Ctrl-C ends it in one line with 130, a reader of its output that is gone with 141."""
    with ending_quietly(_PROGRAM):
        return main(arguments)
