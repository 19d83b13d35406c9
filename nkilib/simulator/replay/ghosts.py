# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Ghosts: storages without memory that stand for the storages of a recorded launch until a plan gives them memory."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..memory.storage import Storage
from ..memory.written import WrittenMap
from ..tensors.view import View
from ..terms.layout import Layout
from ..terms.spec import DataNeeded

Bytes = npt.NDArray[np.uint8]
# The role of a storage in its launch: its kind and its number.
Label = tuple[Any, ...]
_NOTHING = np.empty(0, np.uint8)


class Ghost(Storage):
    """A storage that has the properties of a recorded launch's storage, but not its elements.

    While it has no memory, instructions that read or write elements raise ``DataNeeded``.

    Args:
        original: the storage of the recorded launch.
        label: the role of the storage in its launch, equal in every launch of the same kernel on the same shapes.
        has_data: whether its elements have values when the launch begins.

    Attributes:
        label: see the argument.
    """

    __slots__ = ("_has_memory", "label")

    def __init__(self, original: Storage, label: Label, *, has_data: bool) -> None:
        super().__init__(
            *(original.shape, original.dtype, original.region, original.name),
            precise_fp=not original.is_widened,
            data=_NOTHING,
            address=original.address,
        )
        self.label = label
        self._has_memory = False
        self.is_read_only = original.is_read_only
        self.written = self._make_map(has_data)
        self._accumulated = self._make_map(False)

    @property
    def has_data(self) -> bool:
        """Whether its elements have values when the launch begins."""
        return self.label[0] in ("argument", "constant")

    def memory(self, layout: Layout, numpy_type: np.dtype[Any]) -> npt.NDArray[Any]:
        if not self._has_memory:
            self._refuse()
        return super().memory(layout, numpy_type)

    def _refuse(self) -> NoReturn:
        raise DataNeeded(f"a recorded tensor {self.label}")

    def give(self, memory: Bytes) -> None:
        """Give it ``memory`` for its elements."""
        self._bytes = memory
        self._has_memory = True

    def take_away(self) -> None:
        """Detach its memory, which belongs to something else from here on."""
        self._bytes = _NOTHING
        self._has_memory = False

    def forget_writes(self) -> None:
        """Mark the elements as at the beginning of a launch: as unwritten, unless they have values then."""
        self.written = self._make_map(self.has_data)
        self._accumulated = self._make_map(False)

    def count_as_written(self) -> None:
        """Mark all elements as written: the recorded launch read no unwritten ones, and neither do its replays."""
        self.written = WrittenMap(self.nbytes, self.numpy_dtype.itemsize, True)


def ghost_of(view: View) -> Ghost:
    """Return the ghost whose elements a view of a recorded launch selects.

    Raises:
        TypeError: if the view belongs to another storage.
    """
    storage = view.storage
    if not isinstance(storage, Ghost):
        raise TypeError(f"{view!r} is no tensor of a recorded launch")
    return storage
