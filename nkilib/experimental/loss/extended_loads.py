"""What the extended kernels load beside the logits, chunk by chunk: class weights and class probabilities."""

from __future__ import annotations

from typing import Any

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.chunk_loads import batches_of_program, loaded_chunk
from nkilib.experimental.loss.sbuf_plan import make_extended_buffers
from nkilib.nki import nisa, nl


def make_extended_stream(
    logits_hbm: Any, positions_per_batch: int, chunk_size: int, dtype: Any, scratch_names: Any
) -> Any:
    """The stream of the logits, as :func:`.chunk_loads.make_stream` makes it, and the scratch tiles beside."""
    batches, batch_rows = batches_of_program(logits_hbm, positions_per_batch)
    num_chunks = div_ceil(logits_hbm.shape[1], chunk_size)
    loads = len(batches) * num_chunks
    chunk_buffers_sbuf, scratch = make_extended_buffers(batch_rows, chunk_size, dtype, loads, scratch_names)
    return (logits_hbm, batches, chunk_buffers_sbuf, num_chunks, nl.num_programs()), scratch


def scratch_tile(scratch: Any, name: str, load: int, chunk_sbuf: Any) -> Any:
    """The scratch tile of that name for chunk number ``load``, of the chunk's shape."""
    rows, columns = chunk_sbuf.shape
    return scratch[name][load % len(scratch[name])][0:rows, 0:columns]


def class_streams(stream: Any, scratch: Any, targets_hbm: Any, class_weight_hbm: Any, options: Any, visits: Any) -> Any:
    """Streams of class probabilities and class weights that visit the given batches one after the other.

    Args:
        stream: of the logits.
        scratch: tiles by name; those named ``probabilities`` and ``weights`` are the buffers.
        targets_hbm: [N, V] where ``options`` say that they are probabilities.
        class_weight_hbm: [V] where ``options`` say that all are needed.
        options: from :func:`.extended_options.make_options`.
        visits: list of batches; a batch may be there more than once.

    Returns:
        Two streams for :func:`.chunk_loads.loaded_chunk`, None for what is not needed.
    """
    logits_hbm, _, _, num_chunks, cores = stream
    probabilities = None
    if options["has_probabilities"]:
        probabilities = (targets_hbm, visits, scratch["probabilities"], num_chunks, cores)
    weights = None
    if options["needs_class_weights"]:
        # The same row for every position: a DMA reads it with stride 0 for all partitions.
        rows_hbm = class_weight_hbm.expand_dim(0).broadcast(0, logits_hbm.shape[0])
        weights = (rows_hbm, visits, scratch["weights"], num_chunks, cores)
    return probabilities, weights


def loaded_class_factors(streams: Any, load: int, options: Any) -> Any:
    """The factors w_k y'_k of a chunk's classes, with y' = (1 - e) y + e / V; the class weights alone without y.

    Returns:
        float32 tile [rows, columns] that may be overwritten, or None where all factors are 1.
    """
    probabilities, weights = streams
    weights_sbuf = None
    if weights != None:  # noqa: E711
        weights_sbuf = loaded_chunk(weights, load)
    if probabilities == None:  # noqa: E711
        return weights_sbuf
    factors_sbuf = loaded_chunk(probabilities, load)
    if options["spread"] != 0.0:
        nisa.tensor_scalar(
            dst=factors_sbuf,
            data=factors_sbuf,
            op0=nl.multiply,
            operand0=options["kept"],
            op1=nl.add,
            operand1=options["spread"],
        )
    if weights != None:  # noqa: E711
        nisa.tensor_tensor(dst=factors_sbuf, data1=factors_sbuf, data2=weights_sbuf, op=nl.multiply)
    return factors_sbuf


def sum_in_place(tile_sbuf: Any, total_sbuf: Any) -> None:
    """The sum of each row of a tile, into [rows, 1]; on Scalar, while Vector makes the next tile."""
    nisa.activation(
        dst=tile_sbuf,
        op=nl.copy,
        data=tile_sbuf,
        reduce_op=nl.add,
        reduce_res=total_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
