# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The results of a launch, through a file."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from nkilib.verify.step import Observation, typed


def test_arrays_of_every_type_come_back_with_their_bits(tmp_path: Path) -> None:
    arrays = {
        "float32": np.array([[1.5, np.nan, -0.0]], np.float32),
        "argument bfloat16": np.array([1.5, np.inf, 3e38], ml_dtypes.bfloat16),
        "int32": np.arange(3, dtype=np.int32),
        "uint32": np.array([2**32 - 1], np.uint32),
    }
    Observation(arrays, notes={"clock": None}).save(tmp_path)
    read = Observation.load(tmp_path)
    assert (read.error, read.notes, list(read.arrays)) == (None, {"clock": None}, list(arrays))
    for name, array in arrays.items():
        assert (read.arrays[name].dtype, read.arrays[name].shape) == (array.dtype, array.shape)
        assert read.arrays[name].tobytes() == array.tobytes()


def test_an_error_comes_back(tmp_path: Path) -> None:
    Observation(error="NrtError: NRT_EXEC_OOB(1006)").save(tmp_path)
    assert Observation.load(tmp_path) == Observation(error="NrtError: NRT_EXEC_OOB(1006)")


def test_what_was_not_written_is_no_observation(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Observation.load(tmp_path)


def test_more_is_added_to_a_copy() -> None:
    first = Observation({"a": np.zeros(1)}, notes={"one": 1})
    more = first.with_arrays({"b": np.ones(1)}).with_notes(two=2)
    assert (list(more.arrays), more.notes) == (["a", "b"], {"one": 1, "two": 2})
    assert (list(first.arrays), first.notes) == (["a"], {"one": 1})


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
def test_what_has_lost_its_type_gets_it_back(tmp_path: Path, dtype: type) -> None:
    """nrtpy notes that results may come without one."""
    right = np.array([[1, 2, 3]]).astype(dtype)
    Observation({"x": right.view(f"V{right.dtype.itemsize}")}).save(tmp_path)
    read = Observation.load(tmp_path).arrays["x"]
    assert read.dtype.name.startswith("void")
    assert typed(read, right).dtype == right.dtype and (typed(read, right) == right).all()
    assert typed(read, np.zeros(1)).dtype == read.dtype, "of another size it stays"
    assert typed(right, np.zeros(1, np.uint32)) is right
