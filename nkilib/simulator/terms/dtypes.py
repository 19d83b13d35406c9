# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Data types of NKI: their names, how the simulator stores them, and numpy arrays of the packed types.

- :class:`DType`: a type; the module has all types of NKI, such as ``int32``, ``bfloat16`` and ``float4_e2m1fn_x4``;
- :func:`as_dtype`: the type that a string, numpy or torch names;
- sets of types: :data:`ALL_DTYPES`, :data:`COMPUTABLE` (engines compute with them), :data:`MOVABLE` (engines move
  them), :data:`COPYABLE` (DMA copies them), :data:`LOW_PRECISION`, :data:`FLOATS`;
- :data:`ARRAY_TYPES`, :func:`packed`, :func:`words_of`, :func:`register_packed_types`: arrays of packed types.

A *packed type* has four elements in one unsigned integer, its *word*.

Source of the names and widths: table "Supported Data Types" of the NKI documentation (``nki/api/nki.api.shared.rst``).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .errors import ArgumentTypeError


def _named(name: str) -> DType:
    return _BY_NAME[name]


class DType(str):
    """An NKI data type: a string (so it hashes, prints and compares as its name) with attributes.

    Attributes:
        numpy: the numpy type that holds an element, or a word of a packed type.
        itemsize: bytes of an element, or of a word of a packed type, on the device.
        kind: ``"float"``, ``"int"``, ``"uint"``, ``"bool"`` or ``"packed"``.
        is_float: whether ``kind`` is ``"float"``.
        is_packed: whether ``kind`` is ``"packed"``.
        is_integer: whether the type is integer or boolean, and so accepted by bit-wise operators.
    """

    numpy: np.dtype[Any]
    itemsize: int
    kind: str
    is_float: bool
    is_integer: bool
    is_packed: bool

    def __new__(cls, name: str, numpy_type: Any, kind: str) -> DType:
        dtype = super().__new__(cls, name)
        dtype.numpy = np.dtype(numpy_type)
        dtype.itemsize = dtype.numpy.itemsize
        dtype.kind = kind
        dtype.is_float = kind == "float"
        dtype.is_integer = kind in ("int", "uint", "bool")
        dtype.is_packed = kind == "packed"
        return dtype

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: a copied or unpickled type is the very same object.
        return _named, (str(self),)


bool_ = DType("bool", np.uint8, "bool")
int8 = DType("int8", np.int8, "int")
int16 = DType("int16", np.int16, "int")
int32 = DType("int32", np.int32, "int")
int64 = DType("int64", np.int64, "int")
uint8 = DType("uint8", np.uint8, "uint")
uint16 = DType("uint16", np.uint16, "uint")
uint32 = DType("uint32", np.uint32, "uint")
float16 = DType("float16", np.float16, "float")
float32 = DType("float32", np.float32, "float")
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, "float")
# Held as float32 whose low 13 mantissa bits are zero: casts.py rounds at every store.
tfloat32 = DType("tfloat32", np.float32, "float")
float8_e4m3 = DType("float8_e4m3", ml_dtypes.float8_e4m3, "float")
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "float")
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, "float")
float8_e8m0fnu = DType("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "float")
# Four elements in one word, the first one in the lowest bits (see numerics/casts.py).
float8_e5m2_x4 = DType("float8_e5m2_x4", np.uint32, "packed")
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", np.uint32, "packed")
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", np.uint16, "packed")

ALL_DTYPES: tuple[DType, ...] = (
    bool_,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    float16,
    float32,
    bfloat16,
    tfloat32,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float8_e5m2_x4,
    float8_e4m3fn_x4,
    float4_e2m1fn_x4,
)

FLOATS: frozenset[DType] = frozenset(dtype for dtype in ALL_DTYPES if dtype.is_float)

# The types with which engines compute.
COMPUTABLE: frozenset[DType] = frozenset(dtype for dtype in ALL_DTYPES if not dtype.is_packed) - {int64}

# The types of instructions that move bits and do not compute: the packed ones too, with which engines do not compute.
MOVABLE: frozenset[DType] = frozenset(ALL_DTYPES) - {int64}

# The types that DMA copies, which has no engine in between.
COPYABLE: frozenset[DType] = frozenset(ALL_DTYPES)

# NKI_PRECISE_FP=0 keeps these in float32 (``nki/guides/nki_simulator.rst``, "Precise Floating-Point Mode").
LOW_PRECISION: frozenset[DType] = frozenset({bfloat16, float8_e4m3, float8_e4m3fn, float8_e5m2})

_BY_NAME: dict[str, DType] = {str(dtype): dtype for dtype in ALL_DTYPES} | {"bool_": bool_}


def _foreign_name(value: Any) -> str:
    text = str(value)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    try:
        dtype = np.dtype(value)
    except TypeError:
        return text
    if dtype.names is None or len(dtype.names) != 1:
        return dtype.name
    # Numpy's own types do not pack: see ARRAY_TYPES.
    named = _BY_NAME.get(dtype.names[0])
    return dtype.names[0] if named is not None and named.is_packed and named.itemsize == dtype.itemsize else dtype.name


def as_dtype(value: Any) -> DType:
    """Return the NKI data type that ``value`` names: an NKI type, a string, a numpy type or a torch type.

    Raises:
        ArgumentTypeError: if ``value`` names no NKI data type.
    """
    if isinstance(value, DType):
        return value
    name = str(value) if isinstance(value, str) else _foreign_name(value)
    # Python's int says nothing of a width; numpy takes it for int64.
    if name not in _BY_NAME or value is int:
        raise ArgumentTypeError(f"dtype must be an NKI data type such as nl.float32 or nl.bfloat16, got {value!r}")
    return _BY_NAME[name]


# Numpy lacks the packed types: their arrays are structures of one word, with a field named like the type. On a Neuron
# machine AWS's package ``neuron_dtypes`` gives numpy types of these names; arrays of those types are accepted as well.
ARRAY_TYPES: dict[DType, np.dtype[Any]] = {
    dtype: np.dtype([(str(dtype), dtype.numpy)]) for dtype in ALL_DTYPES if dtype.is_packed
}

_ELEMENTS: dict[DType, Any] = {
    float8_e5m2_x4: ml_dtypes.float8_e5m2,
    float8_e4m3fn_x4: ml_dtypes.float8_e4m3fn,
    float4_e2m1fn_x4: ml_dtypes.float4_e2m1fn,
}
_PER_WORD, _FP4_BITS = 4, 4


def _fp4_words(elements: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    if elements.ndim == 0 or elements.shape[-1] % _PER_WORD:
        raise ValueError(f"packed: the last dimension of {list(elements.shape)} makes no words of {_PER_WORD} elements")
    bits = elements.view(np.uint8).astype(np.uint16).reshape(*elements.shape[:-1], -1, _PER_WORD)
    return np.bitwise_or.reduce(bits << np.arange(_PER_WORD, dtype=np.uint16) * np.uint16(_FP4_BITS), axis=-1)


def packed(array: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    """Return ``array`` as an array of a packed type. A launch takes the result as a tensor of that type.

    The result shares the memory of ``array``, unless ``array`` has the type ``ml_dtypes.float4_e2m1fn``, of which numpy
    stores one element per byte.

    Args:
        array: words as unsigned integers, such as uint32 for ``float8_e4m3fn_x4``; or elements, such as
            ``ml_dtypes.float8_e4m3fn``. Four elements along the last dimension make a word; the first element has the
            lowest bits.
        dtype: ``nl.float8_e5m2_x4``, ``nl.float8_e4m3fn_x4`` or ``nl.float4_e2m1fn_x4``.

    Raises:
        TypeError: if ``dtype`` is no packed type, ``array`` is no array, or its type does not fit ``dtype``.
        ValueError: if the last dimension does not make whole words.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"packed: array must be a numpy array, got {array!r}; numpy.asarray makes one")
    packed_type = as_dtype(dtype)
    if not packed_type.is_packed:
        raise TypeError(f"packed: dtype must be a packed type, such as nl.float8_e4m3fn_x4, got {packed_type}")
    element = np.dtype(_ELEMENTS[packed_type])
    if array.dtype.kind != "u" and array.dtype != element:
        raise TypeError(
            f"packed: an array for {packed_type} must be of {element} or unsigned integers, got {array.dtype}"
        )
    words = _fp4_words(array) if array.dtype == element and packed_type == float4_e2m1fn_x4 else array
    if words.ndim == 0 or words.shape[-1] * words.dtype.itemsize % packed_type.itemsize:
        raise ValueError(
            f"packed: the last dimension of {list(array.shape)} {array.dtype} makes no whole {packed_type}"
        )
    return words.view(ARRAY_TYPES[packed_type])


def words_of(array: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Return the words of an array of a packed type, without a copy; any other array is returned unchanged."""
    if not dtype.is_packed:
        return array
    names = array.dtype.names
    return array.view(dtype.numpy) if names is None else array[names[0]].view(dtype.numpy)


def register_packed_types() -> None:
    """Register the packed types with numpy, so that ``np.dtype`` accepts their names. AWS's own NKI does the same."""
    known: dict[str, Any] = vars(np)["sctypeDict"]  # the stubs know scalar types in it only
    for dtype, array_type in ARRAY_TYPES.items():
        known.setdefault(str(dtype), array_type)
