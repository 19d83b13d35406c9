"""The command line of nkilib: one subcommand a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import doctor, profile, tune


def parser() -> argparse.ArgumentParser:
    """The arguments of every command."""
    top = argparse.ArgumentParser(
        prog="python -m nkilib",
        description="Cross-entropy kernels for AWS Trainium, and the simulator that runs them anywhere.",
    )
    commands = top.add_subparsers(title="commands", metavar="command", required=True)
    command = commands.add_parser(
        "doctor", help="which NKI was chosen and why, versions, devices", description=doctor.__doc__
    )
    command.set_defaults(run=lambda options: doctor.main())
    command = commands.add_parser(
        "profile", help="what a kernel is modelled to take on a device", description=profile.__doc__
    )
    profile.add_arguments(command)
    command = commands.add_parser("tune", help="the tilings that are modelled to be fastest", description=tune.__doc__)
    tune.add_arguments(command)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the command line names; returns its exit code. Wrong arguments end the process with 2."""
    options = parser().parse_args(arguments)
    code: int = options.run(options)
    return code
