# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Class indices of every integer type, of numpy and of JAX: a class, ignored, or out of range, and never wrapped."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nkilib.jax.functions.arguments import IGNORED, OUT_OF_RANGE, class_indices, first_out_of_range

VALUES = {
    np.int8: ([0, 5, 127, -1, -100], [0, 5, 127, OUT_OF_RANGE, IGNORED]),
    np.uint8: ([0, 5, 255], [0, 5, 255]),
    np.int32: ([299, 300, -(2**31), -100, -1], [299, OUT_OF_RANGE, OUT_OF_RANGE, IGNORED, OUT_OF_RANGE]),
    np.uint32: ([299, 2**32 - 1, 2**32 - 100], [299, OUT_OF_RANGE, OUT_OF_RANGE]),
    np.int64: ([299, 2**32 + 3, -(2**32), -100], [299, OUT_OF_RANGE, OUT_OF_RANGE, IGNORED]),
    np.uint64: ([299, 2**63 + 3], [299, OUT_OF_RANGE]),
}


@pytest.mark.parametrize("dtype", VALUES, ids=lambda dtype: dtype.__name__)
def test_of_every_type(dtype: Any) -> None:
    values, expected = VALUES[dtype]
    array = np.array(values, dtype)
    result = class_indices(array, -100, 300)
    assert isinstance(result, np.ndarray) and result.dtype == np.int32 and result.tolist() == expected
    assert first_out_of_range(array, -100, 300) == (
        (expected.index(OUT_OF_RANGE),) if OUT_OF_RANGE in expected else None
    )


def test_of_jax_as_of_numpy() -> None:
    array = np.array([[0, 299, 300], [-1, 7, -100]], np.int32)
    result = jax.jit(class_indices, static_argnums=(1, 2))(array, 7, 300)
    assert result.dtype == jnp.int32 and result.tolist() == class_indices(array, 7, 300).tolist()
    assert result.tolist() == [[0, 299, OUT_OF_RANGE], [OUT_OF_RANGE, IGNORED, OUT_OF_RANGE]]


def test_an_ignore_index_that_the_type_cannot_hold_is_nowhere() -> None:
    assert class_indices(np.array([156], np.uint8), -100, 300).tolist() == [156]
    assert class_indices(np.array([3], np.int32), 2**32 + 3, 300).tolist() == [3]


def test_where_the_first_wrong_one_stands() -> None:
    assert first_out_of_range(np.array([[1, 2], [2, 9]]), -100, 3) == (1, 1)
    assert first_out_of_range(np.array(9), -100, 3) == ()
