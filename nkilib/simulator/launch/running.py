# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cores of a launch as threads: each calls the kernel function, and the launch raises the lowest core's error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..hardware.current import enter
from ..machine.core import Core
from ..numerics.blas_threads import one_thread
from ..terms.errors import CoreAbortedError, NkiValidationError, add_core, add_location_of_traceback, last_line
from ..terms.signatures import PLAIN_ERRORS
from ..terms.spec import DataNeeded, ValuesWanted
from ..terms.tracebacks import is_fault, misuse_of
from .arguments import Arguments

_FAULT = "This is a fault of nkilib's simulator, not of the kernel: please report it with the whole traceback"


class CoreRun:
    """One core's execution of the kernel function.

    Attributes:
        core: the core that runs.
        result: the return value of the function.
        error: the exception that the function raised.
    """

    def __init__(self, func: Callable[..., Any], arguments: Arguments, core: Core) -> None:
        self._func = func
        self._arguments = arguments
        self.core = core
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the core runs in a thread of its own, so that a traceback does not tell the user which core it is."""
        return self.core.number > 0 or self.core.launch.seat is not None

    def __call__(self) -> None:
        launch = self.core.launch
        enter(self.core)
        try:
            # Overflow to inf and NaN from inf - inf are results of a device, not mistakes of a program.
            with np.errstate(all="ignore"), one_thread():
                self.result = self._func(*self._arguments.args, **self._arguments.kwargs)
            for check in self.core.at_end:
                check()
            self.core.observers.end()
            self.core.loads.settle()  # of tiles that outlive the kernel: the caller may change its arrays
            launch.finish(self.core.number)
        except CoreAbortedError:
            launch.fail(self.core.number, None)
        except BaseException as error:
            if isinstance(error, DataNeeded) and launch.left_out is not None:
                error = ValuesWanted(error.origin)
            if isinstance(error, DataNeeded):  # outside an instruction: nothing can stand for the values
                error = NkiValidationError(str(error)).with_traceback(error.__traceback__)
            if isinstance(error, PLAIN_ERRORS) and not isinstance(error, NkiValidationError):
                error = misuse_of(error) or error
            if isinstance(error, NkiValidationError):
                add_location_of_traceback(error, f"{self.core.name}: " if self.core.name else "")
            elif isinstance(error, Exception) and self._is_elsewhere:
                add_core(error, self.core.name)
            if sys.version_info >= (3, 11) and isinstance(error, Exception) and is_fault(error):
                error.add_note(f"{_FAULT}; it arose at {last_line(error) or 'the end'} of the kernel")
            self.error = error
            launch.fail(self.core.number, self.core.issued)
        finally:
            enter(None)


def run_cores(running: Sequence[CoreRun]) -> None:
    """Run all cores and raise the error of the lowest core that failed.

    Core 0 runs in the calling thread, so that a debugger's breakpoint works there; the others have their own threads.
    """
    threads = [threading.Thread(target=run, name=f"core {run.core.number}") for run in running[1:]]
    try:
        for thread in threads:
            thread.start()
        running[0]()
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt while starting or waiting: do not leave the other core running behind
        running[0].core.launch.abort()
        for thread in threads:
            if thread.is_alive():
                thread.join()
        raise
    raise_first_error(running)


def raise_first_error(running: Iterable[CoreRun]) -> None:
    """Raise the error of the lowest core that failed, if any did."""
    for run in running:
        if run.error is not None:
            raise run.error
