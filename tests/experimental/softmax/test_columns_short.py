# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Axes of few elements that are not the last one: a partition takes whole columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.experimental.softmax.columns.plan import is_short
from nkilib.experimental.softmax.profiling import profile_softmax_launch
from nkilib.experimental.softmax.tensors import Kind
from nkilib.nki import nl
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

# Blocks of inner places, on several outer ones, with a rest; several outer places a partition, with a rest.
SHAPES = [(3, 21, 150), (2, 3, 1031), (1, 2, 4000), (2500, 3, 2), (131, 5, 6), (1, 33, 2)]
IS_LOG = pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
NAMED = {np.dtype(np.float32): nl.float32, np.dtype(np.float16): nl.float16, np.dtype(BFLOAT16): nl.bfloat16}


def _worst(shape, dtypes, is_log, cores=2, seed=0, **options):
    """Return the worst error of forward and backward over its bound; types are of x or dy, of y, and of results."""
    given_type, saved_type, result_type = dtypes
    x, y = logits(shape, given_type, seed), saved_output(shape, saved_type, is_log, seed + 1)
    result = FORWARD[is_log][cores](x, 1, dtype=NAMED[np.dtype(result_type)], **options)
    gradient = BACKWARD[is_log][cores](x, y, 1, dtype=NAMED[np.dtype(result_type)], **options)
    assert result.dtype == gradient.dtype == np.dtype(result_type)
    return max(worst_of_forward(x, is_log, result), worst_of_backward(x, y, is_log, gradient))


@IS_LOG
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_are_within_their_bounds(shape, dtype, is_log):
    assert _worst(shape, (dtype, dtype, dtype), is_log) <= 1.0


@IS_LOG
@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(2, 64),
    st.integers(2, 300),
    st.tuples(*[st.sampled_from(DTYPES)] * 3),
    st.integers(1, 2),
)
def test_any_shape_and_types(is_log, outer, count, inner, dtypes, cores):
    outer = max(1, min(outer, 40000 // (count * inner)))
    assert _worst((outer, count, inner), dtypes, is_log, cores, seed=count) <= 1.0


@IS_LOG
def test_small_chunks(is_log):
    assert _worst((3, 6, 130), (np.float32,) * 3, is_log, chunk_size=13) <= 1.0
    # Fewer elements than a column has: columns are transposed.
    assert _worst((3, 6, 130), (np.float32,) * 3, is_log, chunk_size=5) <= 1.0


@IS_LOG
def test_bounds_refuse_wrong_results(is_log):
    x, y = logits((2, 12, 12), np.float32), saved_output((2, 12, 12), np.float32, is_log)
    result, gradient = FORWARD[is_log](x, 1), BACKWARD[is_log](x, y, 1)
    for wrong in (np.zeros_like(result), -result, result.swapaxes(1, 2)):
        assert worst_of_forward(x, is_log, wrong) > 1.0
    for wrong in (np.zeros_like(gradient), -gradient, gradient.swapaxes(1, 2)):
        assert worst_of_backward(x, y, is_log, wrong) > 1.0


@IS_LOG
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_hard_columns(dtype, is_log):
    x = logits((2, 9, 12), dtype)
    x[0, 0, 0] = np.nan
    x[0, 0, 1] = np.inf
    x[0, :, 2] = -np.inf
    x[0, 1:, 3] = -np.inf
    x[0, :5, 4] = -np.inf
    x[0, :, 5] = 7.0
    x[0, 0, 6] = 1e4
    x[0, :, 7] = -1e4
    x[0, 0, 8] = 3e38 if dtype is not np.float16 else 6e4
    x[0, -1, 9] = -np.inf
    x[0, 1, 10] = x[0, :, 10].max() + np.dtype(dtype).type(92)  # subnormal results
    assert worst_of_forward(x, is_log, FORWARD[is_log][2](x, 1)) <= 1.0


@IS_LOG
def test_hard_gradients(is_log):
    dy, y = logits((2, 9, 8), np.float32), saved_output((2, 9, 8), np.float32, is_log)
    dy[0, 0, 0] = np.nan
    y[0, 3, 1] = np.nan
    dy[0, :, 2] = 0.0
    y[0, 1:, 3] = -np.inf if is_log else 0.0
    dy[0, 0, 4] = 1e30
    assert worst_of_backward(dy, y, is_log, BACKWARD[is_log][2](dy, y, 1)) <= 1.0


@IS_LOG
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32], ids=lambda dtype: np.dtype(dtype).name)
def test_bits_depend_on_the_column_alone(dtype, is_log):
    shape = (140, 13, 40)
    x, y = logits(shape, dtype), saved_output(shape, dtype, is_log)

    def launched(cores, outer=slice(None), inner=slice(None)):
        part, saved = (np.ascontiguousarray(array[outer, :, inner]) for array in (x, y))
        return FORWARD[is_log][cores](part, 1), BACKWARD[is_log][cores](part, saved, 1)

    whole = launched(2)
    for part in (launched(1), launched(2)):
        assert all(same_bits(left, right) for left, right in zip(whole, part, strict=True))
    for outer, inner in ((slice(0, 3), slice(7, 39)), (slice(1, 2), slice(3, 5)), (slice(2, 139), slice(1, 4))):
        for left, right in zip(whole, launched(2, outer, inner), strict=True):
            assert same_bits(left[outer, :, inner], right)


@IS_LOG
def test_in_place(is_log):
    dy, y = logits((130, 7, 9), BFLOAT16), saved_output((130, 7, 9), np.float32, is_log)
    expected = BACKWARD[is_log][2](dy, y, 1)
    assert same_bits(BACKWARD[is_log][2](dy.copy(), y, 1, inplace=True), expected)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("kind", Kind)
def test_few_instructions_take_large_tensors(kind, direction):
    # Transposed, this takes 36,000 instructions, and ten times as long or more.
    profiled = profile_softmax_launch((8, 21, 65536), 1, "float32", kind, direction)
    assert sum(profiled.instruction_counts.values()) <= 1000
    assert profiled.fraction_of_bound <= 2.0


def test_which_axes_are_short():
    types = (nl.bfloat16, nl.bfloat16)
    assert is_short(2, types, None)
    assert is_short(21, types, 21)
    assert not is_short(21, types, 20)
    assert not is_short(1024, types, None)
    assert not is_short(1, types, None)
