# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.terms.dtypes``: the types of NKI, their names and how they are held."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nl
from nkilib.simulator import ArgumentTypeError
from nkilib.simulator.terms import dtypes
from nkilib.simulator.terms.dtypes import ALL_DTYPES, DType, as_dtype
from tests.simulator.frame import refused
from tests.torch_types import named_type

# Name, bits and numpy type of every type in the table "Supported Data Types by NKI".
PLAIN = [
    ("uint8", 8, np.uint8, "uint"),
    ("int8", 8, np.int8, "int"),
    ("uint16", 16, np.uint16, "uint"),
    ("int16", 16, np.int16, "int"),
    ("uint32", 32, np.uint32, "uint"),
    ("int32", 32, np.int32, "int"),
    ("int64", 64, np.int64, "int"),
    ("float8_e4m3", 8, ml_dtypes.float8_e4m3, "float"),
    ("float8_e5m2", 8, ml_dtypes.float8_e5m2, "float"),
    ("float8_e4m3fn", 8, ml_dtypes.float8_e4m3fn, "float"),
    ("float8_e8m0fnu", 8, ml_dtypes.float8_e8m0fnu, "float"),
    ("float16", 16, np.float16, "float"),
    ("bfloat16", 16, ml_dtypes.bfloat16, "float"),
    ("tfloat32", 32, np.float32, "float"),
    ("float32", 32, np.float32, "float"),
    ("bool", 8, np.uint8, "bool"),
]
PACKED = [
    ("float8_e5m2_x4", 32, np.uint32),
    ("float8_e4m3fn_x4", 32, np.uint32),
    ("float4_e2m1fn_x4", 16, np.uint16),
]


@pytest.mark.parametrize(("name", "bits", "numpy_type", "kind"), PLAIN, ids=[row[0] for row in PLAIN])
def test_types_have_the_documented_widths(name: str, bits: int, numpy_type: Any, kind: str) -> None:
    dtype = as_dtype(name)
    assert (dtype.itemsize * 8, dtype.numpy, dtype.kind) == (bits, np.dtype(numpy_type), kind)
    assert dtype.is_float == (kind == "float") and not dtype.is_packed
    assert dtype.is_integer == (kind in ("int", "uint", "bool"))


def test_the_tables_name_every_type() -> None:
    assert sorted(ALL_DTYPES) == sorted([name for name, *_ in PLAIN] + [name for name, *_ in PACKED])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_a_type_is_a_string(dtype: DType) -> None:
    name = str(dtype)
    assert dtype == name and hash(dtype) == hash(name) and {name: 1}[dtype] == 1
    assert f"{dtype} {dtype!r}" == f"{name} {name}"


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_a_copied_type_is_the_same_object(dtype: DType) -> None:
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy([dtype])[0] is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (nl.bfloat16, nl.bfloat16),
        ("bfloat16", nl.bfloat16),
        ("bool_", nl.bool_),
        ("tfloat32", nl.tfloat32),
        (np.float32, nl.float32),
        (np.dtype(np.uint16), nl.uint16),
        (np.dtype(">i4"), nl.int32),
        (np.bool_, nl.bool_),
        (ml_dtypes.bfloat16, nl.bfloat16),
        (np.dtype(ml_dtypes.float8_e5m2), nl.float8_e5m2),
        ("torch.bfloat16", nl.bfloat16),
        ("torch.float32", nl.float32),
        ("torch.bool", nl.bool_),
    ],
    ids=str,
)
def test_as_dtype_knows_names_and_the_types_of_numpy_and_torch(value: Any, expected: DType) -> None:
    assert as_dtype(named_type(value)) is expected


@pytest.mark.parametrize("value", [np.float64, "uint64", float, int, None, 3, "torch.float64", "float", [1]], ids=str)
def test_what_is_no_type_of_nki_is_refused(value: Any) -> None:
    value = named_type(value)
    expected = f"dtype must be an NKI data type such as nl.float32 or nl.bfloat16, got {value!r}"
    assert refused(ArgumentTypeError, lambda: as_dtype(value)) == expected


@pytest.mark.parametrize(("name", "bits", "numpy_type"), PACKED)
def test_packed_types_are_words_and_neither_floats_nor_integers(name: str, bits: int, numpy_type: Any) -> None:
    dtype = as_dtype(name)
    assert dtype is getattr(nl, name)
    assert (dtype.itemsize * 8, dtype.numpy, dtype.kind) == (bits, np.dtype(numpy_type), "packed")
    assert dtype.is_packed and not dtype.is_float and not dtype.is_integer


def test_low_precision_types_are_those_of_the_precise_mode() -> None:
    assert {"bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"} == dtypes.LOW_PRECISION
