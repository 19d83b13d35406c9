# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Positions of [N, C, D]: each in one batch, and no row in two blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.experimental.loss.skeletons.indexed import Shape, batches_of_block, blocks_of, number_of_batches


@given(rows=st.integers(1, 200), places=st.integers(1, 200), classes=st.sampled_from([1, 7, 2**20, 2**29]))
def test_every_position_is_in_one_batch(rows: int, places: int, classes: int) -> None:
    shape = Shape(rows, classes, places)
    counts, numbers = np.zeros((rows, places), np.int8), []
    for block in blocks_of(shape):
        assert block.rows == 1 or block.rows * shape.row_size <= INDEX_LIMIT
        for batch in batches_of_block(shape, block):
            numbers.append(batch.number)
            first = block.first
            assert 1 <= batch.positions <= 128
            if batch.is_along_rows:
                counts[first : first + batch.positions, batch.place] += 1
            else:
                counts[first, batch.place : batch.place + batch.positions] += 1
    assert (counts == 1).all()
    assert numbers == list(range(number_of_batches(shape)))


def test_shapes() -> None:
    assert Shape.of((5, 7)) == Shape(5, 7, 1)
    assert Shape.of((5, 7, 2, 3)) == Shape(5, 7, 6)
