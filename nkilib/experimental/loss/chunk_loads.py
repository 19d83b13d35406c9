"""Loads of chunks ahead of the computation: each queue and each engine runs its instructions in the order of issue."""

from __future__ import annotations

from typing import Any

from nkilib.core.cores import row_span
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.batches import batches_of_core
from nkilib.experimental.loss.sbuf_plan import make_chunk_buffers, rows_per_batch
from nkilib.nki import nisa, nl


def make_stream(logits_hbm: Any, positions_per_batch: int, chunk_size: int, dtype: Any) -> Any:
    """The logits as the chunks that this core takes one after the other, and the buffers that they take in turn.

    Returns:
        The logits [N, V], the core's batches (none where there are fewer positions than cores), its chunk buffers,
        chunks in a row, and cores.
    """
    batches, batch_rows = batches_of_program(logits_hbm, positions_per_batch)
    num_chunks = div_ceil(logits_hbm.shape[1], chunk_size)
    chunk_buffers_sbuf = make_chunk_buffers(batch_rows, chunk_size, dtype, len(batches) * num_chunks)
    return logits_hbm, batches, chunk_buffers_sbuf, num_chunks, nl.num_programs()


def batches_of_program(logits_hbm: Any, positions_per_batch: int) -> Any:
    """The batches of the core that runs this, and the positions of a full one."""
    num_positions, vocab_size = logits_hbm.shape
    cores = nl.num_programs()
    batch_rows = rows_per_batch(positions_per_batch, vocab_size, cores)
    return batches_of_core(num_positions, cores, nl.program_id(), batch_rows), batch_rows


def loaded_chunk(stream: Any, load: int) -> Any:
    """A chunk of the logits on chip; also issues the loads of later ones, for which there are buffers.

    The chunks take the buffers in turn. Of three or more, one is left to the chunk before, which is still computed on
    or stored: a load that waits for it would hold up whatever its queue has to do next.

    Args:
        stream: from :func:`make_stream`.
        load: which of the core's chunks, counted over all batches; to be called with 0, 1, 2, ...

    Returns:
        tile [rows, columns of the chunk].
    """
    logits_hbm, batches, chunk_buffers_sbuf, num_chunks, _ = stream
    buffers = len(chunk_buffers_sbuf)
    in_flight = max(min(2, buffers), buffers - 1)
    first = 0 if load == 0 else load + in_flight - 1
    for number in range(first, min(load + in_flight, len(batches) * num_chunks)):
        nisa.dma_copy(dst=chunk_on_chip(stream, number), src=chunk_in_hbm(stream, number, logits_hbm))
    return chunk_on_chip(stream, load)


def chunk_in_hbm(stream: Any, load: int, matrix_hbm: Any) -> Any:
    """The part of the logits, or of their gradient, that chunk number ``load`` of the core is; a view."""
    _, batches, _, num_chunks, cores = stream
    first, rows = batches[load // num_chunks]
    start, end = _columns(stream, load)
    return matrix_hbm[first : first + row_span(rows, cores) : cores, start:end]


def _columns(stream: Any, load: int) -> Any:
    """First column of a chunk, and the end."""
    logits_hbm, _, chunk_buffers_sbuf, num_chunks, _ = stream
    chunk_size = chunk_buffers_sbuf[0].shape[1]
    start = load % num_chunks * chunk_size
    return start, min(start + chunk_size, logits_hbm.shape[1])


def chunk_on_chip(stream: Any, load: int) -> Any:
    """The tile that chunk number ``load`` of the core is loaded into."""
    _, batches, chunk_buffers_sbuf, num_chunks, _ = stream
    _, rows = batches[load // num_chunks]
    start, end = _columns(stream, load)
    buffer_sbuf = chunk_buffers_sbuf[load % len(chunk_buffers_sbuf)]
    if rows == buffer_sbuf.shape[0] and end - start == buffer_sbuf.shape[1]:
        return buffer_sbuf
    return buffer_sbuf[0:rows, 0 : end - start]
