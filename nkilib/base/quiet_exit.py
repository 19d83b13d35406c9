# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

""":func:`ending_quietly`, which ends a command in one line or none, without a traceback.

It handles Ctrl-C, and a standard output that cannot be written.
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
    # Python's last flush of what is still buffered cannot fail after this.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _output_fails() -> bool:
    """Return whether writing to the standard output fails. If not, the caught error concerns another file."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"\n")  # the flush may have nothing to do
    except OSError:  # also of an output that is no file
        return True
    return False


def _reader_is_gone() -> bool:
    """Return whether nobody reads the standard output.

    If it has a reader, a BrokenPipeError comes from another connection.
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
    """End the process without a traceback if the ``with`` block is interrupted or cannot write its output.

    The exit code is :data:`INTERRUPTED` after Ctrl-C, :data:`CLOSED_PIPE` if nobody reads the standard output, and 1 if
    the standard output cannot be written, for instance because the device is full.

    Args:
        program: the name of the command, which begins the line printed after Ctrl-C.
        where: a function that takes the KeyboardInterrupt and returns the text that is printed after "interrupted at",
            or an empty text.

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
