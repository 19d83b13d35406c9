# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The outcome of a launch, as files between the process that launches and the process that judges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Types that numpy's files do not know are written as their bits.
_BITS: Final = {"bfloat16": (np.dtype(ml_dtypes.bfloat16), np.uint16)}
_NOTES: Final = "notes.json"
_ARRAYS: Final = "arrays.npz"


@dataclass(frozen=True)
class Observation:
    """The outcome of a launch.

    Attributes:
        arrays: the returned arrays, and the arguments as the launch left them, by name.
        error: the error that the launch raised, as ``Type: message``; None if it returned.
        notes: anything else that JSON can represent.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    error: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def with_arrays(self, more: Mapping[str, Array]) -> Observation:
        """Return a copy with further arrays."""
        return replace(self, arrays={**self.arrays, **more})

    def with_notes(self, **more: Any) -> Observation:
        """Return a copy with further notes."""
        return replace(self, notes={**self.notes, **more})

    def save(self, directory: Path) -> None:
        """Write the observation to a directory; the last file written marks it as complete."""
        written: dict[str, Any] = {f"{array.dtype.name}/{name}": _bits(array) for name, array in self.arrays.items()}
        np.savez(directory / _ARRAYS, **written)
        text = json.dumps({"error": self.error, "notes": self.notes})
        (directory / _NOTES).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Observation:
        """Read the files that :meth:`save` wrote.

        Raises:
            OSError: if nothing, or not everything, was written.
        """
        saved = json.loads((directory / _NOTES).read_text(encoding="utf-8"))
        arrays = {}
        with np.load(directory / _ARRAYS) as file:
            for key in file.files:
                dtype, _, name = key.partition("/")
                arrays[name] = file[key].view(_BITS[dtype][0]) if dtype in _BITS else file[key]
        return cls(arrays, saved["error"], saved["notes"])


def typed(array: Array, like: Array) -> Array:
    """Return an array of raw bytes (``void``), as the runtime may return it, in the type of ``like``.

    An array of another type, or with elements of another size, stays as it is.
    """
    if array.dtype.name.startswith("void") and array.dtype.itemsize == like.dtype.itemsize:
        return array.view(like.dtype)
    return array


def _bits(array: Array) -> Array:
    """Return the array, or its bits if numpy's files have no such type."""
    array = np.ascontiguousarray(array)
    return array.view(_BITS[array.dtype.name][1]) if array.dtype.name in _BITS else array
