# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rows of student and teacher on chip: values of the rows of a core, and chunks of the logits of both models.

N positions, V classes, T the temperature. A *row* is a position, or the part of one on a partition; the *shift* of a
row is subtracted from its logits before exponentials are taken; a *chunk* is some columns of a batch of rows
(:data:`CoreBatch`), and a *piece* some columns of a chunk, as many as a tile of a piece holds. A chunk is *opened* when
its loads are issued.

Values are float32 tiles [128, batches], one number per row: the shifts and sums of one model's exponentials
(:class:`Exponentials`), vectors from HBM (:func:`loaded_rows`, :func:`valid_mask` of labels), and the results that are
stored in HBM (:class:`Vectors`). The temperatures of rows are factors of such values (:class:`RowTemperatures`). Chunks
of both logits are loaded side by side (:class:`PairStream`, which yields :class:`PairChunk`), into :class:`Buffers`,
which also hold the scratch memory. :func:`raise_lowest` replaces -inf, and :func:`add_nan_of_empty` marks rows that
have no distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Generic

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import Batch, BatchGroup, RowsOfMatrix
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.core.rows.scale import ConstantScale, Scale
from nkilib.core.rows.stream import Chunk, Rows, SplitRows, Stream
from nkilib.core.rows.tiles import clamp
from nkilib.experimental.loss.distillation.launch import (
    LOWEST,
    POSITIONS,
    TEMPERATURE_LIMITS,
    Launch,
    Part,
    tile_dtype,
)
from nkilib.experimental.loss.distillation.tiling import IN_FLIGHT
from nkilib.experimental.loss.temperatures import LoadedRows, Temperatures
from nkilib.nki import nisa, nl

# A factor whose product with LOWEST is -inf, and whose product with any other logit is not.
_BEYOND = 2.0**20
# Tiles for pieces, in round-robin order: Scalar writes one while Vector reads the other.
_PIECE_SLOTS = 2

# The rows of a core that are processed at a time: positions, or parts of positions, one in each partition.
CoreBatch = Batch | SplitRows


def row_tile(count: int, value: float = 0.0) -> nl.NkiTensor:
    """Allocate a float32 tile with one number for each row of ``count`` batches, set to ``value``."""
    tile_sbuf = nl.ndarray((POSITIONS, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile_sbuf, value=value)
    return tile_sbuf


def column(tile_sbuf: nl.NkiTensor, batch: int, rows: int) -> nl.NkiTensor:
    """Return the values of one batch: a view [rows, 1]."""
    return tile_sbuf[0:rows, batch : batch + 1]


@dataclass(frozen=True)
class Exponentials:
    """The shifts, and the sums of shifted exponentials, of the rows of one model (student or teacher).

    A number c near the maximum of a row is subtracted from its logits x before their exponentials are summed.

    Attributes:
        scale: 1 / T, of all rows or of each.
        neg_shift_sbuf: -c, in units of logits.
        bias_sbuf: -c / T; the same tile where T is 1.
        sums_sbuf: S, the sum of exp((x - c) / T).
    """

    scale: Scale
    neg_shift_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, batches: int, scale: Scale) -> Exponentials:
        """Allocate the tiles of ``batches`` batches; unused rows of the last batch have c = 0 and S = 1."""
        neg_shift_sbuf = row_tile(batches)
        bias_sbuf = neg_shift_sbuf if scale.is_one else row_tile(batches)
        return cls(scale, neg_shift_sbuf, bias_sbuf, row_tile(batches, 1.0))

    def take_shift(self, sample_sbuf: nl.NkiTensor, batch: int, is_further: bool = False) -> None:
        """Set the shift c of each row of a batch to the maximum of a sample, and of the old c if ``is_further``."""
        rows, _ = sample_sbuf.shape
        shift_sbuf = column(self.neg_shift_sbuf, batch, rows)
        exact_sbuf = nl.ndarray((rows, 1), dtype=sample_sbuf.dtype, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=exact_sbuf, op=nl.maximum, data=sample_sbuf, axis=1, negate=True)
        if is_further:
            nisa.tensor_tensor(dst=shift_sbuf, data1=shift_sbuf, data2=exact_sbuf, op=nl.minimum)
        else:
            clamp(shift_sbuf, exact_sbuf, 1.0)
        self.set_bias(batch, rows)

    def set_bias(self, batch: int, rows: int) -> None:
        """Compute the bias -c / T of a batch of rows from their shifts c."""
        if not self.scale.is_one:
            nisa.tensor_scalar(
                dst=column(self.bias_sbuf, batch, rows),
                data=column(self.neg_shift_sbuf, batch, rows),
                op0=nl.multiply,
                operand0=self.scale.of(batch, rows),
            )

    def take(
        self, dst: nl.NkiTensor, logits_sbuf: nl.NkiTensor, batch: int, sum_sbuf: nl.NkiTensor | None = None
    ) -> None:
        """Compute exp((x - c) / T) of a range of columns, and their sum if ``sum_sbuf`` is given.

        Args:
            dst: the exponentials, in the shape of the logits.
            logits_sbuf: the logits x, [rows, columns].
            batch: the number of the batch.
            sum_sbuf: the sum, [rows, 1]; None for none.
        """
        rows = logits_sbuf.shape[0]
        bias_sbuf, scale = column(self.bias_sbuf, batch, rows), self.scale.of(batch, rows)
        if sum_sbuf is None:
            nisa.activation(dst=dst, op=nl.exp, data=logits_sbuf, bias=bias_sbuf, scale=scale)
            return
        nisa.activation(
            dst=dst,
            op=nl.exp,
            data=logits_sbuf,
            bias=bias_sbuf,
            scale=scale,
            reduce_op=nl.add,
            reduce_res=sum_sbuf,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )


def raise_lowest(logits_sbuf: nl.NkiTensor) -> None:
    """Replace -inf by ``LOWEST`` (finite), in place, so that the difference of two logits is never NaN."""
    nisa.tensor_scalar(dst=logits_sbuf, data=logits_sbuf, op0=nl.maximum, operand0=LOWEST)


def _raise_lowest_on_both(logits_sbuf: nl.NkiTensor, lowest_sbuf: nl.NkiTensor) -> None:
    """Replace -inf by ``LOWEST``, like :func:`raise_lowest`; if the logits are float32, GpSimd processes half of them.

    Args:
        logits_sbuf: the logits, [rows, columns].
        lowest_sbuf: ``LOWEST``, float32 [128, 1].
    """
    rows, columns = logits_sbuf.shape
    half = columns // 2 if logits_sbuf.dtype == nl.float32 else 0
    raise_lowest(logits_sbuf[:, 0 : columns - half])
    if half > 0:
        second_sbuf = logits_sbuf[:, columns - half : columns]
        nisa.tensor_tensor(
            dst=second_sbuf,
            data1=second_sbuf,
            data2=lowest_sbuf[0:rows, :].broadcast(1, half),
            op=nl.maximum,
            engine=nisa.engine.gpsimd,
        )


def add_nan_of_empty(values_sbuf: nl.NkiTensor, neg_shift_sbuf: nl.NkiTensor) -> None:
    """Add NaN to rows whose logits are all -inf, as in PyTorch, and to rows with a +inf or NaN; add 0 to the others."""
    suspect_sbuf = nl.ndarray(values_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=suspect_sbuf, data=neg_shift_sbuf, op0=nl.multiply, operand0=_BEYOND, op1=nl.multiply, operand1=0.0
    )
    nisa.tensor_tensor(dst=values_sbuf, data1=values_sbuf, data2=suspect_sbuf, op=nl.add)


@dataclass(frozen=True)
class Vectors:
    """The results of the forward in HBM, float32 [N] each, in the order in which the kernel returns them."""

    loss_hbm: nl.NkiTensor
    moment_hbm: nl.NkiTensor
    student_shift_hbm: nl.NkiTensor
    student_sum_hbm: nl.NkiTensor
    teacher_shift_hbm: nl.NkiTensor
    teacher_sum_hbm: nl.NkiTensor

    @classmethod
    def make(cls, positions: int) -> Vectors:
        """Allocate the vectors, uninitialized."""
        vectors = [
            nl.ndarray((positions,), dtype=nl.float32, buffer=nl.shared_hbm, name=vector.name) for vector in fields(cls)
        ]
        return cls(*vectors)

    def of_part(self, part: Part) -> Vectors:
        """Return views of the vectors for the positions of a part."""
        return Vectors(*(part.of(vector_hbm) for vector_hbm in self.returned()))

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return all vectors, in the order in which the kernel returns them."""
        return tuple(getattr(self, vector.name) for vector in fields(self))


def _groups_of(batches: Sequence[Batch]) -> list[BatchGroup]:
    """Return the batches of a core as groups whose batches have equally many rows: the full ones, and the last one."""
    if not batches:
        return []
    last = len(batches) - 1
    starts = [0] if last == 0 or batches[last].rows == batches[0].rows else [0, last]
    return [
        BatchGroup(start, end, batches[start].first, batches[start].rows, batches[start].cores)
        for start, end in zip(starts, [*starts[1:], last + 1], strict=True)
    ]


def loaded_rows(
    vector_hbm: nl.NkiTensor, batches: Sequence[CoreBatch], dtype: nl.DType = nl.float32, fill: int = 0
) -> nl.NkiTensor:
    """Load the values of a core's rows from a vector [N] into a tile [128, batches].

    Each part of a position gets the value of the position.

    Args:
        vector_hbm: the vector.
        batches: the batches of the core.
        dtype: the dtype of the tile.
        fill: the value of unused rows of a batch.
    """
    tile_sbuf = nl.ndarray((POSITIONS, len(batches)), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile_sbuf, value=fill)
    for number, rows in enumerate(batches):
        if isinstance(rows, SplitRows):
            rows.batch.load_values(vector_hbm, column(tile_sbuf, number, rows.rows))
    for group in _groups_of([rows for rows in batches if isinstance(rows, Batch)]):
        rows_hbm = vector_hbm.slice(
            0, group.first, group.first + (group.rows * group.batches - 1) * group.cores + 1, group.cores
        )
        nisa.dma_copy(
            dst=tile_sbuf[0 : group.rows, group.start : group.end],
            src=rows_hbm.reshape_dim(0, (group.batches, group.rows)).permute((1, 0)),
        )
    return tile_sbuf


def valid_mask(labels_sbuf: nl.NkiTensor, ignore_index: int) -> nl.NkiTensor:
    """Return a mask, uint32: 1 where a label is not ``ignore_index``, else 0. Labels are compared as integers."""
    rows, batches = labels_sbuf.shape
    counts_sbuf = nl.ndarray((rows, batches), dtype=nl.uint32, buffer=nl.sbuf)
    ignored_sbuf = int32_column(rows, ignore_index, 0).broadcast(1, batches)
    integer_op(counts_sbuf, labels_sbuf, ignored_sbuf, nl.not_equal)
    return counts_sbuf


@dataclass(frozen=True)
class CoreRows:
    """A loader of per-row values, for all rows of a core; unused rows of the last batch get the value 1."""

    batches: Sequence[CoreBatch]

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Load a vector [N] into a tile [128, batches]."""
        return loaded_rows(vector_hbm, self.batches, dtype, fill=1)


@dataclass(frozen=True)
class RowTemperatures:
    """The temperatures T of rows as factors of tiles: T and 1 / T, one for all rows or one for each."""

    temperature: Scale
    scale: Scale

    @classmethod
    def of(cls, launch: Launch, rows: LoadedRows, shape: tuple[int, int]) -> RowTemperatures:
        """Return the temperatures of rows, which are loaded if each position has a temperature.

        Args:
            rows: a loader of values of these rows from a vector [N].
            shape: (rows, batches).
        """
        if launch.temperature_hbm is None:
            temperature = launch.options.temperature
            return cls(ConstantScale(temperature), ConstantScale(1.0 / temperature))
        valid_sbuf = None
        if launch.labels_hbm is not None:
            valid_sbuf = valid_mask(rows.loaded(launch.labels_hbm, nl.int32), launch.options.ignore_index)
        loaded = Temperatures.load(launch.temperature_hbm, rows, shape, TEMPERATURE_LIMITS, valid_sbuf)
        return cls(loaded.factors, loaded.scale(1.0))


@dataclass(frozen=True)
class Piece:
    """A range of columns of a chunk, and a tile for it.

    Attributes:
        number: the index of the piece in its chunk.
        start, end: the columns of the piece, counted in the chunk.
        tile: the tile, float32 [rows, columns].
    """

    number: int
    start: int
    end: int
    tile: nl.NkiTensor

    def of(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the columns of the piece in a tile of the chunk's size."""
        return tile_sbuf[:, self.start : self.end]


@dataclass(frozen=True)
class Buffers:
    """The buffers on chip for chunks of one size.

    Attributes:
        student, teacher: the tiles into which logits are loaded.
        pairs: one view of both tiles of each chunk, [128, 2, columns]; empty if their dtypes differ.
        scratch: float32 tiles by their purpose, used round-robin.
        unread_sbuf: a tile for values that are only summed; nothing reads it.
        piece_tiles: the tiles of pieces, used round-robin: in PSUM; but in SBUF if positions are split, because chunks
            are short then, and GpSimd does not read PSUM.
        lowest_sbuf: ``LOWEST``, [128, 1].
    """

    student: list[nl.NkiTensor]
    teacher: list[nl.NkiTensor]
    pairs: list[nl.NkiTensor]
    scratch: dict[str, list[nl.NkiTensor]]
    unread_sbuf: nl.NkiTensor
    piece_tiles: list[nl.NkiTensor]
    lowest_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, ahead: int, scratch: dict[str, int], piece_columns: int = 0) -> Buffers:
        """Allocate the buffers of a kernel.

        Args:
            ahead: the number of chunks that are opened before the current one is processed.
            scratch: the number of tiles for each purpose, by name.
            piece_columns: the largest number of columns of a piece, of which PSUM holds two; 0 means no pieces.
        """
        size = launch.tiling.chunk_size

        def tiles(count: int, dtype: nl.DType, *middle: int) -> list[nl.NkiTensor]:
            return [nl.ndarray((POSITIONS, *middle, size), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]

        piece = min(size, piece_columns)
        slots, of_pieces = _PIECE_SLOTS if piece else 0, nl.sbuf if launch.is_split else nl.psum
        student_dtype, teacher_dtype = tile_dtype(launch.student_hbm.dtype), tile_dtype(launch.teacher_hbm.dtype)
        count = IN_FLIGHT + ahead
        pairs = tiles(count, student_dtype, 2) if student_dtype == teacher_dtype else []
        return cls(
            [tile_sbuf[:, 0, :] for tile_sbuf in pairs] or tiles(count, student_dtype),
            [tile_sbuf[:, 1, :] for tile_sbuf in pairs] or tiles(count, teacher_dtype),
            pairs,
            {name: tiles(count, nl.float32) for name, count in scratch.items()},
            tiles(1, nl.bfloat16)[0],
            [nl.ndarray((POSITIONS, piece), dtype=nl.float32, buffer=of_pieces) for _ in range(slots)],
            row_tile(1, LOWEST),
        )

    @property
    def ahead(self) -> int:
        """The number of chunks that are opened before the current chunk is processed."""
        return len(self.student) - IN_FLIGHT

    def raise_lowest(self, load: int, student_sbuf: nl.NkiTensor, teacher_sbuf: nl.NkiTensor) -> None:
        """Replace -inf by ``LOWEST`` in both logits of chunk number ``load``, in place.

        If both are bfloat16, this takes one instruction. Vector has no time for all float32 logits: GpSimd takes half
        of the teacher's.
        """
        rows, columns = student_sbuf.shape
        if self.pairs and student_sbuf.dtype == nl.bfloat16:
            raise_lowest(self.pairs[load % len(self.pairs)][0:rows, :, 0:columns])
            return
        raise_lowest(student_sbuf)
        _raise_lowest_on_both(teacher_sbuf, self.lowest_sbuf)

    def tile(self, name: str, load: int, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the scratch tile for purpose ``name`` and chunk number ``load``, in the shape of ``like_sbuf``."""
        rows, columns = like_sbuf.shape
        tiles = self.scratch[name]
        return tiles[load % len(tiles)][0:rows, 0:columns]

    def pieces(self, load: int, like_sbuf: nl.NkiTensor) -> list[Piece]:
        """Return the pieces into which chunk number ``load`` is cut; ``like_sbuf`` is a tile of the shape of that
        chunk.
        """
        rows, columns = like_sbuf.shape
        size, slots = self.piece_tiles[0].shape[1], len(self.piece_tiles)
        most = div_ceil(self.student[0].shape[1], size)
        return [
            Piece(
                number,
                start,
                min(start + size, columns),
                self.piece_tiles[(load * most + number) % slots][0:rows, 0 : min(size, columns - start)],
            )
            for number, start in enumerate(range(0, columns, size))
        ]


@dataclass(frozen=True)
class PairChunk(Generic[Rows]):
    """A chunk of student's and teacher's logits.

    Attributes:
        chunk: the chunk of the stream.
        visit: the index of its rows in the list of rows that the stream visits.
        student_sbuf, teacher_sbuf: the logits, [rows, columns]; -inf is replaced if the pass needs differences.
        difference_sbuf: teacher - student, or the reverse, float32; None if the pass needs no differences.
    """

    chunk: Chunk[Rows]
    visit: int
    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor
    difference_sbuf: nl.NkiTensor | None

    @property
    def difference(self) -> nl.NkiTensor:
        """The difference of the logits.

        Raises:
            AssertionError: if this pass over the chunk computes none.
        """
        if self.difference_sbuf is None:
            raise AssertionError("this visit takes no differences")
        return self.difference_sbuf


def load_columns(
    rows: RowsOfMatrix | SplitRows, matrix_hbm: nl.NkiTensor, start: int, end: int, chunk_sbuf: nl.NkiTensor
) -> None:
    """Issue the load of columns ``start`` to ``end`` of rows into a tile."""
    if isinstance(rows, SplitRows):
        rows.load(matrix_hbm, start, end, chunk_sbuf, LOWEST)
    else:
        nisa.dma_copy(dst=chunk_sbuf, src=rows.part_of(matrix_hbm, start, end))


def store(chunk: Chunk[CoreBatch], matrix_hbm: nl.NkiTensor, chunk_sbuf: nl.NkiTensor) -> None:
    """Store a tile [rows, columns] as a chunk of a matrix."""
    if isinstance(chunk.batch, SplitRows):
        chunk.batch.store(matrix_hbm, chunk.start, chunk.end, chunk_sbuf)
    else:
        nisa.dma_copy(dst=chunk.of(matrix_hbm), src=chunk_sbuf)


@dataclass(frozen=True)
class PairStream(Generic[Rows]):
    """A stream of the student's and the teacher's logits, in chunks of the same rows and columns.

    Attributes:
        student, teacher: the stream of each matrix of logits.
        buffers: the buffers on chip.
        is_reverse: whether differences are student - teacher.
        has_differences: for each entry of the list of rows, whether its chunks need differences.
        at_opening: a function that is called with each chunk when the chunk is opened; or None.
        raise_lowest: the function that replaces -inf in a chunk before differences are taken; None for
            :meth:`Buffers.raise_lowest`.
        opened: the chunks that are on chip, or being loaded, by their numbers.
    """

    student: Stream[Rows]
    teacher: Stream[Rows]
    buffers: Buffers
    is_reverse: bool
    has_differences: list[bool]
    at_opening: Callable[[PairChunk[Rows]], None] | None
    raise_lowest: Callable[[PairChunk[Rows]], None] | None
    opened: dict[int, PairChunk[Rows]] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        launch: Launch,
        visits: list[Rows],
        buffers: Buffers,
        has_differences: list[bool],
        at_opening: Callable[[PairChunk[Rows]], None] | None = None,
        raise_lowest: Callable[[PairChunk[Rows]], None] | None = None,
    ) -> PairStream[Rows]:
        """Return a stream of the rows ``visits``, which are visited in this order.

        See the class for the other arguments.
        """
        return cls(
            Stream.make(launch.student_hbm, visits, buffers.student, columns=launch.row_columns),
            Stream.make(launch.teacher_hbm, visits, buffers.teacher, columns=launch.row_columns),
            buffers,
            launch.is_reverse,
            has_differences,
            at_opening,
            raise_lowest,
        )

    @property
    def num_chunks(self) -> int:
        """The number of chunks per row."""
        return self.student.num_chunks

    def taken(self, load: int) -> PairChunk[Rows]:
        """Return chunk number ``load`` for processing; call it with 0, 1, 2, ...

        The next chunks are opened before: GpSimd computes their differences while Vector and Scalar process this one.
        """
        self._open_all(load, load + self.buffers.ahead)
        return self.opened.pop(load)

    def opened_chunk(self, load: int) -> PairChunk[Rows]:
        """Return chunk number ``load``, opened ahead, before :meth:`taken` returns it."""
        self._open_all(load, load)
        return self.opened[load]

    def _open_all(self, first: int, last: int) -> None:
        for number in range(first, min(last + 1, self.student.loads)):
            if number not in self.opened:
                self.opened[number] = self._open(number)

    def _load(self, load: int) -> None:
        """Issue the loads that are due when chunk ``load`` is opened, of the student's and the teacher's logits
        alternately.

        With the first chunk these are ``IN_FLIGHT`` chunks, later one more chunk. By then the buffer of that chunk is
        free, because the chunk that was in it has been taken.
        """
        for number in range(0 if load == 0 else load + IN_FLIGHT - 1, min(load + IN_FLIGHT, self.student.loads)):
            for side in (self.student, self.teacher):
                chunk = side.chunk(number)
                load_columns(chunk.batch, side.matrix_hbm, chunk.start, chunk.end, side.on_chip(number))

    def _open(self, load: int) -> PairChunk[Rows]:
        self._load(load)
        student_sbuf, teacher_sbuf = self.student.on_chip(load), self.teacher.on_chip(load)
        visit = load // self.num_chunks
        pair = PairChunk(self.student.chunk(load), visit, student_sbuf, teacher_sbuf, None)
        if self.has_differences[visit]:
            if self.raise_lowest is None:
                self.buffers.raise_lowest(load, student_sbuf, teacher_sbuf)
            else:
                self.raise_lowest(pair)
            difference_sbuf = self.buffers.tile("difference", load, student_sbuf)
            first_sbuf, second_sbuf = (student_sbuf, teacher_sbuf) if self.is_reverse else (teacher_sbuf, student_sbuf)
            nisa.tensor_tensor(
                dst=difference_sbuf, data1=first_sbuf, data2=second_sbuf, op=nl.subtract, engine=nisa.engine.gpsimd
            )
            pair = replace(pair, difference_sbuf=difference_sbuf)
        if self.at_opening is not None:
            self.at_opening(pair)
        return pair
