# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Count what tests make the simulator, other processes and torch.compile do: the same on every machine.

A launch counts when its cores are made and when they end, and a replayed launch as the one that it repeats: what a test
does must not depend on the tests before it. Instructions are not wrapped, because messages name the first frame outside
of nkilib. What a child process does is not seen; it has a fixed price.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from math import prod
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from nkilib.simulator.hardware import current
from nkilib.simulator.launch import running
from nkilib.simulator.replay.launch import Replay

# Measured: an instruction takes 34 us. An element of an argument is read, computed and compared by several of them.
ELEMENTS_PER_UNIT = 100
UNITS_PER_LAUNCH = 100
UNITS_PER_PROCESS = 6_000  # of Python, which imports numpy, and often torch
UNITS_PER_PROGRAM = 500  # another one, such as what matplotlib asks for fonts where it has no cache of them


class Work(NamedTuple):
    """Work that was done.

    Attributes:
        units: simulated work and child processes, in the time of an instruction.
        compilations: the frames that torch.compile compiled.
    """

    units: int = 0
    compilations: int = 0

    def since(self, earlier: Work) -> Work:
        """The work after ``earlier``. torch starts to count again where a test asks for it."""
        compiled = self.compilations - earlier.compilations
        return Work(self.units - earlier.units, compiled if compiled >= 0 else self.compilations)

    def __str__(self) -> str:
        return f"{self.units:,} units of simulated work and {self.compilations} compilations"


_units = 0
_lock = threading.Lock()
_thread = threading.local()


def work_so_far() -> Work:
    """The work of this process since `count_work`."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return Work(_units, dynamo.counters["frames"]["total"] if dynamo is not None else 0)


def _add(units: int) -> None:
    global _units
    with _lock:
        _units += units


def _elements(arguments: Iterable[Any]) -> int:
    shapes = [getattr(argument, "shape", ()) for argument in arguments]
    return sum(prod(shape) for shape in shapes if isinstance(shape, tuple) and shape)


def _is_python(command: Any) -> bool:
    """Whether a command of `subprocess` starts Python."""
    program = command if isinstance(command, str | bytes | os.PathLike) else command[0]
    return "python" in os.path.basename(os.fsdecode(program))


def count_work() -> None:
    """Count from now on."""
    make, enter, replay = running.CoreRun.__init__, current.enter, Replay.run
    start, fork = subprocess.Popen.__init__, BaseProcess.start

    def made(run: Any, func: Any, arguments: Any, core: Any) -> None:
        make(run, func, arguments, core)
        elements = 0 if core.is_abstract else _elements([*arguments.args, *arguments.kwargs.values()])
        _add(UNITS_PER_LAUNCH + elements // ELEMENTS_PER_UNIT)

    def entered(core: Any) -> None:
        if core is None:
            _add(_thread.core.issued)
        _thread.core = core
        enter(core)

    def replayed(of: Replay, arrays: Any, originals: Any, **options: Any) -> Any:
        cores = len(of.plan._cores)
        _add(of.plan.instructions + cores * (UNITS_PER_LAUNCH + _elements(arrays) // ELEMENTS_PER_UNIT))
        return replay(of, arrays, originals, **options)

    def started(process: Any, *args: Any, **kwargs: Any) -> None:
        _add(UNITS_PER_PROCESS if _is_python(args[0] if args else kwargs["args"]) else UNITS_PER_PROGRAM)
        start(process, *args, **kwargs)

    def forked(process: Any) -> None:
        _add(UNITS_PER_PROCESS)
        fork(process)

    running.CoreRun.__init__, running.enter, Replay.run = made, entered, replayed  # type: ignore[attr-defined]
    subprocess.Popen.__init__, BaseProcess.start = started, forked
