# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the tiling is what the kernels take by themselves, and results do not depend on it.

The choice is compared to the last bit. Launches of one input run under many tilings, and under smaller limits.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.hardware import PARTITIONS
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.core.rows.row_plan import SBUF_BYTES, Streams, largest_row, row_plan
from nkilib.experimental.softmax import SoftmaxTiling, choose_softmax_tiling
from nkilib.experimental.softmax.columns.plan import Layout
from nkilib.experimental.softmax.tensors import Kind
from tests.experimental.plans.softmax import TYPES, Launched, assert_right, inputs_of, launch, loop_of
from tests.experimental.softmax.softmax_checks import DTYPES, KERNELS

BFLOAT16, FLOAT32, WIDENED, MIXED = TYPES
each_kernel = pytest.mark.parametrize("kernel", KERNELS)
# Columns that are transposed, strided and short; rows that are tiny, short, in pieces, and on several partitions.
SHAPES = [(2, 1100, 140), (130, 70, 3), (3, 40, 130), (260, 24, 1), (130, 200, 1), (5, 3000, 1), (2, 40003, 1)]
# From pieces of a few elements to more than a plan takes by itself; 40 is the whole of a short column.
CHUNK_SIZES = (None, 24, 40, 128, 333, 512, 1000, 2048, 5000)


@pytest.mark.parametrize("columns", [7, 128, 1000, 3000, 9000, 40003])
def test_the_kernels_take_what_is_chosen(columns: int) -> None:
    for kernel in KERNELS.values():
        for dtype in DTYPES[::2]:
            inputs = kernel.inputs((2, columns), dtype)
            direction = "backward" if kernel.is_backward else "forward"
            kind = Kind.LOG_SOFTMAX if kernel.is_log else Kind.SOFTMAX
            tiling = choose_softmax_tiling((2, columns), -1, dtype, direction, kind=kind)
            assert kernel.function[2](*inputs).tobytes() == kernel.function[2](*inputs, **tiling._asdict()).tobytes()


def test_other_axes_choose_by_themselves() -> None:
    assert choose_softmax_tiling((2, 300, 4), 1, np.float32, "forward") == SoftmaxTiling(None)
    assert choose_softmax_tiling((2, 300, 1), 1, np.float32, "forward").chunk_size is not None


@pytest.mark.parametrize("streams", [Streams(2, 8, 2), Streams(4, 20, 4), Streams(8, 40, 4)])
def test_plans_hold_every_column_once_and_fit(streams: Streams) -> None:
    for row_size in (1, 2, 80, 81, 512, 513, 4097, 32128, 40009, 202408, 262144, largest_row(streams)):
        for chunk_size in (None, 1000):
            plan = row_plan("softmax_forward", row_size, streams, chunk_size)
            assert 1 <= plan.parts <= PARTITIONS and 0 <= plan.tail < plan.parts
            assert plan.parts * plan.width + plan.tail == row_size
            pieces = plan.pieces(plan.rows_each)
            elements = sum(piece.size for piece in pieces)
            assert elements == plan.rows_each * plan.columns
            assert max(piece.size for piece in pieces) <= max(plan.piece_size, plan.columns)
            assert plan.batches_on_chip >= (3 if row_size < 300000 else 1)
            used = plan.batches_on_chip * elements * streams.resident + plan.piece_size * streams.scratch
            assert used <= SBUF_BYTES


def test_a_row_that_does_not_stay_on_chip_is_refused() -> None:
    streams = Streams(8, 10, 4)
    assert row_plan("softmax_forward", largest_row(streams), streams, None).batches_on_chip == 1
    with pytest.raises(
        AssertionError, match=f"must have at most {largest_row(streams)} elements .*, got 9000000; split"
    ):
        row_plan("softmax_forward", 9_000_000, streams, None)


@each_kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("types", [FLOAT32, BFLOAT16], ids=lambda types: types[0])
def test_every_chunk_size_gives_the_result(
    kernel: str, shape: tuple[int, int, int], types: tuple[str, str, str]
) -> None:
    launched = Launched(kernel, *shape, types, 2)
    inputs = inputs_of(launched)
    # Chunks of few elements of long rows or columns make programs of many thousand instructions.
    sizes = [size for size in CHUNK_SIZES if size is None or shape[1] <= 40 * size]
    results = [launch(launched, inputs, chunk_size=size) for size in sizes]
    for result in results:
        assert_right(launched, inputs, result)
    if types is FLOAT32:
        assert_near(launched, inputs, results)


@each_kernel
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 1300), st.integers(2, 700), st.sampled_from([1, 2, 130, 200]), st.sampled_from(TYPES))
def test_any_chunk_size(kernel: str, chunk_size: int, length: int, inner: int, types: tuple[str, str, str]) -> None:
    launched = Launched(kernel, 1, length, inner, types, 2)
    inputs = inputs_of(launched)
    assert_right(launched, inputs, launch(launched, inputs, chunk_size=chunk_size))


def assert_near(launched: Launched, inputs: list[np.ndarray], results: list[np.ndarray]) -> None:
    """Compare every float32 result with the first one.

    Each of the two may differ from float64 by the bound, so they may differ from each other by twice the bound.
    """
    kernel = KERNELS[launched.kernel]
    bound = kernel.bound(*inputs, 1, results[0].dtype)
    for result in results[1:]:
        assert (np.abs(result.astype(np.float64) - results[0]) <= 2.0 * bound).all()


@each_kernel
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_no_limit_and_no_layout_changes_a_bit_of_columns(kernel: str, types: tuple[str, str, str]) -> None:
    launched = Launched(kernel, 2, 2100, 260, types, 1)
    inputs = inputs_of(launched)
    expected = launch(launched, inputs)
    assert_right(launched, inputs, expected)
    plans = set()
    for kilobytes in (64, 72, 80, 90, 110, 130, 150, 208):
        with shrunk(PlanLimits(sbuf_bytes=kilobytes * 1024)):
            try:
                loop = loop_of(launched, 0)
            except AssertionError:  # no window fits
                continue
            plan = loop.plan
            key = plan.layout, len(plan.parts), plan.is_read_twice, len(plan.windows), plan.buffers, loop.kept
            if key in plans:
                continue
            plans.add(key)
            for cores in (1, 2):
                assert launch(launched._replace(cores=cores), inputs).tobytes() == expected.tobytes()
    assert len(plans) >= 2, plans


@each_kernel
def test_columns_of_every_layout_are_bitwise_identical(kernel: str) -> None:
    """A few columns alone in a tensor are strided, where columns beside others are transposed."""
    launched = Launched(kernel, 130, 100, 130, FLOAT32, 2)
    inputs = inputs_of(launched)
    whole = launch(launched, inputs)
    few = launched._replace(inner=3)
    part = launch(few, [np.ascontiguousarray(array[:, :, 5:8]) for array in inputs])
    assert loop_of(few, 1).plan.layout is Layout.STRIDED
    assert loop_of(launched, 1).plan.layout is Layout.TENSOR_TRANSPOSED
    assert part.tobytes() == np.ascontiguousarray(whole[:, :, 5:8]).tobytes()
