# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiles of a core whose contents come from HBM and may still be deferred; see deferred.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from .storage import Storage

# Where numpy has it from 1.25 on, and where it had it before.
_TooHardError = getattr(np, "exceptions", np).TooHardError
# The work that np.shares_memory may spend on a pair of arrays; two blocks of a matrix take less than a microsecond.
_MOST_WORK = 10_000
# Stubs of some releases of numpy know two values of max_work alone.
_SHARES: Callable[..., bool] = np.shares_memory


class DeferredLoads:
    """The tiles of one core whose contents come from HBM and may still be deferred."""

    def __init__(self) -> None:
        self._storages: WeakSet[Storage] = WeakSet()

    def add(self, storage: Storage) -> None:
        """Remember a tile by a weak reference."""
        self._storages.add(storage)

    def settle_readers(self, memory: npt.NDArray[Any], but: Storage | None = None) -> None:
        """Compute all deferred contents of each storage in which something deferred comes from ``memory``.

        Args:
            memory: the memory, which is about to be overwritten.
            but: a storage whose contents stay deferred nevertheless.
        """
        for storage in self._storages:
            if storage is not but and any(may_share(source, memory) for source in storage.deferred_sources):
                storage.settle()

    def settle(self) -> None:
        """Compute all deferred contents."""
        for storage in self._storages:
            storage.settle()


def may_share(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    """Return whether two arrays share memory; also True if that cannot be ruled out quickly."""
    try:
        return _SHARES(first, second, max_work=_MOST_WORK)
    except _TooHardError:
        return True
