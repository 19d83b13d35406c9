# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What holds of the elements of a tile until they change: float32 copies of them, and contents that wait for them."""

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
    """A storage, as far as its deferred contents go."""

    def waits_for(self, operand: object, /) -> bool:
        """Whether something deferred is to be made of the elements of a storage."""

    def settle(self) -> None:
        """Make the deferred contents."""


class Derived:
    """What was made of the elements of a storage, or waits to be.

    Args:
        nbytes: of the storage.

    Attributes:
        readers: storages whose deferred contents may be made of these elements; see deferred.py.
    """

    __slots__ = ("_copies", "_most", "_room", "readers")

    def __init__(self, nbytes: int) -> None:
        self._most = self._room = _MOST_COPIES * nbytes
        self._copies: dict[tuple[Layout, DType], Copy] = {}
        self.readers: WeakSet[Reader] = WeakSet()

    def copy_of(self, layout: Layout, dtype: DType, make: Callable[[], Copy]) -> Copy:
        """What ``make`` copied of a view when it was first asked for."""
        copy = self._copies.get((layout, dtype))
        if copy is None:
            copy = make()
            if copy.nbytes > self._room:
                self._copies.clear()
                self._room = self._most
            self._copies[layout, dtype] = copy
            self._room -= copy.nbytes
        return copy
