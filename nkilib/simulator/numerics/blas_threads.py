# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The limit of BLAS to one thread for each matrix product while kernels run.

A BLAS library spreads a large product over threads of its own, and makes the other core's product wait for them: where
the two cores of a kernel multiply at the same time, this is up to a hundred times slower than both on their own
threads. OpenBLAS, which numpy ships with, can be configured at run time, for the whole process; numpy itself has no
function for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, NamedTuple

# Names of the functions; numpy's own OpenBLAS and the one of a distribution each use one of these spellings.
_SPELLINGS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


class _Threads(NamedTuple):
    """The functions of OpenBLAS that get and set the number of its threads."""

    get: Any
    set: Any


@cache
def _openblas() -> _Threads | None:
    """Return the thread functions of the OpenBLAS that numpy computes with; None where numpy uses another library."""
    try:  # found through numpy's module that links to it, whatever file it is in
        library = ctypes.CDLL(str(import_module("numpy.linalg._umath_linalg").__file__))
    except (ImportError, OSError):
        return None
    for spelling in _SPELLINGS:
        names = spelling.format("get_num_threads"), spelling.format("set_num_threads")
        if all(hasattr(library, name) for name in names):
            return _Threads(*(getattr(library, name) for name in names))
    return None


@dataclass
class _Users:
    """The callers that want one thread: how many there are, and the number of threads before the first of them."""

    count: int = 0
    threads_before: int = 1
    lock: Lock = field(default_factory=Lock)


_USERS = _Users()


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep products on the calling thread, in the whole process, until the last caller has left the context.

    Nothing changes where BLAS is not OpenBLAS; :func:`has_one_thread` tells whether it took effect.
    """
    threads = _openblas()
    if threads is None:
        yield
        return
    with _USERS.lock:
        _USERS.count += 1
        if _USERS.count == 1:
            _USERS.threads_before = threads.get()
            threads.set(1)
    try:
        yield
    finally:
        with _USERS.lock:
            _USERS.count -= 1
            if _USERS.count == 0:
                threads.set(_USERS.threads_before)


def has_one_thread() -> bool:
    """Return whether products of any size stay on the calling thread now, because some caller wants it."""
    return _USERS.count > 0
