# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run a few lines in a new Python process: only there does it show what an import does to a process.

Every program that a test starts takes its environment from `with_checkout`, so that it imports this checkout: with no
installation of nkilib there, and where another checkout is installed.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hangs import HANG_SECONDS

CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Outcome:
    """How a process ended.

    Attributes:
        output: the text on standard output, stripped.
        error: the last line of its traceback, `Type: message`; empty if it ended well.
    """

    output: str
    error: str


def with_checkout(*without: str, **variables: str) -> dict[str, str]:
    """The environment of this process, in which nkilib comes from the checkout.

    Args:
        without: names of variables to leave out.
        variables: variables to add, or to replace others.
    """
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {**kept, "PYTHONPATH": str(CHECKOUT), **variables}


def run_fresh(
    code: str,
    backend: str | None = None,
    before: Sequence[Path] = (),
    after: Sequence[Path] = (),
    home: Path = CHECKOUT,
    options: Sequence[str] = (),
) -> Outcome:
    """Run `code` with nkilib importable from the directory `home`.

    Args:
        code: Python source.
        backend: value of NKILIB_BACKEND; None leaves the variable unset.
        before: directories on the import path ahead of `home`.
        after: directories on the import path behind `home`, ahead of what is installed.
        options: the options of the interpreter, such as ``-O``.
    """
    path = os.pathsep.join(str(directory) for directory in (*before, home, *after))
    environment = with_checkout("NKILIB_BACKEND", PYTHONPATH=path)
    if backend is not None:
        environment["NKILIB_BACKEND"] = backend
    # -P would keep the working directory off the path, but Python 3.10 lacks it: run where there is nothing to import.
    nowhere = Path(sys.executable).parent
    process = subprocess.run(
        [sys.executable, *options, "-c", code],
        env=environment,
        cwd=nowhere,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    error = process.stderr.strip().splitlines()[-1] if process.returncode else ""
    return Outcome(process.stdout.strip(), error)
