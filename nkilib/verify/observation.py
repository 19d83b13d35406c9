# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a launch gave, as a file between the process that launches and the one that judges."""

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
    """What a launch gave.

    Attributes:
        arrays: by name: what was returned, and the arguments as the launch left them.
        error: what it raised, as ``Type: message``; None where it returned.
        notes: whatever else JSON can hold.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    error: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def with_arrays(self, more: Mapping[str, Array]) -> Observation:
        """With further arrays."""
        return replace(self, arrays={**self.arrays, **more})

    def with_notes(self, **more: Any) -> Observation:
        """With further notes."""
        return replace(self, notes={**self.notes, **more})

    def save(self, directory: Path) -> None:
        """Write it; the last file written says that it is whole."""
        written: dict[str, Any] = {f"{array.dtype.name}/{name}": _bits(array) for name, array in self.arrays.items()}
        np.savez(directory / _ARRAYS, **written)
        text = json.dumps({"error": self.error, "notes": self.notes})
        (directory / _NOTES).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Observation:
        """Read what :meth:`save` wrote.

        Raises:
            OSError: nothing, or not all of it, was written.
        """
        said = json.loads((directory / _NOTES).read_text(encoding="utf-8"))
        arrays = {}
        with np.load(directory / _ARRAYS) as file:
            for key in file.files:
                dtype, _, name = key.partition("/")
                arrays[name] = file[key].view(_BITS[dtype][0]) if dtype in _BITS else file[key]
        return cls(arrays, said["error"], said["notes"])


def typed(array: Array, like: Array) -> Array:
    """An array without a type, as the runtime may return one, as one of the type of another array of its size."""
    if array.dtype.name.startswith("void") and array.dtype.itemsize == like.dtype.itemsize:
        return array.view(like.dtype)
    return array


def _bits(array: Array) -> Array:
    """The array, or its bits where numpy's files have no such type."""
    array = np.ascontiguousarray(array)
    return array.view(_BITS[array.dtype.name][1]) if array.dtype.name in _BITS else array
