# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Forward and backward along an axis that is not the last one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experimental.softmax.softmax_checks import (
    BACKWARD,
    BFLOAT16,
    DTYPES,
    FORWARD,
    logits,
    same_bits,
    saved_output,
    worst_of_backward,
    worst_of_forward,
)

# Transposed by Tensor, transposed by DMA, one outer index per partition; several segments; windows and strips with a
# remainder.
SHAPES = [(3, 300, 200), (2, 1500, 140), (2, 130, 256), (5, 100, 7), (140, 70, 3), (1, 2, 2), (3, 1, 5), (9, 40, 20)]


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_result_is_within_its_bound(shape, dtype, is_log):
    x = logits(shape, dtype)
    y = FORWARD[is_log][2](x, 1)
    assert y.dtype == np.dtype(dtype)
    assert worst_of_forward(x, is_log, y) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
def test_bound_refuses_wrong_results(is_log):
    x = logits((2, 60, 60), np.float32)
    y = FORWARD[is_log](x, 1)
    for wrong in (np.zeros_like(y), -y, y.swapaxes(1, 2)):
        assert worst_of_forward(x, is_log, wrong) > 1.0


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 5), st.integers(1, 1100), st.integers(2, 300), st.sampled_from(DTYPES), st.booleans())
def test_any_shape(outer, count, inner, dtype, is_log):
    x = logits((outer, count, inner), dtype, seed=count)
    assert worst_of_forward(x, is_log, FORWARD[is_log][2](x, 1)) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize(
    ("dtype", "result"), [(BFLOAT16, np.float32), (np.float32, BFLOAT16), (np.float16, np.float32)]
)
@pytest.mark.parametrize("shape", [(2, 600, 140), (3, 80, 4)], ids=str)
def test_result_of_another_type(shape, dtype, result, is_log):
    from nkilib.nki import nl

    named = nl.float32 if result is np.float32 else nl.bfloat16
    x = logits(shape, dtype)
    y = FORWARD[is_log][2](x, 1, dtype=named)
    assert y.dtype == np.dtype(result)
    assert worst_of_forward(x, is_log, y) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", [(1, 1100, 12), (2, 70, 130), (2, 30, 12)], ids=str)
def test_hard_columns(shape, dtype, is_log):
    x = logits(shape, dtype)
    x[0, 0, 0] = np.nan
    x[0, 0, 1] = np.inf
    x[0, :, 2] = -np.inf
    x[0, 1:, 3] = -np.inf
    x[0, : shape[1] // 2, 4] = -np.inf
    x[0, :, 5] = 7.0
    x[0, 0, 6] = 1e4
    x[0, :, 7] = -1e4
    x[0, 0, 8] = 3e38 if dtype is not np.float16 else 6e4
    x[0, -1, 9] = -np.inf
    x[0, 1, 10] = x[0, :, 10].max() + np.dtype(dtype).type(92)  # subnormal results
    assert worst_of_forward(x, is_log, FORWARD[is_log][2](x, 1)) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("count", [70, 1030])
def test_bits_depend_on_the_column_alone(count, dtype, is_log):
    x = logits((3, count, 260), dtype)
    y = FORWARD[is_log][2](x, 1)
    assert same_bits(y, FORWARD[is_log][1](x, 1))
    assert same_bits(y, FORWARD[is_log][2](x, 1))
    # In other places, in other layouts.
    for outer, inner in ((slice(0, 3), slice(7, 11)), (slice(1, 2), slice(3, 140)), (slice(2, 3), slice(131, 133))):
        part = np.ascontiguousarray(x[outer, :, inner])
        assert same_bits(y[outer, :, inner], FORWARD[is_log][2](part, 1))


def test_axis_first_and_in_the_middle_of_many():
    x = logits((70, 3, 2, 5), np.float32)
    y = FORWARD[True][2](x, 0)
    assert worst_of_forward(x.reshape(1, 70, 30), True, y.reshape(1, 70, 30)) <= 1.0
    y = FORWARD[True][2](x, -3)
    assert worst_of_forward(x.reshape(70, 3, 10), True, y.reshape(70, 3, 10)) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient_is_within_its_bound(shape, dtype, is_log):
    dy, y = logits(shape, dtype), saved_output(shape, dtype, is_log)
    dx = BACKWARD[is_log][2](dy, y, 1)
    assert dx.dtype == np.dtype(dtype)
    assert worst_of_backward(dy, y, is_log, dx) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
def test_bound_refuses_wrong_gradients(is_log):
    dy, y = logits((2, 60, 60), np.float32), saved_output((2, 60, 60), np.float32, is_log)
    dx = BACKWARD[is_log](dy, y, 1)
    for wrong in (np.zeros_like(dx), -dx, dx.swapaxes(1, 2)):
        assert worst_of_backward(dy, y, is_log, wrong) > 1.0


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 5), st.integers(1, 1100), st.integers(2, 300), st.sampled_from(DTYPES), st.booleans())
def test_gradient_of_any_shape(outer, count, inner, dtype, is_log):
    shape = outer, count, inner
    dy, y = logits(shape, dtype, seed=count), saved_output(shape, dtype, is_log)
    assert worst_of_backward(dy, y, is_log, BACKWARD[is_log][2](dy, y, 1)) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("types", [(np.float32, np.float32, BFLOAT16), (BFLOAT16, np.float32, np.float32)])
@pytest.mark.parametrize("shape", [(2, 600, 140), (3, 80, 4)], ids=str)
def test_mixed_types(shape, types, is_log):
    from nkilib.nki import nl

    dy, y = logits(shape, types[0]), saved_output(shape, types[1], is_log)
    dx = BACKWARD[is_log][2](dy, y, 1, dtype=nl.float32 if types[2] is np.float32 else nl.bfloat16)
    assert dx.dtype == np.dtype(types[2])
    assert worst_of_backward(dy, y, is_log, dx) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [(2, 600, 140), (3, 80, 4), (2, 130, 256)], ids=str)
def test_in_place(shape, is_log):
    dy, y = logits(shape, BFLOAT16), saved_output(shape, BFLOAT16, is_log)
    expected = BACKWARD[is_log][2](dy, y, 1)
    overwritten = dy.copy()
    assert same_bits(expected, BACKWARD[is_log][2](overwritten, y, 1, inplace=True))
    assert same_bits(expected, overwritten)


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [(1, 1100, 6), (2, 70, 130)], ids=str)
def test_gradient_of_hard_columns(shape, is_log):
    dy, y = logits(shape, np.float32), saved_output(shape, np.float32, is_log)
    dy[0, 0, 0] = np.nan
    dy[0, 0, 1] = np.inf
    y[0, 1, 2] = np.nan
    y[0, 1, 3] = -np.inf if is_log else 0.0
    dy[0, :, 4] = 0.0
    assert worst_of_backward(dy, y, is_log, BACKWARD[is_log][2](dy, y, 1)) <= 1.0


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("count", [70, 1030])
def test_bits_of_a_gradient_depend_on_the_column_alone(count, dtype, is_log):
    shape = 3, count, 260
    dy, y = logits(shape, dtype), saved_output(shape, dtype, is_log)
    dx = BACKWARD[is_log][2](dy, y, 1)
    assert same_bits(dx, BACKWARD[is_log][1](dy, y, 1))
    assert same_bits(dx, BACKWARD[is_log][2](dy, y, 1))
    for outer, inner in ((slice(0, 3), slice(7, 11)), (slice(1, 2), slice(3, 140)), (slice(2, 3), slice(131, 133))):
        parts = [np.ascontiguousarray(array[outer, :, inner]) for array in (dy, y)]
        assert same_bits(dx[outer, :, inner], BACKWARD[is_log][2](*parts, 1))
