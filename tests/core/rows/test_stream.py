# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.rows.stream``: chunks of matrices, loaded ahead of the computation; and the order in which overlapping
pieces are begun and finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.core.rows.stream
import nkilib.simulator
from nkilib.core.rows.batches import batches_of_core
from nkilib.core.rows.stream import Stream, run_overlapped
from nkilib.nki import nisa, nki, nl

from .walk import BF16, CUTS, FP32, UNIT, Cut, assert_within, cuts, launch, stream_of, vector


def copied(matrix_hbm: Any, cut: Cut, buffers: int = 3, dtype: Any = nl.float32) -> Any:
    """A kernel: a matrix, chunk by chunk, into a new one."""
    result_hbm = nl.ndarray(matrix_hbm.shape, dtype=dtype, buffer=nl.shared_hbm, name="copy_hbm")
    batches = batches_of_core(cut.rows, nl.num_programs(), nl.program_id(), cut.rows_per_batch)
    if batches:
        shape = (batches[0].rows, cut.chunk_size)
        stream = Stream.make(
            matrix_hbm, batches, [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(buffers)]
        )
        for load in range(stream.loads):
            nisa.dma_copy(dst=stream.chunk(load).of(result_hbm), src=stream.loaded(load))
    return result_hbm


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_chunks_of_a_stream_are_the_matrix(cut: Cut) -> None:
    matrix = cut.normal()
    np.testing.assert_array_equal(launch(copied, cut, matrix), matrix)


@given(cuts(), st.integers(1, 4))
def test_whatever_the_chunks_and_buffers(cut: Cut, buffers: int) -> None:
    matrix = np.arange(1, cut.rows * cut.columns + 1, dtype=np.float32).reshape(cut.rows, cut.columns)
    np.testing.assert_array_equal(launch(copied, cut, matrix, buffers=buffers), matrix)


@pytest.mark.parametrize(("given_type", "tile_type"), [(FP32, nl.bfloat16), (BF16, nl.float32)])
def test_a_load_rounds_to_the_type_of_the_buffers(given_type: Any, tile_type: Any) -> None:
    cut = Cut(9, 37, 4, 10, cores=2)
    matrix = cut.normal().astype(given_type)
    result = launch(copied, cut, matrix, dtype=tile_type)
    np.testing.assert_array_equal(result.astype(np.float32), matrix.astype(BF16).astype(np.float32))


@pytest.mark.parametrize(("buffers", "ahead"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_every_chunk_is_loaded_once_and_as_many_ahead_as_there_are_buffers(
    buffers: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three or more buffers is left to the chunk before, which is still being stored."""
    issued: list[Any] = []
    known: list[int] = []

    def dma_copy(dst: Any, src: Any) -> None:
        issued.append(dst)
        nisa.dma_copy(dst=dst, src=src)

    def kernel(matrix_hbm: Any) -> None:
        tiles = [nl.ndarray((2, 3), dtype=nl.float32, buffer=nl.sbuf) for _ in range(buffers)]
        stream = Stream.make(matrix_hbm, batches_of_core(5, 1, 0, 2), tiles)
        assert (stream.chunk_size, stream.num_chunks, stream.loads) == (3, 4, 12)
        for load in range(stream.loads):
            stream.loaded(load)
            known.append(len(issued))

    monkeypatch.setattr(nkilib.core.rows.stream, "nisa", SimpleNamespace(dma_copy=dma_copy))
    nki.jit(kernel)(np.ones((5, 10), np.float32))
    assert known == [min(load + ahead, 12) for load in range(12)]


def test_chunks_say_where_they_are() -> None:
    stream = Stream.make(
        nkilib.simulator.spec((5, 10), "float32"),  # type: ignore[arg-type]
        batches_of_core(5, 1, 0, 2),
        [nkilib.simulator.spec((2, 4), "float32")],  # type: ignore[list-item]
    )
    chunks = [stream.chunk(load) for load in range(stream.loads)]
    assert [(chunk.batch.first, chunk.number, chunk.start, chunk.end, chunk.columns) for chunk in chunks] == [
        (first, number, start, end, end - start)
        for first in (0, 2, 4)
        for number, (start, end) in enumerate([(0, 4), (4, 8), (8, 10)])
    ]
    assert [chunk.load for chunk in chunks] == list(range(9))


@dataclass(frozen=True)
class RowSums:
    """The sums of the chunks of a batch's rows, [rows, chunks]."""

    sums_sbuf: Any

    @classmethod
    def make(cls, rows: int, chunks: int) -> RowSums:
        return cls(nl.ndarray((rows, chunks), dtype=nl.float32, buffer=nl.sbuf))

    def take(self, tile_sbuf: Any, chunk: int) -> None:
        nisa.tensor_reduce(dst=self.sums_sbuf[:, chunk : chunk + 1], op=nl.add, data=tile_sbuf, axis=1)

    def total(self) -> Any:
        total_sbuf = nl.ndarray((self.sums_sbuf.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total_sbuf, op=nl.add, data=self.sums_sbuf, axis=1)
        return total_sbuf


def rows_over_their_sums(matrix_hbm: Any, cut: Cut) -> Any:
    """A kernel that reads each batch twice: for the sums of its rows, then to divide them by these."""
    result_hbm = nl.ndarray(matrix_hbm.shape, dtype=nl.float32, buffer=nl.shared_hbm, name="shares_hbm")
    stream = stream_of(matrix_hbm, cut, visits=2)
    for load in range(stream.loads if stream else 0):
        chunk, tile_sbuf = stream.chunk(load), stream.loaded(load)
        if load // stream.num_chunks % 2 == 0:
            if chunk.number == 0:
                sums = RowSums.make(chunk.batch.rows, stream.num_chunks)
            sums.take(tile_sbuf, chunk.number)
            continue
        if chunk.number == 0:
            share_sbuf = sums.total()
            nisa.reciprocal(dst=share_sbuf, data=share_sbuf)
        nisa.tensor_scalar(dst=tile_sbuf, data=tile_sbuf, op0=nl.multiply, operand0=share_sbuf)
        nisa.dma_copy(dst=chunk.of(result_hbm), src=tile_sbuf)
    return result_hbm


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_stream_may_visit_its_batches_twice(cut: Cut) -> None:
    matrix = np.random.default_rng(1).uniform(0.5, 2.0, (cut.rows, cut.columns)).astype(np.float32)
    exact = matrix / matrix.astype(np.float64).sum(axis=1, keepdims=True)
    result = launch(rows_over_their_sums, cut, matrix)
    units = 4.0 + np.log2(cut.columns) + cut.columns / cut.chunk_size
    assert_within(result, exact, units * UNIT * exact)


def dot_products(first_hbm: Any, second_hbm: Any, cut: Cut) -> Any:
    """A kernel: the dot product of each row of one matrix with that of another, which has another type."""
    result_hbm = vector("dot_hbm", cut.rows)
    first, second = stream_of(first_hbm, cut), stream_of(second_hbm, cut, nl.bfloat16)
    for load in range(first.loads if first else 0):
        chunk = first.chunk(load)
        assert second.chunk(load) == chunk
        product_sbuf = nl.ndarray((chunk.batch.rows, chunk.columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=product_sbuf, data1=first.loaded(load), data2=second.loaded(load), op=nl.multiply)
        if chunk.number == 0:
            sums = RowSums.make(chunk.batch.rows, first.num_chunks)
        sums.take(product_sbuf, chunk.number)
        if chunk.number == first.num_chunks - 1:
            rows = slice(chunk.batch.first, chunk.batch.first + chunk.batch.span, chunk.batch.cores)
            nisa.dma_copy(dst=result_hbm.reshape((cut.rows, 1))[rows], src=sums.total())
    return result_hbm


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_two_streams_run_beside_each_other(cut: Cut) -> None:
    first, second = cut.normal(2), cut.normal(3).astype(BF16)
    products = first.astype(np.float64) * second.astype(np.float64)
    units = 2.0 + np.log2(cut.columns) + cut.columns / cut.chunk_size
    result = launch(dot_products, cut, first, second)
    assert_within(result, products.sum(axis=1), units * UNIT * np.abs(products).sum(axis=1))


@dataclass
class Recorded:
    """A stream of pieces, by number, and the work on them: what was done, in order."""

    sizes: list[int]
    done: list[str] = field(default_factory=list)

    @property
    def visits(self) -> int:
        return len(self.sizes)

    def pieces(self, visit: int) -> list[int]:
        self.done.append(f"visit {visit}")
        first = sum(self.sizes[:visit])
        return list(range(first, first + self.sizes[visit]))

    def begin(self, placed: int) -> str:
        self.done.append(f"begin {placed}")
        return f"begun {placed}"

    def finish(self, placed: int, begun: str) -> None:
        assert begun == f"begun {placed}"
        self.done.append(f"finish {placed}")


@pytest.mark.parametrize(
    ("sizes", "done"),
    [
        ([], []),
        ([0], ["visit 0"]),
        ([1], ["visit 0", "begin 0", "finish 0"]),
        (
            [2, 1],
            ["visit 0", "begin 0", "begin 1", "finish 0", "visit 1", "begin 2", "finish 1", "finish 2"],
        ),
    ],
    ids=str,
)
def test_a_piece_is_finished_after_the_next_one_has_begun(sizes: list[int], done: list[str]) -> None:
    """Across visits too: a visit loads ahead before the last piece of the one before is finished."""
    recorded = Recorded(sizes)
    run_overlapped(recorded, recorded)
    assert recorded.done == done
