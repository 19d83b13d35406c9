# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Numpy arrays of the packed types, which numpy lacks: structures of one word, with a field named like the type.

On a Neuron machine AWS's package ``neuron_dtypes`` gives numpy types of these names; arrays of those types are
accepted as well.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .dtypes import ALL_DTYPES, DType, as_dtype, float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4

ARRAY_TYPES: dict[DType, np.dtype[Any]] = {
    dtype: np.dtype([(str(dtype), dtype.numpy)]) for dtype in ALL_DTYPES if dtype.is_packed
}

_ELEMENTS: dict[DType, Any] = {
    float8_e5m2_x4: ml_dtypes.float8_e5m2,
    float8_e4m3fn_x4: ml_dtypes.float8_e4m3fn,
    float4_e2m1fn_x4: ml_dtypes.float4_e2m1fn,
}
_PER_WORD, _FP4_BITS = 4, 4


def packed(array: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    """Return ``array`` as an array of a packed type, which a launch takes for a tensor of that type.

    Args:
        array: unsigned integers, whose bytes are the words, for instance uint32 for ``float8_e4m3fn_x4``; or elements,
            such as ``ml_dtypes.float8_e4m3fn``, four of which along the last dimension make a word, the first in
            the lowest bits. It is not copied, except ``ml_dtypes.float4_e2m1fn``, which numpy keeps in a byte each.
        dtype: ``nl.float8_e5m2_x4``, ``nl.float8_e4m3fn_x4`` or ``nl.float4_e2m1fn_x4``.

    Raises:
        TypeError: if ``dtype`` is no packed type, or ``array`` is no array or has another type.
        ValueError: if the last dimension does not divide into whole words.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"packed: array must be a numpy array, got {array!r}; numpy.asarray makes one")
    kind = as_dtype(dtype)
    if not kind.is_packed:
        raise TypeError(f"packed: dtype must be a packed type, such as nl.float8_e4m3fn_x4, got {kind}")
    element = np.dtype(_ELEMENTS[kind])
    if array.dtype.kind != "u" and array.dtype != element:
        raise TypeError(f"packed: an array for {kind} must be of {element} or unsigned integers, got {array.dtype}")
    words = _fp4_words(array) if array.dtype == element and kind == float4_e2m1fn_x4 else array
    if words.ndim == 0 or words.shape[-1] * words.dtype.itemsize % kind.itemsize:
        raise ValueError(f"packed: the last dimension of {list(array.shape)} {array.dtype} makes no whole {kind}")
    return words.view(ARRAY_TYPES[kind])


def _fp4_words(elements: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    if elements.ndim == 0 or elements.shape[-1] % _PER_WORD:
        raise ValueError(f"packed: the last dimension of {list(elements.shape)} makes no words of {_PER_WORD} elements")
    bits = elements.view(np.uint8).astype(np.uint16).reshape(*elements.shape[:-1], -1, _PER_WORD)
    return np.bitwise_or.reduce(bits << np.arange(_PER_WORD, dtype=np.uint16) * np.uint16(_FP4_BITS), axis=-1)


def words_of(array: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Return the words of an array of a packed type, without a copy; any other array is returned unchanged."""
    if not dtype.is_packed:
        return array
    names = array.dtype.names
    return array.view(dtype.numpy) if names is None else array[names[0]].view(dtype.numpy)


def register_names() -> None:
    """Register the packed types with numpy by name, as happens where the real NKI is installed."""
    known: dict[str, Any] = vars(np)["sctypeDict"]  # the stubs know scalar types in it only
    for dtype, array_type in ARRAY_TYPES.items():
        known.setdefault(str(dtype), array_type)
