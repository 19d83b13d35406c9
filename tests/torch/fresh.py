# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run a module of the tests as a program: what it registers, or how much memory it takes, is a matter of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

from tests.fresh_python import CHECKOUT, with_checkout
from tests.hangs import HANG_SECONDS


def run_module(module: str, *arguments: str, **environment: str) -> str:
    """Return the output of ``python -m module``; ``environment`` is added to this one."""
    process = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=with_checkout(**environment),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def leave() -> NoReturn:
    """End a process that ran the backward of a pretended device well, but not its interpreter.

    The autograd engine has a thread for such a device, which takes the interpreter's lock to let go of what it ran.
    Where the interpreter is ending by then, it stops the thread, C++ does not allow that there, and the process aborts:
    in one of forty runs where the cores are busy, with PyTorch 2.13.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
