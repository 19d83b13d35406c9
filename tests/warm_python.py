# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run a script in a process of its own that need not load numpy and torch again: that takes longer than most scripts.

The processes are forked from a server that has imported these, with what torch loads when an operator is first called,
and nothing of nkilib: what a script sees of nkilib is as in a new interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.fresh_python import CHECKOUT
from tests.hangs import HANG_SECONDS

_PRELOADED = ["numpy", "torch", "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "torch.distributed.tensor"]


@dataclass(frozen=True)
class Ended:
    """How a script ended.

    Attributes:
        returncode: 0 if it came to its end.
        output: the text on standard output and standard error.
    """

    returncode: int
    output: str


def _run(script: str, output: str) -> None:
    """Run the script as ``__main__`` in the forked process, its output in a file."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.chdir(Path(script).parent)
    sys.argv = [script]
    sys.path[0] = str(CHECKOUT)
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "nkilib")
    if loaded:
        raise RuntimeError(f"the process must start without nkilib, but has {loaded}")
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()


def run_script(script: Path) -> Ended:
    """Run ``script`` in its directory, with the checkout on the import path."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    output = script.with_suffix(".output")
    process = context.Process(target=_run, args=(str(script), str(output)))
    process.start()
    process.join(HANG_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    return Ended(int(process.exitcode or 0), output.read_text(encoding="utf-8"))
