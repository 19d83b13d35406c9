# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Values derived from the elements of a tile, valid until these change: float32 copies and deferred contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ..terms.dtypes import DType
from ..terms.layout import Layout

# float32 copies may take so many times the bytes of their tile, which has views that overlap.
_MOST_COPIES = 4

Copy = npt.NDArray[np.float32]


class Reader(Protocol):
    """A storage with deferred contents (see deferred.py), as far as :class:`Derived` needs to know it."""

    def waits_for(self, operand: object, /) -> bool:
        """Return whether a deferred content is to be computed from the elements of the storage ``operand``."""

    def settle(self) -> None:
        """Compute the deferred contents."""


class Derived:
    """The float32 copies of a storage's elements, and the storages whose deferred contents are computed from them.

    Args:
        nbytes: the size of the storage in bytes.

    Attributes:
        readers: storages whose deferred contents may be computed from these elements; see deferred.py.
    """

    __slots__ = ("_copies", "_most", "_room", "readers")

    def __init__(self, nbytes: int) -> None:
        self._most = self._room = _MOST_COPIES * nbytes
        self._copies: dict[tuple[Layout, DType], Copy] = {}
        self.readers: WeakSet[Reader] = WeakSet()

    def copy_of(self, layout: Layout, dtype: DType, make: Callable[[], Copy]) -> Copy:
        """Return the float32 copy of a view; ``make`` makes it where no copy is kept."""
        copy = self._copies.get((layout, dtype))
        if copy is None:
            copy = make()
            if copy.nbytes > self._room:
                self._copies.clear()
                self._room = self._most
            self._copies[layout, dtype] = copy
            self._room -= copy.nbytes
        return copy
