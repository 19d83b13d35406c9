# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The command ``python -m nkilib.simulator script.py [arguments]``: the script's ``import nki`` is the simulator."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType

from nkilib import __version__
from nkilib.base.quiet_exit import ending_quietly

from .hardware.generations import TARGETS
from .hardware.options import CHECKS, FRONTENDS, LEVELS, using
from .install import install
from .launch.progress import displaying
from .terms.errors import last_line
from .terms.tracebacks import shortened
from .xla_stand_in import advice, install_stand_in

_CHOICES = {
    "target": TARGETS,
    **dict.fromkeys(CHECKS, LEVELS),
    "uninitialized": (*LEVELS, "nan"),
    "frontend": FRONTENDS,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nkilib.simulator",
        usage="%(prog)s [options] (script.py | -m module) [arguments]",
        description="Run a script or a module on nkilib's simulator, which its 'import nki' then imports.",
        epilog="An option that is left out keeps the value from the environment, or its default: see "
        "docs/reference/simulator.md. Exit code: that of the script; 130 after Ctrl-C; 141 if nobody reads the output.",
    )
    parser.add_argument("--version", action="version", version=f"nkilib {__version__}")
    for name, choices in _CHOICES.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, choices=choices, help=f"as in nkilib.simulator.using({name}=...)")
    parser.add_argument("--strict", action="store_true", help="raise where a check warns or is off by default")
    parser.add_argument(
        "-m", dest="module", metavar="module", nargs=argparse.REMAINDER, help="run a module, as python -m"
    )
    parser.add_argument("script", nargs="?", help="the Python file to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script, in its sys.argv[1:]")
    return parser


def _run(options: argparse.Namespace) -> None:
    if options.module:
        name, *rest = options.module
        sys.argv = [name, *rest]
        sys.path.insert(0, "")
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [options.script, *options.arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
        runpy.run_path(options.script, run_name="__main__")


def main(arguments: Sequence[str] | None = None) -> None:
    """Install the simulator as ``nki`` and run the script or module that the command line names.

    If the script needs Neuron software that is missing, the process ends with one line that says what to do.

    Args:
        arguments: the command line; None for the command line of this process.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.script is None) == (not options.module):
        parser.error("name a script, or a module after -m")
    if options.script is not None and not os.path.exists(options.script):
        parser.error(f"there is no script {options.script!r}")
    install()
    install_stand_in()
    changes = {name: getattr(options, name) for name in _CHOICES if getattr(options, name) is not None}
    if options.strict:
        changes["strict"] = True
    try:
        with ending_quietly(parser.prog, last_line), using(**changes), displaying():
            _run(options)
    except (ImportError, AttributeError) as error:
        line = advice(error)
        if line is None:
            raise
        raise SystemExit(f"{parser.prog}: {line}") from None


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    # A hook of sys: prints an uncaught error without the stack frames that run the script.
    if isinstance(error, Exception):
        error = shortened(error.with_traceback(traceback), is_whole=True)
    sys.__excepthook__(kind, error, error.__traceback__)


if __name__ == "__main__":
    sys.excepthook = _show
    main()
