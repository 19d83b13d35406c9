# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The end of a command that is interrupted, or whose output nobody reads: one line or none is printed, no traceback."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# The exit codes that shells give to a process ended by SIGINT and by SIGPIPE: 128 plus the number of the signal.
INTERRUPTED = 130
CLOSED_PIPE = 141


@contextmanager
def ending_quietly(program: str, where: Callable[[BaseException], str] | None = None) -> Iterator[None]:
    """End the process with :data:`INTERRUPTED` after Ctrl-C, and with :data:`CLOSED_PIPE` if nobody reads its output.

    Args:
        program: the name of the command, with which the line printed after Ctrl-C begins.
        where: a function that describes the place that was interrupted, from the KeyboardInterrupt; it may return an
            empty text.

    Raises:
        SystemExit: in these cases.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()  # here, and not when the interpreter ends, which cannot say it well
    except KeyboardInterrupt as interruption:
        place = where(interruption) if where else ""
        print(f"{program}: interrupted{f' at {place}' if place else ''}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
        raise SystemExit(CLOSED_PIPE) from None


def _reader_is_gone() -> bool:
    """Return whether a BrokenPipeError came from the standard output, not from a connection of the user's script."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()  # where the output has no buffer, the flush has nothing to do
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # it is no file
        return False
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
