# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.row_sums``: a number for each part of a row, of which some are added up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.core.rows.row_sums import RowSums
from nkilib.nki import nisa, nki, nl

ROWS, COLUMNS, PART = 5, 12, 4


@nki.jit
def sums_of_parts(matrix_hbm: Any, rows: int, parts: int) -> Any:
    """A kernel that sums the first `parts` parts of the first `rows` rows."""
    sums = RowSums.make(ROWS, COLUMNS // PART)
    nisa.memset(dst=sums.parts_sbuf, value=float("nan"))
    for number in range(parts):
        part_sbuf = nl.ndarray((rows, PART), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=part_sbuf, src=matrix_hbm[0:rows, number * PART : (number + 1) * PART])
        nisa.tensor_reduce(dst=sums.part(number, rows), op=nl.add, data=part_sbuf, axis=1)
    total_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    sums.total(total_sbuf, parts)
    result_hbm = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm, name="result_hbm")
    nisa.dma_copy(dst=result_hbm, src=total_sbuf)
    return result_hbm


@pytest.mark.parametrize(("rows", "parts"), [(ROWS, COLUMNS // PART), (3, 2)], ids=["all", "some"])
def test_the_parts_that_are_there_are_added_up(rows: int, parts: int) -> None:
    matrix = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    result = np.asarray(sums_of_parts(matrix, rows, parts))
    np.testing.assert_array_equal(result[:, 0], matrix[:rows, : parts * PART].sum(axis=1))
