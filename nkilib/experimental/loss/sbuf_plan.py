"""How the kernels use the SBUF of a partition: chunk buffers as large as asked for, and a few small tiles beside."""

from __future__ import annotations

from typing import Any

from nkilib.core.cores import row_span
from nkilib.nki import nl

# One chunk is loaded, one is Vector's, one Scalar's or stored; a fourth buffer covers the latencies between them. More
# buy nothing.
MAX_CHUNK_BUFFERS = 4
# Columns of the tiles of per-chunk statistics, and how many batches share them at most.
STATISTICS_COLUMNS = 128
GROUP_BATCHES_MAX = 16
# Set aside for those tiles (five of 128 float32: two groups of batches overlap) and for the tiles of at most
# GROUP_BATCHES_MAX columns, with room for alignment.
SMALL_TILES_BYTES = 4096
# The same for the extended kernels with every option, which keep ten tiles of statistics instead of three; a chunk of
# 8192 float32 and all that may be asked for still fits trn2.
EXTENDED_SMALL_TILES_BYTES = 12288
# Tiles of a chunk in float32 that an extended kernel needs at most beside its chunk buffers: the forward's capped
# logits, class weights, class probabilities, products and exponentials. The backward needs one less.
SCRATCH_TILES_MAX = 5
SCRATCH_BYTES = 4  # of an element
# Indices of the gather are int32; this leaves room to push the index of an invalid target out of range.
INDEX_LIMIT = 2**30


def dtype_bytes(dtype: Any) -> int:
    """Bytes of an element of one of the two types that the kernels take."""
    if dtype == nl.float32:
        return 4
    return 2


def chunk_bytes_that_fit() -> int:
    """Bytes of a partition that chunk buffers may take."""
    return nl.tile_size.sbuf_fmax_bytes - SMALL_TILES_BYTES


def make_chunk_buffers(positions_per_batch: int, chunk_size: int, dtype: Any, loads: int) -> Any:
    """As many chunk buffers as fit, at most one for each of the core's loads of a chunk: with two or more, loads and
    stores run beside the computation.

    Returns:
        List of 1 to ``MAX_CHUNK_BUFFERS`` tiles [positions_per_batch, chunk_size] of ``dtype`` in SBUF.
    """
    fitting = chunk_bytes_that_fit() // (chunk_size * dtype_bytes(dtype))
    count = max(1, min(MAX_CHUNK_BUFFERS, min(fitting, loads)))
    return _tiles(count, positions_per_batch, chunk_size, dtype)


def extended_chunk_size_that_fits(dtype: Any, num_scratch: int) -> int:
    """The largest chunk of which one buffer of ``dtype`` fits a partition together with so many scratch tiles."""
    bytes_that_fit = nl.tile_size.sbuf_fmax_bytes - EXTENDED_SMALL_TILES_BYTES
    return bytes_that_fit // (dtype_bytes(dtype) + num_scratch * SCRATCH_BYTES)


def make_extended_buffers(rows: int, chunk_size: int, dtype: Any, loads: int, scratch_names: Any) -> Any:
    """The chunk buffers of an extended kernel, and its scratch tiles.

    Of each scratch tile there are two, which the chunks take in turn, where they leave room for two chunk buffers.

    Returns:
        List of 1 to ``MAX_CHUNK_BUFFERS`` tiles [rows, chunk_size] of ``dtype`` in SBUF, and a dict of lists of one or
        two float32 tiles, by name.
    """
    chunk_bytes = chunk_size * dtype_bytes(dtype)
    scratch_bytes = len(scratch_names) * chunk_size * SCRATCH_BYTES
    bytes_that_fit = nl.tile_size.sbuf_fmax_bytes - EXTENDED_SMALL_TILES_BYTES
    turns = 2 if loads > 1 and 2 * (scratch_bytes + chunk_bytes) <= bytes_that_fit else 1
    scratch = dict()
    for name in scratch_names:
        scratch[name] = _tiles(turns, rows, chunk_size, nl.float32)
    fitting = (bytes_that_fit - turns * scratch_bytes) // chunk_bytes
    return _tiles(max(1, min(MAX_CHUNK_BUFFERS, min(fitting, loads))), rows, chunk_size, dtype), scratch


def _tiles(count: int, rows: int, columns: int, dtype: Any) -> Any:
    tiles_sbuf = list()
    for _ in range(count):
        tiles_sbuf.append(nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf))
    return tiles_sbuf


def rows_per_batch(positions_per_batch: int, vocab_size: int, cores: int) -> int:
    """Positions that a batch really takes: fewer than asked for where a vocabulary of over four million entries would
    push the int32 index of an element within the batch's span of rows past ``INDEX_LIMIT``."""
    span = INDEX_LIMIT // vocab_size
    rows = min(int(positions_per_batch), (span - 1) // cores + 1)  # int: True is an int too
    assert row_span(rows, cores) * vocab_size <= INDEX_LIMIT, "cross_entropy: the vocabulary is too large to be indexed"
    return rows
