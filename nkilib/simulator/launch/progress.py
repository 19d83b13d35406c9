# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Progress display of a long simulation: one line on a terminal, which disappears when the simulation ends.

:func:`displaying` shows the line; :func:`doing` and :func:`launching` register the tasks that the line names.

A thread reads how many instructions the cores have begun, so instructions do no extra work. If stderr is no terminal,
as in a pipe or in a notebook, there is no thread and no line.
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

# Shorter tasks are not shown.
PATIENCE_S = 2.0
_PERIOD_S = 0.5
_DEFAULT_COLUMNS = 80


class _Task(NamedTuple):
    """An activity that may take long, such as a launch, and that the display names.

    Attributes:
        name: the displayed name.
        begun_s: the time when the task began, by :func:`time.monotonic`.
        state: a function that returns the task's progress as text; None if the progress is not known.
    """

    name: str
    begun_s: float
    state: Callable[[], str] | None


class _Display:
    """The terminal line that shows which tasks are running: the outermost one, and the tasks nested in it."""

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
                self._update()  # at once, because the code that follows may print

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
        texts = [f"{task.name}{f', {task.state()}' if task.state else ''}" for task in tasks]
        return f"{took_s:.0f} s: {': '.join(texts)}"

    def _write(self, text: str) -> None:
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


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False


@contextmanager
def displaying() -> Iterator[None]:
    """Show on a terminal the progress of the tasks that begin inside the ``with`` block."""
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
    """Register the ``with`` block as a task that may take long; only :func:`displaying` shows tasks.

    Args:
        name: the displayed name.
        state: a function that returns the task's progress as text; another thread calls it.
    """
    display = _DISPLAY.get()
    if display is None:
        yield
        return
    with display.doing(_Task(name, monotonic(), state)):
        yield


def launching(name: str, cores: Sequence[Core]) -> AbstractContextManager[None]:
    """Register the launch of the kernel ``name`` on ``cores`` as a task for the display, for the returned ``with``
    block.
    """
    return doing(name, lambda: f"{sum(core.issued for core in cores):,} instructions")
