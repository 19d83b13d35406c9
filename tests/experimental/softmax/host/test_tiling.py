# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the tiling is what the kernels take by themselves, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.experimental.softmax import SoftmaxTiling, choose_softmax_tiling
from nkilib.experimental.softmax.kind import Kind
from nkilib.experimental.softmax.row_plan import SBUF_BYTES, Streams, largest_row, row_plan
from tests.experimental.softmax.row_checks import DTYPES, KERNELS


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
