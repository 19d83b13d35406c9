"""Run a module of the tests as a program: what it registers, or how much memory it takes, is a matter of a process."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.fresh_python import CHECKOUT


def run_module(module: str, *arguments: str, timeout: float = 300.0, **environment: str) -> str:
    """What ``python -m module`` prints; ``environment`` is added to this one."""
    process = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
