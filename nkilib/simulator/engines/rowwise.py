# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Elementwise instructions and reductions of rows, computed a few rows at a time so that float32 temporaries stay in
the CPU's cache.

- :func:`compute`: runs an elementwise instruction (:class:`Rowwise`), and reduces its results into the accumulator
  registers of the engine (:class:`Accumulation`).
- :func:`reduce_rows`: runs an instruction that only reduces rows.
- :class:`SourceRows`, :class:`ResultRows`, :func:`column`: operands and results, some rows at a time, in the blocks of
  :func:`blocks_of_rows` or :func:`blocks_of_destination`.
- :func:`is_worth_deferring`, :func:`is_same_view`, :func:`is_in_16_bits`: properties of tiles that decide how the tiles
  are computed.

``rows`` is a slice of the partitions of the instruction's tile; an array of rows has the shape (rows, elements per
partition). A ``slot`` is the name of a scratch buffer of the core. A ``Block`` is a pair of slices, rows and columns.

Large elementwise results are *deferred*: computed when an instruction reads them (memory/deferred.py). A store to HBM
computes them directly in HBM. Another instruction computes one block of rows at a time in a buffer that stays in the
cache, so that only the last results of a chain of instructions are written to memory. The operations on an element and
their order are the same as without deferring, and the results are bitwise identical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..machine.core import Core
from ..memory.deferred import Block, Deferred, Rectangle
from ..memory.storage import Storage
from ..numerics.casts import FLOAT32, copy_as_float32, store_float, to_float32
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import DType, bfloat16, tfloat32

Float32s = npt.NDArray[np.float32]

# 512 Ki float32 values are 2 MiB, the size of a server core's second-level cache: the interpreter's own cost of a block
# is small beside the work, and two cores seldom wait for each other's. 256 Ki are level on one core and up to 5% slower
# on two.
BLOCK_ELEMENTS = 512 * 1024

# Smaller contents are computed at once: it takes no longer than remembering how. 256 KiB stay in a core's cache anyway.
SMALLEST_DEFERRED_BYTES = 1 << 18


def is_worth_deferring(tensor: NkiTensor) -> bool:
    """Return whether ``tensor`` has 256 KiB or more, so that deferring the computation of its elements saves time."""
    return tensor.size * tensor.dtype.itemsize >= SMALLEST_DEFERRED_BYTES


def blocks_of_rows(rows: int, width: int) -> list[slice]:
    """Return slices that divide ``rows`` rows of ``width`` elements into blocks of at most ``BLOCK_ELEMENTS``.

    If a single row has more elements, a block has one row.
    """
    if rows * width <= BLOCK_ELEMENTS:
        return [slice(0, rows)]
    step = max(1, BLOCK_ELEMENTS // width)
    return [slice(start, min(rows, start + step)) for start in range(0, rows, step)]


def is_same_view(first: NkiTensor, second: NkiTensor) -> bool:
    """Return whether two tensors are the same elements of one storage, read as the same type."""
    return first.storage is second.storage and first.layout == second.layout and first.dtype == second.dtype


def _overlaps(destination: NkiTensor, sources: tuple[Any, ...]) -> bool:
    for source in sources:  # a plain loop: every instruction comes here, and a generator costs a microsecond
        is_shared = isinstance(source, NkiTensor) and source.storage is destination.storage
        if is_shared and not is_same_view(source, destination):
            return True
    return False


def blocks_of_destination(destination: NkiTensor, width: int, *sources: Any) -> list[slice]:
    """Return slices that divide the partitions of ``destination`` into blocks, in which an instruction computes its
    results.

    If a source shares the storage of the destination through a different view, there is a single slice of all
    partitions: all of the source must then be read before anything is stored.

    Args:
        destination: the tile that receives the results.
        width: the number of elements to process per partition; a block has at most ``BLOCK_ELEMENTS`` of them.
        *sources: the operands of the instruction.
    """
    rows = destination.shape[0]
    if rows * width > BLOCK_ELEMENTS and _overlaps(destination, sources):
        return [slice(0, rows)]
    return blocks_of_rows(rows, width)


class SourceRows:
    """The rows of a tensor as float32 arrays, which the caller must not write to.

    Rows of a dense float32 tensor are read in place; other rows are cast into the scratch buffer ``slot``.

    Attributes:
        memory: the array that holds the rows of the tensor.
    """

    __slots__ = ("_core", "_is_direct", "_slot", "_width", "memory")

    def __init__(self, core: Core, slot: str, tensor: NkiTensor) -> None:
        self._core = core
        self._slot = slot
        self._width = tensor.free_size
        flat = tensor.rows_to_read
        self.memory: npt.NDArray[Any] = tensor.array if flat is None else flat
        self._is_direct = flat is not None and flat.dtype == FLOAT32

    def load(self, rows: slice, landing: Float32s | None = None) -> Float32s:
        """Return the values of ``rows`` in float32; they are valid until the next call.

        Args:
            rows: the slice of rows.
            landing: an array, outside the tensor's memory, that receives the values if they have to be cast; None: the
                scratch buffer receives them.
        """
        source = self.memory[rows]
        if self._is_direct:
            return source
        block = landing
        if block is None:
            count = rows.stop - rows.start
            block = self._core.scratch(self._slot, count * self._width).reshape(count, self._width)
        copy_as_float32(block if block.shape == source.shape else block.reshape(source.shape), source)
        return block


class ResultRows:
    """The memory into which an instruction computes its float32 results, some rows at a time.

    This memory is the tensor itself if the tensor is dense float32, else the scratch buffer ``slot``, from which
    :meth:`store` casts the results into the tensor.
    """

    __slots__ = ("_array", "_core", "_dtype", "_flat", "_slot", "_storage", "_width")

    def __init__(self, core: Core, slot: str, tensor: NkiTensor) -> None:
        self._core = core
        self._slot = slot
        self._array = tensor.array
        self._dtype = tensor.dtype
        self._storage = tensor.storage
        self._width = tensor.free_size
        is_float32 = self._array.dtype == FLOAT32 and tensor.dtype != tfloat32
        self._flat = tensor.flat_rows if is_float32 else None

    def open(self, rows: slice) -> Float32s:
        """Return the array into which the caller computes the results of ``rows``."""
        if self._flat is not None:
            return self._flat[rows]
        return self._core.scratch(self._slot, (rows.stop - rows.start) * self._width).reshape(-1, self._width)

    def is_apart_from(self, source: NkiTensor) -> bool:
        """Return whether the arrays of :meth:`open` lie outside the memory of ``source``."""
        return self._flat is None or source.storage is not self._storage

    def store(self, rows: slice, values: Float32s) -> None:
        """Cast ``values``, which are in the array that :meth:`open` returned for ``rows``, into the tensor.

        Nothing is done if that array is the tensor itself.
        """
        if self._flat is None:
            store_float(self._array[rows], values, self._dtype)


def float32_rows(elements: npt.NDArray[Any], width: int) -> Float32s:
    """Return some rows of a tensor as a float32 array (rows, ``width``), which the caller must not write to.

    No copy is made if the rows are float32 already.
    """
    rows = elements if elements.ndim == 2 else elements.reshape(len(elements), width)
    if rows.dtype == FLOAT32:
        return rows
    values = np.empty(rows.shape, FLOAT32)
    copy_as_float32(values, rows)
    return values


def column(value: Any, rows: slice) -> Any:
    """Return a scalar operand in float32: a number, or a copy of the ``rows`` of a (P, 1) tensor."""
    if isinstance(value, NkiTensor):
        array = value.array if len(value.shape) == 2 else value.array.reshape(value.shape[0], 1)
        return array[rows].astype(FLOAT32)
    return np.float32(value)


def rows_of_operand(operand: Any, rows: slice) -> Any:
    """Return the ``rows`` of a scalar operand that :func:`column` returned for all rows; a number is unchanged."""
    return operand[rows] if isinstance(operand, np.ndarray) else operand


# Computes the results of some rows from the elements of the tiles and of the columns there. The array for the results
# may be the first of the tiles or, in place, any of them.
Apply = Callable[[list[Float32s], list[Any], Float32s], object]

# A content with this many nested deferred contents is computed before anything else is computed from it.
_DEEPEST = 4

# No rows and columns of a content.
_NOWHERE: Block = (slice(0, 0), slice(0, 0))


class Accumulation(Protocol):
    """The second effect of an instruction: its results are reduced over the free dimensions into accumulator registers.

    Attributes:
        destination: the (P, 1) tile that receives the registers afterwards, or None.
        initial: an initial value that replaces the registers: a number, or a (P, 1) tile; None if the call has none.
    """

    @property
    def is_active(self) -> bool: ...

    @property
    def destination(self) -> NkiTensor | None: ...

    @property
    def initial(self) -> Any: ...

    def begin(self) -> None:
        """Read the initial value before the instruction writes its results, which may overwrite this value."""

    def add_rows(self, rows: slice, values: Float32s, /) -> None:
        """Reduce ``values``, the results in ``rows``, to one value per row, and keep these values until
        :meth:`finish`.
        """

    def finish(self, rows: slice) -> None:
        """Combine the values of :meth:`add_rows` with the registers of ``rows``, and store the registers in
        ``destination``.
        """

    def pass_over(self, rows: slice) -> None:
        """Record which registers :meth:`finish` sets, in a launch that computes no values."""


class Rowwise(NamedTuple):
    """The computation of an instruction.

    Attributes:
        apply: the function that computes the results of some rows.
        scalars: the scalar operands for all rows.
    """

    apply: Apply
    scalars: list[Any]

    def __call__(self, tiles: list[Float32s], rows: slice, values: Float32s) -> None:
        self.apply(tiles, [rows_of_operand(scalar, rows) for scalar in self.scalars], values)


def _scratch(core: Core, slot: str, rows: int, columns: int) -> Float32s:
    return core.scratch(slot, rows * columns).reshape(rows, columns)


def _storage_buffer(core: Core, slot: str, shape: tuple[int, ...], numpy_type: np.dtype[Any]) -> npt.NDArray[Any]:
    size = shape[0] * shape[1]
    return core.scratch(slot, size).view(numpy_type)[:size].reshape(shape)


def _shifted(span: slice, by: int) -> slice:
    return slice(span.start + by, span.stop + by)


class _Input(NamedTuple):
    """An input tile of an instruction with deferred results, as it was when the instruction was issued.

    Attributes:
        memory: the array that holds the elements; None if the elements are deferred.
        content: the deferred computation of the elements; None if ``memory`` holds the elements.
        at: the rows and columns of ``content`` that the tile covers.
        sources: the arrays in HBM from which the elements are computed.
        operands: the storages, besides that of the results, from which the elements are computed.
        is_own: whether the elements are in, or are computed from, the memory that the results will overwrite.
        numpy_type: the type in which the storage holds the elements.
    """

    memory: npt.NDArray[Any] | None
    content: Deferred | None
    at: Block
    sources: tuple[npt.NDArray[Any], ...]
    operands: frozenset[object]
    is_own: bool
    numpy_type: np.dtype[Any]

    @property
    def depth(self) -> int:
        return 0 if self.content is None else self.content.depth

    def load(self, core: Core, block: Block, slot: str, landing: Float32s | None) -> Float32s:
        """Return the elements in the rows and columns ``block`` as float32.

        Elements that have to be computed or cast are written to ``landing`` if given, else to the scratch buffer
        ``slot``.
        """
        rows, columns = block
        if self.memory is not None and self.memory.dtype == FLOAT32:
            return self.memory[rows, columns]
        if landing is None:
            landing = _scratch(core, slot, rows.stop - rows.start, columns.stop - columns.start)
        if self.memory is not None:
            copy_as_float32(landing, self.memory[rows, columns])
            return landing
        assert self.content is not None
        is_float32 = self.numpy_type == FLOAT32
        stored = landing if is_float32 else _storage_buffer(core, f"{slot} as held", landing.shape, self.numpy_type)
        self.content.write(stored, _shifted(rows, self.at[0].start), _shifted(columns, self.at[1].start))
        if not is_float32:
            copy_as_float32(landing, stored)
        return landing


def _input(tile: NkiTensor, dst: NkiTensor, target: Rectangle) -> _Input | None:
    storage = tile.storage
    block = storage.block_of(tile.layout, tile.dtype)
    if block is None or tile.indirect_access is not None or storage.is_abstract:
        return None
    is_in_place = storage is dst.storage and block == target and tile.dtype == dst.dtype
    numpy_type = storage.numpy_type_of(tile.dtype)
    part = storage.part_with(block, tile.dtype)
    if part is not None and not part.content.may_grow and part.content.depth < _DEEPEST:
        content, sources = part.content, tuple(part.sources_within(block))
        if content.is_copy:
            return _Input(sources[0], None, _NOWHERE, sources, frozenset(), False, numpy_type)
        is_own = content.reads_itself and is_in_place
        operands = frozenset(content.operands)
        if content.reads_itself and not is_in_place:
            operands |= {storage}
        return _Input(None, content, part.within(block), sources, operands, is_own, numpy_type)
    rows = tile.flat_rows
    if rows is None:
        return None
    operands = frozenset() if is_in_place else frozenset({storage})
    return _Input(rows, None, _NOWHERE, (), operands, is_in_place, numpy_type)


def _is_column(tile: NkiTensor) -> bool:
    """Return whether a tile is a broadcast (P, 1) tile: one element repeated along each partition."""
    is_static = tile.indirect_access is None and not tile.storage.is_abstract
    return is_static and len(tile.shape) == 2 and tile.shape[1] > 1 and tile.strides[1] == 0


def _copy_of_column(tile: NkiTensor) -> Float32s:
    return np.broadcast_to(to_float32(tile.array[:, :1]), tile.shape)


def _input_of_column(elements: Float32s) -> _Input:
    return _Input(elements, None, _NOWHERE, (), frozenset(), False, FLOAT32)


def _inputs(dst: NkiTensor, tiles: Sequence[NkiTensor]) -> list[_Input] | None:
    """Return the inputs from which the results in ``dst`` can be computed later; None if the results must be
    computed at once.
    """
    target = dst.storage.block_of(dst.layout, dst.dtype)
    if target is None or dst.indirect_access is not None:
        return None
    # First, because reading them may compute deferred contents.
    columns = {number: _copy_of_column(tile) for number, tile in enumerate(tiles) if _is_column(tile)}
    inputs: list[_Input] = []
    for number, tile in enumerate(tiles):
        source = _input(tile, dst, target) if number not in columns else _input_of_column(columns[number])
        if source is None or dst.storage in source.operands:
            return None
        inputs.append(source)
    return inputs


class _Results:
    """The deferred results of an instruction.

    Once the results were computed twice, as by a reduction and then by a reader, deferring saves nothing: the core
    defers no further results.

    Attributes:
        computed: the number of results computed so far; a result that is computed twice counts twice.
        depth: 1 for results of inputs in memory, and 1 more than the deepest input for results of deferred inputs.
    """

    def __init__(self, core: Core, inputs: Sequence[_Input], apply: Rowwise, dst: NkiTensor) -> None:
        self._core = core
        self._inputs = inputs
        self._apply = apply
        self._dtype: DType = dst.dtype
        self._size = dst.size
        self.computed = 0
        self.depth = 1 + max(item.depth for item in inputs)
        self._slots = [f"source {number} of depth {self.depth}" for number in range(len(inputs))]
        self._result = f"result of depth {self.depth}"

    def blocks(self, part: Block, into: Float32s | None = None) -> Iterator[tuple[slice, Float32s]]:
        """Yield the results in the rows and columns ``part``, one block of rows at a time, with the slice of the rows.

        The results are computed in the array ``into``; without it, in a scratch buffer that the next block overwrites.
        """
        rows, columns = part
        width = columns.stop - columns.start
        for block in blocks_of_rows(rows.stop - rows.start, width):
            of_results = slice(rows.start + block.start, rows.start + block.stop)
            if into is None:
                values = _scratch(self._core, self._result, block.stop - block.start, width)
            else:
                values = into[block]
            # ``into`` may be memory from which the other tiles come.
            landing = values if into is None or len(self._inputs) == 1 else None
            loaded = [
                item.load(self._core, (of_results, columns), slot, landing if number == 0 else None)
                for number, (item, slot) in enumerate(zip(self._inputs, self._slots, strict=True))
            ]
            self._apply(loaded, of_results, values)
            yield block, values

    def write(self, elements: npt.NDArray[Any], rows: slice, columns: slice) -> None:
        """Write the results in ``rows`` and ``columns`` into ``elements``, an array of exactly their size."""
        is_direct = elements.dtype == FLOAT32 and self._dtype != tfloat32
        for block, values in self.blocks((rows, columns), elements if is_direct else None):
            if not is_direct:
                store_float(elements[block], values, self._dtype)
        self.computed += elements.size
        if self.computed >= 2 * self._size:
            self._core.stop_deferring()


def _defer_results(
    core: Core, dst: NkiTensor, inputs: Sequence[_Input], apply: Rowwise, reduction: Accumulation | None
) -> None:
    """Defer the results of an instruction in ``dst``: they are computed from ``inputs`` when an instruction reads them.

    The reduction of the results, if there is one, is computed at once.
    """
    results = _Results(core, inputs, apply, dst)
    if reduction is not None and reduction.is_active:
        for rows, values in results.blocks((slice(0, dst.shape[0]), slice(0, dst.free_size))):
            reduction.add_rows(rows, values)
        results.computed = dst.size
    operands: set[object] = set().union(*[item.operands for item in inputs])
    for operand in operands:
        assert isinstance(operand, Storage)
        operand.derive().readers.add(dst.storage)
    sources = tuple(source for item in inputs for source in item.sources)
    dst.storage.defer(
        Deferred(
            dst.layout,
            dst.dtype,
            results.write,
            sources,
            operands=operands,
            reads_itself=any(item.is_own for item in inputs),
            depth=results.depth,
        )
    )
    core.loads.add(dst.storage)


def _compute_now_or_later(
    core: Core, dst: NkiTensor, tiles: Sequence[NkiTensor], apply: Rowwise, reduction: Accumulation | None
) -> None:
    if core.defers_results and is_worth_deferring(dst):
        inputs = _inputs(dst, tiles)
        if inputs is not None:
            _defer_results(core, dst, inputs, apply, reduction)
            return
    sources = [SourceRows(core, f"source {number}", tile) for number, tile in enumerate(tiles)]
    if dst.storage.parts:
        dst.storage.overwrite(dst.layout, dst.dtype)
    result = ResultRows(core, "result", dst)
    is_apart = all([result.is_apart_from(tile) for tile in tiles])
    first, *others = sources
    for rows in blocks_of_destination(dst, dst.free_size, *tiles):
        values = result.open(rows)
        apply([first.load(rows, values if is_apart else None), *[source.load(rows) for source in others]], rows, values)
        if reduction is not None:
            reduction.add_rows(rows, values)
        result.store(rows, values)


def compute(
    core: Core,
    dst: NkiTensor,
    tiles: Sequence[NkiTensor],
    apply: Apply,
    reduction: Accumulation | None = None,
    columns: Sequence[Any] = (),
) -> None:
    """Compute the results of an elementwise instruction, at once or deferred.

    Args:
        core: the core that runs the instruction.
        dst: the tile of the results.
        tiles: the tiles that are read, with as many elements per partition as ``dst``.
        apply: the function that computes the results of some rows.
        reduction: the reduction of the results into registers, before the results are cast, or None.
        columns: the scalar operands, numbers or (P, 1) tiles; ``apply`` receives float32 copies, made before anything
            is written.
    """
    if core.emitter is not None:
        core.emitter.elementwise(dst, tiles, apply, reduction, columns)
        return
    every_row = slice(0, dst.shape[0])
    if dst.storage.is_abstract:  # only the effect on the registers is recorded
        if reduction is not None:
            reduction.pass_over(every_row)
        return
    scalars = [column(operand, every_row) for operand in columns]
    if reduction is not None:
        reduction.begin()
    _compute_now_or_later(core, dst, tiles, Rowwise(apply, scalars), reduction)
    if reduction is not None:
        reduction.finish(every_row)


# Computes the results of some rows, an array (rows, results), from their elements.
Reduce = Callable[[npt.NDArray[Any], Float32s], object]


def is_in_16_bits(tile: NkiTensor) -> bool:
    """Return whether a tile has bfloat16 elements that its storage holds in 16 bits each.

    With ``precise_fp=False`` bfloat16 elements are held in float32.
    """
    return tile.size > 0 and tile.dtype == bfloat16 and not tile.storage.is_widened


def reduce_rows(core: Core, dst: NkiTensor, tile: NkiTensor, reduce: Reduce, *, reads_bfloat16: bool = False) -> None:
    """Reduce the rows of ``tile`` with ``reduce`` and store the results in ``dst``, which has as many partitions.

    Args:
        core: the core that runs the instruction.
        dst: the tile of the results.
        tile: the tile that is read.
        reduce: the function that reduces some rows. It receives the rows in float32, and an array (rows, elements of
            ``dst`` in a partition) for the results.
        reads_bfloat16: whether ``reduce`` accepts bfloat16 rows without a cast, if the rows are dense and stored in 16
            bits.
    """
    if core.emitter is not None:
        core.emitter.reduce_rows(dst, tile, reduce, reads_bfloat16)
        return
    if dst.storage.is_abstract:
        return
    results = np.empty((tile.shape[0], dst.free_size), np.float32)
    bits = tile.rows_to_read if reads_bfloat16 and is_in_16_bits(tile) else None
    if bits is not None:
        reduce(bits, results)
    else:
        source = SourceRows(core, "source", tile)
        for rows in blocks_of_destination(tile, tile.free_size):
            reduce(source.load(rows), results[rows])
    store_float(dst.array, results, dst.dtype)
