# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How the kernels of these tests go through a matrix, and the matrices: nothing here computes what a test expects.

`stream_of` and `visits` are for use inside kernels, which add to them what they are about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import Batch, BatchGroup, batch_groups, batches_of_core
from nkilib.core.rows.sbuf import SbufPlan
from nkilib.core.rows.statistics import Columns, Place, most_batches_of_group
from nkilib.core.rows.stream import Chunk, Stream
from nkilib.nki import nki, nl

Array = npt.NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
FP32 = np.dtype(np.float32)
UNIT = 2.0**-23
SMALL_BYTES = 12288


@dataclass(frozen=True)
class Cut:
    """How a matrix is cut up.

    Attributes:
        rows, columns: the sizes of the matrix.
        rows_per_batch, chunk_size: the sizes of a chunk.
        cores: the number of cores of the launch.
    """

    rows: int
    columns: int
    rows_per_batch: int
    chunk_size: int
    cores: int = 1

    def __str__(self) -> str:
        tiles = f"{self.rows_per_batch} x {self.chunk_size}"
        return f"{self.rows} x {self.columns} as {tiles} on {self.cores}"

    def normal(self, seed: int = 0, spread: float = 3.0) -> Array:
        """A matrix of noise."""
        return np.random.default_rng(seed).standard_normal((self.rows, self.columns), np.float32) * np.float32(spread)


# One row and column; a core without rows; ragged batches and chunks; a group of batches; columns that restart, twice.
CUTS = [
    Cut(1, 1, 1, 1),
    Cut(1, 9, 4, 4, cores=2),
    Cut(7, 50, 3, 16),
    Cut(7, 50, 3, 16, cores=2),
    Cut(130, 33, 128, 33, cores=2),
    Cut(45, 20, 2, 7),
    Cut(5, 300, 2, 1, cores=2),
    Cut(3, 129, 2, 1),
    Cut(3, 128, 2, 1),
    Cut(2, 1040, 1, 4),
]


@st.composite
def cuts(draw: st.DrawFn, most_rows: int = 20, most_columns: int = 40) -> Cut:
    """Any of a small matrix."""
    columns = draw(st.integers(1, most_columns))
    return Cut(
        draw(st.integers(1, most_rows)),
        columns,
        draw(st.integers(1, most_rows)),
        draw(st.integers(1, columns)),
        draw(st.integers(1, 2)),
    )


def launch(kernel: Callable[..., Any], cut: Cut, *arguments: Any, **options: Any) -> Any:
    """Return the results of a kernel, which takes the cut after its other arguments."""
    return nki.jit(kernel)[cut.cores](*arguments, cut, **options)


def vector(name: str, rows: int, dtype: Any = nl.float32) -> Any:
    """Make a result of one number a row, in a kernel."""
    return nl.ndarray((rows,), dtype=dtype, buffer=nl.shared_hbm, name=name)


def stream_of(matrix_hbm: Any, cut: Cut, dtype: Any = nl.float32, visits: int = 1) -> Stream[Batch] | None:
    """Make the stream of the core's chunks, each batch visited `visits` times; None for a core without rows."""
    batches = batches_of_core(cut.rows, nl.num_programs(), nl.program_id(), cut.rows_per_batch)
    if not batches:
        return None
    order = [batch for batch in batches for _ in range(visits)]
    loads = len(order) * div_ceil(cut.columns, cut.chunk_size)
    sbuf = SbufPlan(SMALL_BYTES).divided(batches[0].rows, cut.chunk_size, dtype, loads)
    return Stream.make(matrix_hbm, order, sbuf.buffers())


@dataclass(frozen=True)
class Visit:
    """A chunk on chip, and where what is known of it is kept.

    Attributes:
        group: the group of its batch.
        columns: the layout of the group's tiles.
        chunk: its place in the matrix.
        place: its place in the tiles.
        tile_sbuf: [rows, columns of the chunk].
        chunks: the number of chunks of a row.
    """

    group: BatchGroup
    columns: Columns
    chunk: Chunk[Batch]
    place: Place
    tile_sbuf: Any
    chunks: int

    @property
    def starts(self) -> bool:
        """It is the first one of its group."""
        return self.place == Place(0, 0) and self.chunk.number == 0

    @property
    def is_full(self) -> bool:
        """There is no column for it before the others are combined."""
        return self.columns.are_full(self.chunk.number)

    @property
    def ends(self) -> bool:
        """It is the last one of its group."""
        return self.place.batch == self.group.batches - 1 and self.chunk.number == self.chunks - 1


def visits(stream: Stream[Batch]) -> Iterator[Visit]:
    """Yield the chunks of a core one after the other, in a kernel."""
    chunks = stream.num_chunks
    for group in batch_groups(stream.batches, most_batches_of_group(chunks)):
        columns = Columns.of_group(group, chunks)
        for load in range(group.start * chunks, group.end * chunks):
            chunk = stream.chunk(load)
            place = columns.place(load // chunks - group.start, chunk.number)
            yield Visit(group, columns, chunk, place, stream.loaded(load), chunks)


HARD = {
    "all -inf": [-np.inf] * 6,
    "one finite": [-np.inf, -np.inf, 2.0, -np.inf, -np.inf, -np.inf],
    "-inf first": [-np.inf, -np.inf, -np.inf, 1.0, 2.0, 0.0],
    "-inf last": [1.0, 2.0, 0.0, -np.inf, -np.inf, -np.inf],
    "+inf": [0.0, np.inf, 1.0, -3.0, 0.0, 0.0],
    "two +inf": [0.0, np.inf, 1.0, -3.0, np.inf, 0.0],
    "+inf and -inf": [-np.inf, 1.0, 1.0, np.inf, -np.inf, 0.0],
    "NaN": [1.0, 2.0, np.nan, 0.0, -1.0, 3.0],
    "NaN and +inf": [np.inf, 2.0, 0.0, 0.0, -1.0, np.nan],
    "all equal": [2.5] * 6,
    "equal largest": [1.0, 4.0, 0.0, 4.0, 4.0, -1.0],
    "huge": [3e38, 2.9e38, -3e38, 3e38, 0.0, 1e38],
    "all lowest": [-3.4e38] * 6,
    "tiny": [1e-38, -1e-38, 1e-45, 0.0, -0.0, 1e-40],
    "ascending": [-40.0, -20.0, 0.0, 20.0, 40.0, 60.0],
    "large, small differences": [1e5, 1e5 + 0.125, 1e5 + 0.25, 1e5, 1e5 + 1.0, 1e5 - 3.0],
}


def hard_matrix() -> Array:
    """A row of each kind."""
    return np.array(list(HARD.values()), np.float32)


def assert_within(actual: Array, exact: Array, bound: Array | float, names: list[str] | None = None) -> None:
    """|actual - exact| <= bound where both are finite; elsewhere both are the same infinity, or NaN."""
    assert actual.shape == exact.shape
    values = actual.astype(np.float64)
    same = (values == exact) | (np.isnan(values) & np.isnan(exact))
    with np.errstate(invalid="ignore"):
        good = same | (np.isfinite(values) & np.isfinite(exact) & (np.abs(values - exact) <= bound))
    wrong = np.flatnonzero(~good.reshape(len(good), -1).all(axis=1))
    rows = [names[row] for row in wrong] if names else list(wrong)
    assert not len(wrong), f"rows {rows}: got {values[wrong]}, expected {exact[wrong]}"
