# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The end of a command that is interrupted, or whose output cannot be written: one line or none, and no traceback.

A command runs in a block of :func:`ending_quietly`.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# The exit codes that shells give to a process ended by SIGINT and by SIGPIPE: 128 plus the number of the signal.
INTERRUPTED = 130
CLOSED_PIPE = 141
# The errors of an output that takes no more.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _discard_output() -> None:
    """Redirect the standard output to nowhere, so that Python's last flush of what is still buffered cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _output_fails() -> bool:
    """Return whether writing to the standard output fails; if not, an error that was caught concerns a file of the
    user's.
    """
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"\n")  # the flush may have nothing to do
    except OSError:  # also of an output that is no file
        return True
    return False


def _reader_is_gone() -> bool:
    """Return whether nobody reads the standard output any more; if not, a BrokenPipeError comes from a connection of
    the user's script.
    """
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


@contextmanager
def ending_quietly(program: str, where: Callable[[BaseException], str] | None = None) -> Iterator[None]:
    """End the process with :data:`INTERRUPTED` after Ctrl-C, and with :data:`CLOSED_PIPE` if nobody reads its output.

    If the standard output cannot be written, for instance because the device is full, the process ends with 1.

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
        _discard_output()
        raise SystemExit(CLOSED_PIPE) from None
    except OSError as error:
        if error.errno not in _FULL or not _output_fails():
            raise
        _discard_output()
        print(f"{program}: error: cannot write the standard output: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None
