# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The command line of nkilib: :func:`parser` makes the parser of all commands, and :func:`main` runs one command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from nkilib.base.quiet_exit import ending_quietly

from . import doctor, profile, tune, verify
from .arguments import Parser

_EXIT_CODES = "Exit code: 0; 1 if the command cannot do what was asked, and prints why; 2 if the arguments are wrong."
_PROGRAM = "python -m nkilib"


def _add(commands: Any, module: ModuleType, name: str, summary: str, exit_codes: str = _EXIT_CODES) -> None:
    command = commands.add_parser(
        name,
        help=summary,
        description=(module.__doc__ or "").replace("``", ""),
        epilog=f"{exit_codes} It is 130 after Ctrl-C, and 141 if nobody reads the output.",
    )
    module.add_arguments(command)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = Parser(
        prog=_PROGRAM,
        description="Losses of large models on AWS Trainium: kernels, and the simulator that runs them anywhere.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = top.add_subparsers(title="commands", metavar="command", required=True)
    _add(commands, doctor, "doctor", "show which NKI was chosen and why, versions, devices")
    _add(commands, profile, "profile", "model the time that a kernel takes on a device")
    _add(commands, tune, "tune", "list the tilings with the shortest modelled times")
    _add(commands, verify, "verify", "check that a Neuron device does what the library expects", verify.EXIT_CODES)
    return top


class _Version(argparse.Action):
    # Imports the version only when it is asked for: in a mixture with another nkilib the import may fail, and the
    # doctor still has to run.

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from nkilib import __version__

        print(f"nkilib {__version__}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the command line names, and return its exit code.

    Args:
        arguments: the words after the program's name; None: those of ``sys.argv``.

    Raises:
        SystemExit: with code 2 if an argument is wrong.
    """
    options = parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def run(arguments: Sequence[str] | None = None) -> int:
    """Run :func:`main` for the console: Ctrl-C ends the process with code 130, a closed output with code 141."""
    with ending_quietly(_PROGRAM):
        return main(arguments)
