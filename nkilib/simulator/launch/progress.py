# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How far a long simulation is: one line on a terminal, which goes away when it ends.

A thread reads how many instructions the cores have begun: nothing is added to an instruction. Where the error stream is
no terminal, as in a pipe or in a notebook, there is no thread and no line.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from time import monotonic
from typing import NamedTuple, TextIO

from ..machine.core import Core

# What takes no longer shows nothing.
PATIENCE_S = 2.0
_PERIOD_S = 0.5
_DEFAULT_COLUMNS = 80


class _Task(NamedTuple):
    """Something that may take long.

    Attributes:
        name: what it is called.
        begun_s: when it began, by :func:`time.monotonic`.
        state: says how far it is; None if it does not know.
    """

    name: str
    begun_s: float
    state: Callable[[], str] | None


class _Display:
    """The line of a terminal that says what runs: the outermost task, and in it the others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tasks: list[_Task] = []
        self._shown = 0  # characters of the line
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self._thread.start()

    @contextmanager
    def doing(self, task: _Task) -> Iterator[None]:
        self._tasks.append(task)
        try:
            yield
        finally:
            self._tasks.pop()
            if not self._tasks:
                self._update()  # at once: what comes next may print

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _show(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            self._update()

    def _update(self) -> None:
        with self._lock:
            text = self._text()[: self._columns() - 1]
            if text or self._shown:
                self._write(text)

    def _text(self) -> str:
        tasks = [*self._tasks]
        if not tasks:
            return ""
        took_s = monotonic() - tasks[0].begun_s
        if took_s < PATIENCE_S:
            return ""
        said = [f"{task.name}{f', {task.state()}' if task.state else ''}" for task in tasks]
        return f"{took_s:.0f} s: {': '.join(said)}"

    def _write(self, text: str) -> None:
        """Show ``text`` instead of what is shown, and leave the cursor in front of it."""
        # A terminal that is gone, or a stream that the program has closed, is no reason to stop what runs.
        with suppress(OSError, ValueError):
            self._stream.write(f"\r{text.ljust(self._shown)}\r")
            self._stream.flush()
        self._shown = len(text)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _DEFAULT_COLUMNS
        except (OSError, ValueError):
            return _DEFAULT_COLUMNS


_DISPLAY: ContextVar[_Display | None] = ContextVar("nkilib_simulator_progress", default=None)


@contextmanager
def displaying() -> Iterator[None]:
    """Show on a terminal how far the tasks are that begin inside the ``with`` block."""
    if _DISPLAY.get() is not None or not _is_terminal(sys.stderr):
        yield
        return
    display = _Display(sys.stderr)
    token = _DISPLAY.set(display)
    try:
        yield
    finally:
        _DISPLAY.reset(token)
        display.close()


@contextmanager
def doing(name: str, state: Callable[[], str] | None = None) -> Iterator[None]:
    """A task that may take long; shown inside :func:`displaying` only.

    Args:
        name: what it is called.
        state: says how far it is, from another thread.
    """
    display = _DISPLAY.get()
    if display is None:
        yield
        return
    with display.doing(_Task(name, monotonic(), state)):
        yield


def launching(name: str, cores: Sequence[Core]) -> AbstractContextManager[None]:
    """The launch of a kernel on ``cores``, as a task."""
    return doing(name, lambda: f"{sum(core.issued for core in cores):,} instructions")


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody looks at it; a stream that a program puts in its place may lack the question."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False
