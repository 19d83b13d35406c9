# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the tiling is what the kernels take by themselves, and results do not depend on it.

The choice is compared to the last bit. Launches of one input run under many tilings, and under smaller limits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.softmax import SoftmaxTiling, choose_softmax_tiling
from nkilib.experimental.softmax.columns.plan import Layout
from nkilib.experimental.softmax.row_plan import SBUF_BYTES, RowPlan, Streams, kept_plan, largest_row, row_plan
from nkilib.experimental.softmax.rows import forward_plan
from nkilib.experimental.softmax.rows_backward import backward_plan
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind
from nkilib.nki import nl
from tests.experimental.plans.softmax import TYPES, Launched, assert_right, inputs_of, launch, loop_of
from tests.experimental.softmax.softmax_checks import DTYPES, KERNELS, Kernel

BFLOAT16, FLOAT32, WIDENED, MIXED = TYPES
each_kernel = pytest.mark.parametrize("kernel", KERNELS)
# Columns that are transposed, strided and short; rows that are tiny, short, in pieces, and on several partitions.
SHAPES = [(2, 1100, 140), (130, 70, 3), (3, 40, 130), (260, 24, 1), (130, 200, 1), (5, 3000, 1), (2, 40003, 1)]
# From pieces of a few elements to more than a plan takes by itself; 40 is the whole of a short column.
CHUNK_SIZES = (None, 24, 40, 128, 333, 512, 1000, 2048, 5000)


def chosen(kernel: Kernel, shape: tuple[int, int], dtype: Any) -> SoftmaxTiling:
    direction = "backward" if kernel.is_backward else "forward"
    return choose_softmax_tiling(shape, -1, dtype, direction, kind=Kind.LOG_SOFTMAX if kernel.is_log else Kind.SOFTMAX)


@pytest.mark.parametrize("columns", [7, 128, 1000, 3000, 9000, 40003])
def test_the_kernels_take_what_is_chosen(columns: int) -> None:
    """Check the choice for many rows, which is the default, and the chunk size that belongs to partitions of few."""
    for kernel in KERNELS.values():
        for dtype in DTYPES[::2]:
            inputs = kernel.inputs((2, columns), dtype)
            of_many, of_few = chosen(kernel, (1000, columns), dtype), chosen(kernel, (2, columns), dtype)
            assert of_many.partitions_per_row is None
            result = kernel.function[2](*inputs)
            assert result.tobytes() == kernel.function[2](*inputs, **of_many._asdict()).tobytes()
            result = kernel.function[2](*inputs, partitions_per_row=of_few.partitions_per_row)
            assert result.tobytes() == kernel.function[2](*inputs, **of_few._asdict()).tobytes()


@pytest.mark.parametrize(
    ("shape", "direction", "partitions"),
    [
        ((1, 32000), "forward", 128),
        ((32, 32000), "forward", 8),
        ((4, 8, 32000), "forward", 8),
        ((33, 16000), "forward", 4),
        ((64, 8192), "forward", 4),
        ((128, 4096), "backward", 2),
        ((129, 4096), "backward", None),  # a core has 65 rows, and two parts of them do not fit at once
        ((2, 2047), "forward", None),  # so short that combining parts takes longer than what they save
        ((2, 2047), "backward", 8),
        ((2, 999), "backward", None),
        ((32, 151936), "forward", None),  # 16 partitions anyway, and two batches
    ],
)
def test_few_rows_take_the_partitions_that_would_be_idle(
    shape: tuple[int, ...], direction: str, partitions: int | None
) -> None:
    for kind in Kind:
        assert choose_softmax_tiling(shape, -1, "bfloat16", direction, kind=kind).partitions_per_row == partitions


def test_other_axes_choose_by_themselves() -> None:
    assert choose_softmax_tiling((2, 300, 4), 1, np.float32, "forward") == SoftmaxTiling(None)
    assert choose_softmax_tiling((2, 300, 1), 1, np.float32, "forward").chunk_size is not None


def assert_every_column_once(plan: RowPlan, streams: Streams) -> None:
    """Assert also that the tiles fit, those of kept values included."""
    assert 1 <= plan.parts <= PARTITIONS and 0 <= plan.tail < plan.parts
    assert plan.parts * plan.width + plan.tail == plan.row_size
    pieces = plan.pieces(plan.rows_each)
    elements = sum(piece.size for piece in pieces)
    assert elements == plan.rows_each * plan.columns
    assert max(piece.size for piece in pieces) <= max(plan.piece_size, plan.columns)
    of_pieces = streams.scratch + FLOAT32_BYTES * plan.kept_pieces
    assert plan.batches_on_chip * elements * streams.resident + plan.piece_size * of_pieces <= SBUF_BYTES


@pytest.mark.parametrize("least_parts", [None, 2, 100, PARTITIONS])
@pytest.mark.parametrize("streams", [Streams(2, 8, 2), Streams(4, 20, 4), Streams(8, 40, 4)])
def test_plans_hold_every_column_once_and_fit(streams: Streams, least_parts: int | None) -> None:
    for row_size in (1, 2, 80, 81, 512, 513, 4097, 32128, 40009, 202408, 262144, largest_row(streams)):
        for chunk_size in (None, 1000):
            plan = row_plan("softmax_forward", row_size, streams, chunk_size, least_parts=least_parts)
            assert_every_column_once(plan, streams)
            assert plan.batches_on_chip >= (3 if row_size < 300000 else 1)
            assert plan.parts >= min(least_parts or 1, row_size)


@pytest.mark.parametrize("least_parts", [None, 2, 100])
@pytest.mark.parametrize("streams", [Streams(2, 3, 2), Streams(2, 15, 4)])
def test_plans_that_keep_exponentials_have_tiles_for_them(streams: Streams, least_parts: int | None) -> None:
    sizes = (2049, 4096, 4097, 5001, 16000, 16384, 20000, 50257, 151936, 1_000_003, 2_000_000)
    plans = {
        (size, chunk): kept_plan(size, streams, chunk, least_parts)
        for size in sizes
        for chunk in (None, 300, 1000, 9000)
    }
    for (row_size, chunk_size), plan in plans.items():
        if plan is None:
            continue
        assert_every_column_once(plan, streams)
        assert chunk_size is None or plan.piece_size <= chunk_size
        # Of a row all pieces, of which none is finished before all are there, and more are processed meanwhile.
        assert plan.kept_pieces >= plan.pieces_per_row + 3
        assert plan.batches_on_chip >= 2 and plan.batches_on_chip * plan.pieces_per_row > plan.kept_pieces
        by_itself = plans[row_size, None]
        assert by_itself is not None and plan.parts == by_itself.parts >= (least_parts or 1)
    if least_parts is None:
        assert all(plans[size, None] is not None for size in sizes if size < 1_000_000)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 2_000_000), st.sampled_from(list(Kind)), st.sampled_from([None, None, 1, 2, 7, 32, 100, 128]))
def test_the_piece_that_a_plan_takes_by_itself_gives_that_plan(
    row_size: int, kind: Kind, least_parts: int | None
) -> None:
    for types in ((nl.bfloat16, nl.bfloat16), (nl.float16, nl.float32), (nl.float32, nl.float32)):
        dtypes = BackwardTypes(*types, types[0])
        forward = forward_plan(row_size, kind, *types, None, least_parts)
        backward = backward_plan(row_size, kind, dtypes, None, least_parts)
        assert forward == forward_plan(row_size, kind, *types, forward.piece_size, least_parts)
        assert backward == backward_plan(row_size, kind, dtypes, backward.piece_size, least_parts)


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
