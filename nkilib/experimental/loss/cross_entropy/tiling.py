# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the tiling of a cross-entropy launch (:func:`choose_tiling`). For host code; arithmetic only.

The time of a launch is estimated for each of some thirty chunk sizes; the largest size whose time is within 0.1% of the
least is chosen. A larger chunk has costs (no other work overlaps the first load and the last chunk) and savings (each
chunk has fixed costs). *Folds* are chunks of which GpSimd has halved the number of elements that Vector compares. The
estimate models differences between tilings, not times: terms that all tilings share are left out.
``nkilib.simulator.profile`` models times; tests compare the choice with these times.

The chosen ``positions_per_batch`` is always 128: every engine takes as long for one position as for 128.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from nkilib.core.cores import positions_of_core
from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, SPLITS, div_ceil
from nkilib.core.host.sizes import checked_size, dtype_name
from nkilib.core.plan_limits import PlanLimits, limited_sbuf_bytes, limits_in_force
from nkilib.core.rows.batches import SWAPPED_BATCHES_MIN
from nkilib.core.rows.checks import BATCH_BYTES_MAX, FREE_AXIS_MAX
from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.core.rows.recomputation import BATCHES_MAX
from nkilib.core.rows.sbuf import MAX_CHUNK_BUFFERS
from nkilib.core.rows.statistics import FOLDED_COLUMNS_MIN, STATISTICS_COLUMNS, most_batches_of_group
from nkilib.core.rows.stream import loads_in_flight, num_chunks
from nkilib.experimental.loss.cross_entropy.launch import (
    BESIDE_EXPONENTIALS,
    BUFFERS_OF_MAXIMUM,
    LARGEST_PLAN,
    PLAIN_PLAN,
    POSITIONS_PER_PARTITION_MAX,
    SHIFTED_PLAN,
    shift_pays,
)

# Kernels are launched on the two cores of a logical NeuronCore.
CORES = 2
POSITIONS_PER_BATCH = 128
# Equal chunks, from one to so many a row, leave no short one at the end. A short one at the end may be better: what
# comes after it is short as well, which only some round sizes offer.
_MOST_EQUAL_CHUNKS = 16
_ROUND_SIZES = (2048, 4096, 8192, 16384, 32768, 40960, 49152, FREE_AXIS_MAX)

# The partitions that each of the 16 DMA engines serves.
_PARTITIONS_OF_DMA_ENGINE = 8
# Nanoseconds, the same for trn2 and trn3: a row of a DMA at least; from the trigger to the first byte; from the last
# byte to the consumer; between two triggers; loading an activation table; a result until another engine can use it.
_DMA_ROW, _DMA_FIXED, _DMA_TO_CONSUMER, _DMA_TRIGGER = 58.0, 1000.0, 300.0, 600.0
_TABLE, _VECTOR_RESULT, _SCALAR_RESULT, _SYNC = 1280.0, 150.0, 300.0, 60.0
# The factor by which a DMA row takes longer if it is a single element of a result.
_SMALL_STORE = 2.0
# The results that the forward stores for every position: loss and log-sum-exp.
_RESULTS = 2
# Cycles: between two instructions; the least that one takes; reading a sum out of the accumulators.
_ISSUE, _LEAST, _READ_SUM = 100.0, 64.0, 64.0

# The remaining constants were fitted to the simulator's profiles of some two hundred launches of all sizes on trn2, in
# nanoseconds.
# Logs and results of a group of batches.
_GROUP = 3500.0
# The same under a shift: its logs and stores occupy Scalar and the DMA engines; the shift itself; the
# loop over recomputed rows, with no iteration.
_SHIFTED_GROUP, _SHIFT, _LOOP = 6000.0, 700.0, 25000.0
# The additional time of a chunk.
_SHIFTED_CHUNK = 180.0
# Stores of single elements delay loads, unless two are under way.
_SHIFTED_WITH_TWO_BUFFERS = 1.1
# Chunks that leave no room for folds are slow in the form with the exact maximum, which some options need.
_WITHOUT_FOLDS = 1.01
# Recomputed rows wait for long loads: of nearly equal tilings, the one with smaller chunks is faster.
_SHARE_AGAIN = 0.03
# Of two nearly equal tilings, the one with fewer chunks is faster: of a row under a shift, of a core otherwise,
# where short ones take twice that.
_CHUNK, _LOAD = 20.0, 65.0
# The time after its chunks at which a gather may end without delaying the losses.
_GATHER_SLACK = 2500.0
# GpSimd's work on the gather of a batch.
_GATHER_OF_GPSIMD = 1600.0
# In place, the first store waits for the gather; two chunks that are loaded meanwhile cover part of that.
_FIRST_STORE, _IDLE_BEFORE_STORES = 7300.0, 4000.0
# The first exponential waits for two activation tables.
_FIRST_EXPONENTIAL = 1500.0

# In the backward, of two nearly equal tilings, the one that waits less for a long first load is faster.
_SHARE_OF_LOAD, _LONG_LOAD = 0.05, 2000.0
# In the backward, engines wait for each other where a row is one long chunk: of each batch.
_LONG_ALONE = 200.0
# In the backward, loads wait for stores where buffers are few.
_OF_FEW_BUFFERS = {1: 1.1, 2: 1.1, 3: 1.01}


# Several partitions a position: for more classes than so many, of which each partition has from so many to so many. A
# further batch costs as much as so many bytes.
_SPLIT_CLASSES_MIN, _PART_MIN, _PART_MAX, _BYTES_OF_BATCH = 512, 128, 500_000, 14_000
# If the columns that a partition processes become so small a share of those of one position a partition, by direction
# and by whether elements have 16 bits; and the least share of a batch that a last one of few positions costs.
_SPLIT_SHARES = {("forward", True): 0.8, ("forward", False): 0.97, ("backward", True): 0.97, ("backward", False): 1.0}
_LAST_BATCH = {"forward": 1.0, "backward": 0.6}
# Several positions a partition: for up to so many classes, whatever the number of positions is; and for up to so many
# if the positions of a core are many. For each of them, a forward of several batches may have positions of so many
# bytes, and a backward so many classes, and more of them in float32 if it is the plain one; or half of that, if some
# positions are left over for a batch of their own.
_PACKED_CLASSES, _PACKED_CLASSES_MAX = {"forward": 1024, "backward": 2048}, 4096
_PACKED_BYTES, _PACKED_BACKWARD, _PACKED_PLAIN_BACKWARD_OF_FLOAT32 = 24, 8, 16

# Of tilings whose estimates differ by less than that, the largest chunks are taken: they need the fewest instructions.
_AS_GOOD = 1.001


class Tiling(NamedTuple):
    """The sizes of batches and chunks of a launch, to pass to a kernel: ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        positions_per_batch: the number of positions that are processed at a time.
        chunk_size: the number of classes that are processed at a time.
        partitions_per_position, positions_per_partition: the layout of positions on partitions; 1 and 1 for one
            position per partition. A launch whose options require one position per partition ignores the layout.
    """

    positions_per_batch: int
    chunk_size: int
    partitions_per_position: int = 1
    positions_per_partition: int = 1


class _Machine(NamedTuple):
    """The properties of a hardware generation that determine the estimates.

    The values are copied from ``nkilib/simulator/hardware``, which is not imported on a device; a test compares the
    two.

    Attributes:
        sbuf_bytes: usable bytes per partition of SBUF.
        vector_ns, scalar_ns: the nanoseconds of a cycle of Vector and of Scalar.
        dma_byte_ns: the nanoseconds per byte on a DMA engine.
        scalar_bf16_per_cycle: the bfloat16 elements that Scalar processes per cycle.
    """

    sbuf_bytes: int
    vector_ns: float
    scalar_ns: float
    dma_byte_ns: float
    scalar_bf16_per_cycle: int

    @property
    def gpsimd_ns(self) -> float:
        return self.scalar_ns


_MACHINES = {
    "trn2": _Machine(212_984, 1 / 0.96, 1 / 1.2, 1 / 23.0, 1),
    "trn3": _Machine(245_752, 1 / 1.2, 1 / 1.2, 1 / 33.0, 2),
}


class _Tiles(NamedTuple):
    """The bytes per partition of the tiles other than chunk buffers.

    Attributes:
        small: bytes of small tiles, independent of the chunk size.
        most: bytes of scratch per element of a chunk with every option set; a chosen chunk size leaves room for them.
        usual: bytes of scratch per element of a chunk without options; the estimate assumes that the rest is chunk
            buffers.
    """

    small: int
    most: int
    usual: int


_PLAIN_TILES = {"forward": _Tiles(SHIFTED_PLAN.small_bytes, 0, 0), "backward": _Tiles(PLAIN_PLAN.small_bytes, 0, 0)}
# Every tile of scratch there can be, and one more: two of each are faster than one where not all are there.
_EXTENDED_SCRATCH = (LARGEST_PLAN.num_scratch + 1) * FLOAT32_BYTES
_EXTENDED_TILES = {
    "forward": _Tiles(LARGEST_PLAN.small_bytes, _EXTENDED_SCRATCH, 0),
    # The exponentials of two chunks.
    "backward": _Tiles(LARGEST_PLAN.small_bytes, _EXTENDED_SCRATCH, 2 * FLOAT32_BYTES),
}

_ITEMSIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
_DIRECTIONS = ("forward", "backward")


def choose_tiling(
    num_positions: int, vocab_size: int, dtype: Any, direction: str, target: str = "trn2", *, extended: bool = False
) -> Tiling:
    """Return the tiling that is modelled to be fastest on two cores, or nearly.

    In the model (not measured), the time of the chosen tiling is within 3% of the best tiling of a search on trn2, in a
    few launches of some 20 us within 4%. Results are cached for repeated calls.

    Example::

        tiling = choose_tiling(4096, 128256, nl.bfloat16, "forward")
        loss, lse = cross_entropy_forward[2](logits, targets, **tiling._asdict())

    Args:
        num_positions: N, rows of the logits.
        vocab_size: V, columns of the logits.
        dtype: the type of the logits and of the tiles, bfloat16, float16 or float32: an NKI, numpy or torch type, or
            its name.
        direction: ``"forward"`` or ``"backward"``.
        target: ``"trn2"`` or ``"trn3"``.
        extended: whether the tiling is for the extended kernels. The chosen tiling then fits with any options (up to 20
            more bytes of a partition per class of a chunk), and is the fastest one without options.

    Returns:
        A tiling that the kernels accept for logits [N, V] on the target.

    Raises:
        TypeError: if a size is no integer.
        ValueError: if a size is out of range, or if ``dtype``, ``direction`` or ``target`` is unknown.
    """
    positions = checked_size("choose_tiling", "num_positions", num_positions, "logits")
    entries = checked_size("choose_tiling", "vocab_size", vocab_size, "logits")
    if entries > INDEX_LIMIT:
        raise ValueError(
            f"choose_tiling: vocab_size must be at most {INDEX_LIMIT}, the reach of an int32 index, got {entries}; "
            f"split the vocabulary"
        )
    name = dtype_name(dtype)
    if name not in _ITEMSIZES:
        raise ValueError(
            f"choose_tiling: dtype must be bfloat16, float16 or float32, got {dtype!r}; pass the dtype of the kernel's "
            f"tiles"
        )
    if not isinstance(direction, str) or direction not in _DIRECTIONS:
        raise ValueError(
            f'choose_tiling: direction must be "forward" or "backward", got {direction!r}; name the kernel to launch'
        )
    if not isinstance(target, str) or target not in _MACHINES:
        raise ValueError(
            f'choose_tiling: target must be "trn2" or "trn3", got {target!r}; the kernels need trn2 or newer, because '
            f"gather and scatter with a vector offset do"
        )
    return _chosen(positions, entries, name, direction, target, bool(extended), limits_in_force())


@lru_cache(maxsize=1024)
def _chosen(
    num_positions: int,
    vocab_size: int,
    dtype: str,
    direction: str,
    target: str,
    extended: bool,
    limits: PlanLimits,  # for the cache alone: the values read below obey them
) -> Tiling:
    machine = _MACHINES[target]
    machine = machine._replace(sbuf_bytes=limited_sbuf_bytes(machine.sbuf_bytes))
    tiles = (_EXTENDED_TILES if extended else _PLAIN_TILES)[direction]
    estimate = _backward_ns
    is_forward = direction == "forward"
    if is_forward:
        estimate = _forward_ns if extended else _faster_forward_ns

    estimates = {
        size: estimate(_launch(machine, num_positions, vocab_size, dtype, size, tiles, is_forward), machine)
        for size in _chunk_sizes(vocab_size, dtype, machine, tiles)
    }
    least = min(estimates.values())
    chunk_size = max(size for size, time in estimates.items() if time <= _AS_GOOD * least)
    return Tiling(
        POSITIONS_PER_BATCH, chunk_size, *_layout(num_positions, vocab_size, _ITEMSIZES[dtype], direction, extended)
    )


def _layout(num_positions: int, vocab_size: int, itemsize: int, direction: str, extended: bool) -> tuple[int, int]:
    """Return the partitions per position and positions per partition that are modelled to be fastest.

    With ``extended`` and a 16-bit type, a position is split only if a core then has one batch: with an entropy, several
    batches of split positions take longer than the form with a shift.
    """
    positions = positions_of_core(num_positions, CORES, 0)

    def columns(parts: int) -> float:
        batches = div_ceil(positions, PARTITIONS // parts)
        return batches * vocab_size / parts + (batches - 1) * _BYTES_OF_BATCH / itemsize

    earlier, last = divmod(positions - 1, PARTITIONS)
    of_last = max(_LAST_BATCH[direction], min(1.0, (last + 1) / _PARTITIONS_OF_DMA_ENGINE))
    most = PARTITIONS // positions if extended and itemsize < FLOAT32_BYTES else PARTITIONS
    all_parts = [parts for parts in SPLITS if parts <= most and _PART_MIN <= vocab_size // parts <= _PART_MAX]
    if vocab_size > _SPLIT_CLASSES_MIN and all_parts and num_positions * vocab_size <= INDEX_LIMIT:
        parts = min(all_parts, key=columns)
        if columns(parts) <= _SPLIT_SHARES[direction, itemsize < FLOAT32_BYTES] * (earlier + of_last) * vocab_size:
            return parts, 1
    packed = min(POSITIONS_PER_PARTITION_MAX, max(2, div_ceil(positions, PARTITIONS)))
    of_position = _PACKED_BYTES // itemsize if positions > PARTITIONS else 0
    if direction == "backward":
        is_long = itemsize == FLOAT32_BYTES and not extended
        of_position = _PACKED_PLAIN_BACKWARD_OF_FLOAT32 if is_long else _PACKED_BACKWARD
    most_classes = positions * of_position // (1 if num_positions % (CORES * packed) == 0 else 2)
    if vocab_size <= min(_PACKED_CLASSES_MAX, max(_PACKED_CLASSES[direction], most_classes)):
        return 1, packed
    return 1, 1


def _chunk_sizes(vocab_size: int, dtype: str, machine: _Machine, tiles: _Tiles) -> set[int]:
    """Return the chunk sizes to try, all of which the kernels accept with 128 positions per batch."""
    itemsize = _ITEMSIZES[dtype]
    fitting = (machine.sbuf_bytes - tiles.small) // (itemsize + tiles.most)
    largest = min(vocab_size, FREE_AXIS_MAX, fitting, BATCH_BYTES_MAX // POSITIONS_PER_BATCH // itemsize)
    equal = (div_ceil(vocab_size, chunks) for chunks in range(1, _MOST_EQUAL_CHUNKS + 1))
    # A partition of a generation has room for a round size; a smaller one of a test may not.
    return {size for size in (*equal, *_ROUND_SIZES) if size <= largest} or {largest}


class _Launch(NamedTuple):
    """The work of the busiest core of a launch. Times are nanoseconds.

    Attributes:
        positions: the positions of the whole launch.
        itemsize: bytes per element of the tiles.
        batches: the number of batches of the core.
        rows: the number of positions of the first batch: 128, or fewer if the core has fewer or V is very large.
        chunk, last: the number of columns of a chunk, and of the last chunk of a row.
        chunks: the number of chunks of a row.
        loads: the number of chunks of the core.
        buffers: the number of chunks that are on chip at a time.
        folds: whether GpSimd folds the chunks of a forward.
        load, last_load: the time in which the DMA engines load the first chunk of the core, and the last one.
        all_loads: the time in which they load all chunks of the core.
        per_cycle: elements that Scalar processes per cycle.
    """

    positions: int
    itemsize: int
    batches: int
    rows: int
    chunk: int
    last: int
    chunks: int
    loads: int
    buffers: int
    folds: bool
    load: float
    last_load: float
    all_loads: float
    per_cycle: int

    def total(self, of_chunk: float, of_last: float) -> float:
        """Return the time of all chunks, if the last chunk of a row takes ``of_last`` and any other chunk
        ``of_chunk``.
        """
        return self.batches * ((self.chunks - 1) * of_chunk + of_last)


def _launch(
    machine: _Machine, num_positions: int, vocab_size: int, dtype: str, chunk_size: int, tiles: _Tiles, is_forward: bool
) -> _Launch:
    itemsize = _ITEMSIZES[dtype]
    positions = positions_of_core(num_positions, CORES, 0)
    # Fewer where the index of an element would be too large: nkilib.core.rows.elements.
    batch_rows = min(POSITIONS_PER_BATCH, (INDEX_LIMIT // vocab_size - 1) // CORES + 1)
    batches = div_ceil(positions, batch_rows)
    rows = min(positions, batch_rows)
    chunks = div_ceil(vocab_size, chunk_size)
    last = vocab_size - (chunks - 1) * chunk_size
    row = max(_DMA_ROW, chunk_size * itemsize * machine.dma_byte_ns)
    last_row = max(_DMA_ROW, last * itemsize * machine.dma_byte_ns)
    # Rows of a chunk that the busiest DMA engine transfers; the last batch may have fewer.
    engine_rows = min(_PARTITIONS_OF_DMA_ENGINE, rows)
    last_engine_rows = min(_PARTITIONS_OF_DMA_ENGINE, positions - (batches - 1) * batch_rows)
    room = machine.sbuf_bytes - tiles.small - chunk_size * tiles.usual
    loads = batches * chunks
    buffers, folds = max(1, min(MAX_CHUNK_BUFFERS, room // (chunk_size * itemsize), loads)), False
    if is_forward:
        buffers, folds = _buffers(room, chunk_size, itemsize, loads)
    return _Launch(
        positions=num_positions,
        itemsize=itemsize,
        batches=batches,
        rows=rows,
        chunk=chunk_size,
        last=last,
        chunks=chunks,
        loads=loads,
        buffers=buffers,
        folds=folds,
        load=engine_rows * row,
        last_load=last_engine_rows * last_row,
        all_loads=((batches - 1) * engine_rows + last_engine_rows) * ((chunks - 1) * row + last_row),
        per_cycle=machine.scalar_bf16_per_cycle if dtype == "bfloat16" else 1,
    )


def _buffers(room: int, chunk_size: int, itemsize: int, loads: int) -> tuple[int, bool]:
    """Return the number of chunk buffers of a forward, and whether tiles for folds fit beside them."""
    most = min(room // (chunk_size * itemsize), loads)
    if itemsize == 2 and chunk_size >= FOLDED_COLUMNS_MIN:
        left = room - BESIDE_EXPONENTIALS.bytes_beside(chunk_size, itemsize)
        for buffers in BUFFERS_OF_MAXIMUM:
            if min(buffers, most) * chunk_size * itemsize <= left:
                return max(1, min(buffers, most)), True
    return max(1, min(BUFFERS_OF_MAXIMUM[0], most)), False


def _forward_ns(launch: _Launch, machine: _Machine) -> float:
    """Estimate the time of the forward with the exact maximum, in nanoseconds.

    The estimate is the longest of: the work of each engine with the latencies before and after it, the reuse of the
    chunk buffers, and the gather of the targets; plus the time of combining chunks.
    """

    share = BESIDE_EXPONENTIALS.share if launch.folds else 0.0

    def maximum(elements: int) -> float:  # and the clamp, which waits for it
        instructions = 2 if launch.folds else 1
        columns = (1.0 - share / 2) * elements
        return (max(_LEAST, columns) + _LEAST + instructions * _ISSUE) * machine.vector_ns + _VECTOR_RESULT

    def fold(elements: int) -> float:
        return (max(_LEAST, share * elements) + _ISSUE) * machine.gpsimd_ns if launch.folds else 0.0

    def until_exponential(elements: int) -> float:
        rest = (1.0 - share) * elements * machine.vector_ns
        return (
            max(fold(elements) + _SCALAR_RESULT - rest, 0.0) + maximum(elements) if launch.folds else maximum(elements)
        )

    def exponential(elements: int) -> float:
        return (max(_LEAST, elements / launch.per_cycle) + _READ_SUM + _ISSUE) * machine.scalar_ns

    vector, vector_last = maximum(launch.chunk), maximum(launch.last)
    scalar, scalar_last = exponential(launch.chunk), exponential(launch.last)
    first, first_last = until_exponential(launch.chunk), until_exponential(launch.last)
    # Of the last chunk but one: a short last chunk may have to wait for it.
    vector_before, scalar_before = (vector, scalar) if launch.loads > 1 else (0.0, 0.0)
    latency = _DMA_FIXED + _DMA_TO_CONSUMER
    transfers = launch.all_loads + _stores_ns(launch) + launch.batches * div_ceil(launch.rows, 16) * _DMA_ROW
    loads = max(transfers, _DMA_TRIGGER * (launch.loads - 1) + launch.last_load)
    after_loads = max(
        launch.last_load + first_last + scalar_last,
        vector_before + max(vector_last, scalar_before) + scalar_last,
    )
    after_maxima = max(scalar_last, scalar_before + scalar_last - vector_last)
    gpsimd = launch.total(fold(launch.chunk), fold(launch.last)) + launch.batches * _GATHER_OF_GPSIMD
    streams = max(
        latency + loads - launch.last_load + after_loads,
        latency + launch.load + launch.total(vector, vector_last) + after_maxima,
        latency + launch.load + first + launch.total(scalar, scalar_last),
        latency + launch.load + gpsimd + scalar_last,
    )
    slot_ns = latency + launch.load + first + scalar + 2 * _SYNC
    slots_ns = div_ceil(launch.loads, launch.buffers) * slot_ns
    longest = max(streams, slots_ns, _gather_ns(launch, machine))
    return longest + _groups_ns(launch, machine)


def _faster_forward_ns(launch: _Launch, machine: _Machine) -> float:
    """Estimate the time of the forward with the exact maximum or with a shift, whichever the kernel uses by default."""
    is_shifted = launch.itemsize == _ITEMSIZES["bfloat16"] and _takes_shift(launch, machine.scalar_bf16_per_cycle == 1)
    return _shifted_forward_ns(launch, machine) if is_shifted else _forward_ns(launch, machine)


def _takes_shift(launch: _Launch, is_trn2: bool) -> bool:
    vocab_size = (launch.chunks - 1) * launch.chunk + launch.last
    is_possible = launch.batches <= BATCHES_MAX and launch.positions >= CORES
    return is_possible and shift_pays(launch.batches, vocab_size, launch.chunk, launch.folds, is_trn2)


def _shifted_forward_ns(launch: _Launch, machine: _Machine) -> float:
    """Estimate the time of the forward under a shift, in nanoseconds.

    Only the first chunk of a row, which is half as long as others, needs a maximum. On Scalar all chunks follow each
    other without gaps.
    """
    vocab_size = (launch.chunks - 1) * launch.chunk + launch.last
    first = div_ceil(launch.chunk, 2)
    chunks = num_chunks(vocab_size, first, launch.chunk)
    vector = (max(_LEAST, first) + _ISSUE) * machine.vector_ns + _SHIFT
    scalar = (
        vocab_size / launch.per_cycle + chunks * (_READ_SUM + _ISSUE)
    ) * machine.scalar_ns + chunks * _SHIFTED_CHUNK
    latency = _DMA_FIXED + _DMA_TO_CONSUMER
    loads = max(launch.all_loads, _DMA_TRIGGER * launch.batches * chunks)
    streams = max(latency + launch.load / 2 + vector + launch.batches * scalar, latency + loads)
    slot_ns = latency + launch.load + scalar / chunks + 2 * _SYNC
    slots_ns = div_ceil(launch.batches * chunks, launch.buffers) * slot_ns + vector
    few = _SHIFTED_WITH_TWO_BUFFERS if launch.buffers < min(3, launch.loads) else 1.0
    again = _SHARE_AGAIN * launch.batches * launch.load
    groups = div_ceil(launch.batches - 1, most_batches_of_group(chunks)) + 1
    whole = 1.0 if launch.folds else _WITHOUT_FOLDS
    return (max(streams, slots_ns) * few + groups * _SHIFTED_GROUP + chunks * _CHUNK + again + _LOOP) * whole


def _stores_ns(launch: _Launch) -> float:
    """Return the nanoseconds by which stores of results delay loads on the DMA engines.

    The results of a group are stored after the second chunk of the next group. The last batch is a group of its own: if
    all its chunks are being loaded by then, the stores of the group before delay none of its loads.
    """
    before_last = launch.batches - 1
    if min(before_last, most_batches_of_group(launch.chunks)) >= SWAPPED_BATCHES_MIN:
        return 0.0
    if launch.chunks <= loads_in_flight(launch.buffers) + 1:
        group = most_batches_of_group(launch.chunks)
        before_last = max(0, before_last - 1) // group * group
    engine_rows = min(_PARTITIONS_OF_DMA_ENGINE, launch.rows)
    return before_last * _RESULTS * engine_rows * _SMALL_STORE * _DMA_ROW


def _gather_ns(launch: _Launch, machine: _Machine) -> float:
    """Return the nanoseconds until the targets' logits of a single batch are on chip, minus ``_GATHER_SLACK``.

    The estimate of a forward is at least this. For several batches it is 0. The targets of a single batch are loaded
    after its first chunks.
    """
    if launch.batches > 1:
        return 0.0
    targets = _DMA_FIXED + min(_PARTITIONS_OF_DMA_ENGINE, launch.rows) * _DMA_ROW + _DMA_TO_CONSUMER
    indices = 7 * (_LEAST * machine.scalar_ns + _VECTOR_RESULT)  # GpSimd has the clock of Scalar
    gather = 3 * _DMA_FIXED + div_ceil(launch.rows, 16) * _DMA_ROW + _DMA_TO_CONSUMER
    chunks = loads_in_flight(launch.buffers) * max(_DMA_TRIGGER, launch.load)
    return max(chunks, targets + indices) + gather - _GATHER_SLACK


def _groups_ns(launch: _Launch, machine: _Machine) -> float:
    """Return the nanoseconds of combining the statistics of chunks, for all groups of batches.

    The more chunks a row has, the fewer batches a group has, and the more groups there are.
    """
    groups = div_ceil(launch.batches - 1, most_batches_of_group(launch.chunks)) + 1
    columns = min(launch.chunks, STATISTICS_COLUMNS)
    of_vector = 2 * max(_LEAST, columns) + 2 * max(_LEAST, 2 * columns)
    combined = of_vector * machine.vector_ns + max(_LEAST, columns) * machine.scalar_ns
    of_load = _LOAD if launch.chunk >= FOLDED_COLUMNS_MIN else 2 * _LOAD
    return groups * _GROUP + combined + launch.loads * of_load


def _backward_ns(launch: _Launch, machine: _Machine) -> float:
    """Estimate the time of the backward in nanoseconds.

    The estimate has the terms of the forward's; in addition, loads and stores share the DMA engines, and the first
    store waits for the gather of the targets' logits.
    """

    def exponential(elements: int) -> float:
        return (max(_LEAST, elements / launch.per_cycle) + _ISSUE) * machine.scalar_ns

    scalar, scalar_last = exponential(launch.chunk), exponential(launch.last)
    all_scalar = launch.total(scalar, scalar_last)
    latency = _DMA_FIXED + _DMA_TO_CONSUMER
    handover = _SCALAR_RESULT + _SYNC
    first_trigger = 2 * _DMA_TRIGGER  # targets and log-sum-exps are loaded before
    first_load = first_trigger + latency + launch.load
    last_store = handover + latency + launch.last_load
    transfers = 2 * launch.all_loads
    gather = _FIRST_STORE + div_ceil(launch.rows, 16) * _DMA_ROW
    first_store = max(gather, first_load + _FIRST_EXPONENTIAL + scalar + handover)
    streams = max(
        first_trigger + _DMA_FIXED + transfers + max(0.0, _IDLE_BEFORE_STORES - 2 * launch.load),
        first_trigger + _DMA_FIXED + launch.all_loads + scalar_last + last_store + _FIRST_EXPONENTIAL,
        first_load + all_scalar + last_store + _FIRST_EXPONENTIAL,
        # A short last chunk is stored after the one before it.
        first_load + all_scalar - scalar_last + launch.load + last_store + _FIRST_EXPONENTIAL,
        first_trigger + _DMA_TRIGGER * (launch.loads - 1) + latency + launch.last_load + scalar_last + last_store,
        first_store + _DMA_FIXED + transfers - min(launch.buffers * launch.load, launch.all_loads),
    )
    slot_ns = 2 * (_DMA_FIXED + launch.load) + _DMA_TO_CONSUMER + scalar + handover
    rounds = div_ceil(launch.loads, launch.buffers)
    after_gather = gather + latency + launch.load + (rounds - 1) * slot_ns if rounds > 1 else 0.0
    few = _OF_FEW_BUFFERS.get(launch.buffers, 1.0) if launch.buffers < launch.loads else 1.0
    return max(streams, first_trigger + rounds * slot_ns, after_gather) * few + _long_load(launch)


def _long_load(launch: _Launch) -> float:
    alone = _LONG_ALONE * launch.batches if launch.chunks == 1 and launch.load > _LONG_LOAD else 0.0
    return _SHARE_OF_LOAD * max(0.0, launch.load - _LONG_LOAD) + alone
