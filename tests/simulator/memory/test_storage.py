# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.memory.storage``: the memory behind tensors, and what unwritten elements read as."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nl
from nkilib.simulator.memory.storage import INTEGER_SENTINEL, Storage
from nkilib.simulator.terms.dtypes import ALL_DTYPES, DType
from nkilib.simulator.terms.layout import Layout, dense

# Packed types: tests/simulator/tensors/test_packed.py says what an unwritten word reads as.
UNPACKED = [dtype for dtype in ALL_DTYPES if not dtype.is_packed]


def make(shape: tuple[int, ...], dtype: DType, **settings: Any) -> Storage:
    return Storage(shape, dtype, nl.sbuf, "t", **settings)


def test_a_storage_of_given_data_is_that_memory() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    storage = make((3, 4), nl.float32, data=data)
    assert storage.written.is_full and not storage.is_read_only and storage.nbytes == 48
    storage.array(Layout((2,), (4,), 1), data.dtype)[...] = -1
    np.testing.assert_array_equal(data[:, 1], [-1, -1, 9])


def test_an_array_follows_strides_and_offset_in_elements_of_its_type() -> None:
    data = np.arange(12, dtype=np.int32)
    storage = make((12,), nl.int32, data=data)
    array = storage.array(Layout((2, 3), (5, 2), 1), np.dtype(np.int32))
    np.testing.assert_array_equal(array, [[1, 3, 5], [6, 8, 10]])
    halves = storage.array(Layout((3,), (2,), 0), np.dtype(np.int16))
    np.testing.assert_array_equal(halves, data.view(np.int16)[:6:2])


def test_a_layout_without_elements_may_start_behind_the_end() -> None:
    storage = make((3, 4), nl.float32)
    beyond = Layout((2, 0), (4, 1), 99)
    assert storage.array(beyond, np.dtype(np.float32)).shape == (2, 0)
    assert storage.written.mask_of(beyond, 4).shape == (2, 0, 1)


def test_a_read_only_array_makes_a_read_only_storage() -> None:
    data = np.zeros(4, np.float32)
    data.flags.writeable = False
    storage = make((4,), nl.float32, data=data)
    assert storage.is_read_only
    assert not storage.array(dense((4,)), data.dtype).flags.writeable


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_without_precise_floating_point_low_precision_types_are_stored_as_float32(dtype: DType) -> None:
    is_low = dtype in (nl.bfloat16, nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2)
    precise, wide = make((2, 3), dtype), make((2, 3), dtype, precise_fp=False)
    assert (precise.nbytes, precise.numpy_dtype, precise.is_widened) == (6 * dtype.itemsize, dtype.numpy, False)
    assert wide.is_widened == is_low
    assert wide.numpy_dtype == (np.float32 if is_low else dtype.numpy)
    assert wide.nbytes == 6 * wide.numpy_dtype.itemsize
    assert wide.numpy_type_of(dtype) == wide.numpy_dtype


def test_a_view_of_another_type_reads_that_types_bits() -> None:
    assert make((4,), nl.float32).numpy_type_of(nl.bfloat16) == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", UNPACKED, ids=str)
@pytest.mark.parametrize("precise_fp", [True, False])
def test_unwritten_elements_get_nan_or_four(dtype: DType, precise_fp: bool) -> None:
    storage = make((2, 3), dtype, precise_fp=precise_fp)
    numpy_type = storage.numpy_dtype
    array = storage.array(dense((2, 3)), numpy_type)
    array[...] = 1
    storage.written.mark(Layout((2, 1), (3, 1), 1), numpy_type.itemsize)
    storage.fill_unwritten(dense((2, 3)), dtype)
    values = array.astype(np.float32)
    expected = np.full((2, 3), INTEGER_SENTINEL if dtype.is_integer else np.nan, np.float32)
    expected[:, 1] = 1
    np.testing.assert_array_equal(values, expected)
    assert not storage.written.is_written(dense((2, 3)), numpy_type.itemsize)


def test_the_written_half_of_an_element_keeps_its_bits() -> None:
    storage = make((2,), nl.float32)
    halves = storage.array(dense((4,)), np.dtype(np.uint16))
    halves[...] = 0x1111
    storage.written.mark(Layout((1,), (1,), 1), 2)  # the upper half of element 0
    storage.fill_unwritten(dense((2,)), nl.float32)
    # float32 NaN is 0x7fc00000; little-endian, so the lower half comes first.
    assert [hex(half) for half in halves] == ["0x0", "0x1111", "0x0", "0x7fc0"]


def test_unwritten_elements_are_counted_among_those_that_matter() -> None:
    storage = make((2, 3), nl.float32)
    whole = dense((2, 3))
    storage.written.mark(Layout((1, 3), (3, 1), 0), 4)
    assert storage.count_unwritten(whole, nl.float32) == 3
    among = np.array([[True, True, True], [True, False, True]])
    assert storage.count_unwritten(whole, nl.float32, among) == 2
    assert storage.count_unwritten(whole, nl.float32, ~among) == 1
    assert storage.count_unwritten(whole, nl.float32, np.zeros((2, 3), np.bool_)) == 0
