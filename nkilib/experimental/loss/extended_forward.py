"""The extended forward on one core: as :mod:`.forward`, with what the options ask for beside each chunk."""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.batches import batch_groups
from nkilib.experimental.loss.chunk_argmax import chunk_argmax, make_argmax, restart_argmax, row_argmax
from nkilib.experimental.loss.chunk_loads import chunk_on_chip, loaded_chunk
from nkilib.experimental.loss.chunk_moments import (
    chunk_entropy,
    chunk_first_moment,
    distances_from_maximum,
    make_moments,
    restart_moments,
    row_moments,
    row_weights_and_distances,
)
from nkilib.experimental.loss.chunk_statistics import (
    chunk_maximum,
    chunk_sum,
    columns_are_full,
    make_statistics,
    restart_columns,
    row_logs,
    row_sums,
)
from nkilib.experimental.loss.extended_loads import class_streams, loaded_class_factors, scratch_tile
from nkilib.experimental.loss.extended_results import store_extended_results
from nkilib.experimental.loss.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.target_access import (
    class_targets,
    gathered_weights,
    make_class_constants,
    target_elements,
)
from nkilib.nki import nisa, nl


def extended_forward_of_core(
    stream: Any, scratch: Any, targets_hbm: Any, class_weight_hbm: Any, results: Any, dtype: Any, options: Any
) -> None:
    """The results of the positions of this core.

    Args:
        stream, scratch: from :func:`.extended_loads.make_extended_stream`.
        targets_hbm: [N], or [N, V] probabilities.
        class_weight_hbm: [V], or None.
        results: vectors [N] by name, see :func:`.extended_results.store_extended_results`.
        dtype: of the tiles.
        options: from :mod:`.extended_options`.
    """
    _, batches, _, num_chunks, cores = stream
    if len(batches) == 0:
        return None
    streams = class_streams(stream, scratch, targets_hbm, class_weight_hbm, options, batches)
    sources = (stream, scratch, streams, targets_hbm, class_weight_hbm)
    constants = _class_constants(stream, options)
    group = None
    for start, end in batch_groups(len(batches), num_chunks):
        previous = group
        first, rows = batches[start]
        group = _make_group(first, rows, end - start, num_chunks, dtype, options)
        for load in range(start * num_chunks, end * num_chunks):
            chunk = load % num_chunks
            _take_chunk(sources, group, load, load // num_chunks - start, options)
            if chunk == 0:
                _load_positions(sources, constants, group, load // num_chunks, start, options)
            # The group before is finished beside this one's first chunks, so that no engine waits for another one.
            if start > 0 and load == start * num_chunks:
                _take_logs(previous, num_chunks, options)
            if start > 0 and load == min(start * num_chunks + 1, end * num_chunks - 1):
                store_extended_results(previous, results, options, cores)
        row_weights_and_distances(group["statistics"], group["moments"], num_chunks)
    _take_logs(group, num_chunks, options)
    store_extended_results(group, results, options, cores)
    return None


def _class_constants(stream: Any, options: Any) -> Any:
    """Constants of the indices; None where there are no targets to index with."""
    logits_hbm, batches, _, _, cores = stream
    if options["has_probabilities"]:
        return None
    return make_class_constants(batches[0][1], logits_hbm.shape[1], cores, options)


def _make_group(first: int, rows: int, batches: int, num_chunks: int, dtype: Any, options: Any) -> Any:
    """The tiles of a group of batches, by name; ``first`` is its first position."""
    group: Any = dict()
    group["first"] = first
    scores_dtype = dtype if options["softcap"] == 0.0 else nl.float32
    group["statistics"] = make_statistics(rows, batches, num_chunks, scores_dtype)
    columns = group["statistics"][0][0].shape[2]
    group["moments"] = make_moments(rows, batches, columns, options)
    if options["with_argmax"]:
        group["argmax"] = make_argmax(rows, batches, columns, dtype)
        group["exact_neg_max"] = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
    if options["has_probabilities"]:
        return group
    group["target_logits"] = nl.ndarray((rows, batches), dtype=dtype, buffer=nl.sbuf)
    group["valid"] = nl.ndarray((rows, batches), dtype=nl.uint32, buffer=nl.sbuf)
    group["held"] = nl.ndarray((rows, batches), dtype=nl.uint32, buffer=nl.sbuf)
    if options["is_weighted"]:
        group["weights"] = nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.sbuf)
    return group


def _load_positions(sources: Any, constants: Any, group: Any, batch: int, start: int, options: Any) -> None:
    """Targets of a batch, and what is gathered with them.

    Args:
        sources: of the launch.
        constants: from :func:`_class_constants`.
        group: from :func:`_make_group`.
        batch: its number, and ``start`` that of the first one of its group.
        options: of the launch.
    """
    if options["has_probabilities"]:
        return None
    stream, _, _, targets_hbm, class_weight_hbm = sources
    logits_hbm, batches, _, _, cores = stream
    first, rows = batches[batch]
    number = batch - start
    valid_sbuf = group["valid"][:, number : number + 1]
    held_sbuf = group["held"][:, number : number + 1]
    index_sbuf, column_sbuf = class_targets(
        targets_hbm, constants, batches[batch], cores, options, valid_sbuf, held_sbuf
    )
    # DMA rounds this logit to dtype just as it rounds the chunks: no other logit can exceed the maximum.
    nisa.dma_copy(
        dst=group["target_logits"][:, number : number + 1],
        src=target_elements(logits_hbm, index_sbuf, first, rows, cores),
    )
    if options["is_weighted"]:
        gathered_weights(class_weight_hbm, column_sbuf, group["weights"][:, number : number + 1])
    return None


def _take_chunk(sources: Any, group: Any, load: int, batch: int, options: Any) -> None:
    """Everything about one chunk: its maximum, sums and, where asked for, moments and argmax."""
    stream, scratch, streams, _, _ = sources
    num_chunks = stream[3]
    chunk = load % num_chunks
    statistics, moments = group["statistics"], group["moments"]
    if columns_are_full(statistics, chunk):
        _restart(group, chunk, options)
    chunk_sbuf, scores_sbuf, scale = _scores(sources, load, options)
    chunk_maximum(scores_sbuf, statistics, batch, chunk, scale)
    if options["with_argmax"]:
        _take_argmax(stream, group, chunk_sbuf, batch, chunk, options)
    exponentials_sbuf = scores_sbuf
    if options["has_moments"]:
        factors_sbuf = loaded_class_factors(streams, load, options)
        products_sbuf = scratch_tile(scratch, "products", load, chunk_sbuf)
        chunk_first_moment(scores_sbuf, factors_sbuf, products_sbuf, statistics, moments, batch, chunk)
    if options["with_entropy"]:
        exponentials_sbuf = scratch_tile(scratch, "exponentials", load, chunk_sbuf)
        products_sbuf = scratch_tile(scratch, "products", load, chunk_sbuf)
        distances_from_maximum(scores_sbuf, products_sbuf, statistics, batch, chunk)
    chunk_sum(exponentials_sbuf, scores_sbuf, statistics, batch, chunk, scale)
    if options["with_entropy"]:
        chunk_entropy(exponentials_sbuf, products_sbuf, statistics, moments, batch, chunk)


def _scores(sources: Any, load: int, options: Any) -> Any:
    """A chunk of the logits on chip, and z as a tile and what that is to be multiplied with.

    Under a cap the tangents of the next chunk are issued before the exponentials of this one, which wait for Vector.
    That takes a third chunk buffer: with two, the load after the next one would come before this chunk is used.
    """
    stream, scratch, _, _, _ = sources
    _, batches, chunk_buffers_sbuf, num_chunks, _ = stream
    softcap = options["softcap"]
    if softcap == 0.0:
        chunk_sbuf = loaded_chunk(stream, load)
        return chunk_sbuf, chunk_sbuf, 1.0
    ahead = 1 if len(chunk_buffers_sbuf) > 2 and len(scratch["scores"]) > 1 else 0
    for number in range(0 if load == 0 else load + ahead, min(load + ahead + 1, len(batches) * num_chunks)):
        issued_sbuf = loaded_chunk(stream, number)
        hyperbolic_tangents(scratch_tile(scratch, "scores", number, issued_sbuf), issued_sbuf, softcap)
    chunk_sbuf = chunk_on_chip(stream, load)
    scores_sbuf = scratch_tile(scratch, "scores", load, chunk_sbuf)
    masked_tangents(scores_sbuf, scores_sbuf, chunk_sbuf)
    if options["has_moments"] or options["with_entropy"]:
        nisa.tensor_scalar(dst=scores_sbuf, data=scores_sbuf, op0=nl.multiply, operand0=softcap)
        return chunk_sbuf, scores_sbuf, 1.0
    return chunk_sbuf, scores_sbuf, softcap


def _take_argmax(stream: Any, group: Any, chunk_sbuf: Any, batch: int, chunk: int, options: Any) -> None:
    statistics = group["statistics"]
    exact_neg_max_sbuf = statistics[0][3]
    if options["softcap"] != 0.0:
        exact_neg_max_sbuf = group["exact_neg_max"]
        nisa.tensor_reduce(dst=exact_neg_max_sbuf, op=nl.maximum, data=chunk_sbuf, axis=1, negate=True)
    first = options["first_class"] + chunk * stream[2][0].shape[1]
    chunk_argmax(chunk_sbuf, exact_neg_max_sbuf, group["argmax"], statistics, batch, chunk, first)


def _combine(group: Any, num_chunks: int, options: Any) -> None:
    """Moments, argmax and d of the rows of a group, once their weights are there."""
    statistics = group["statistics"]
    row_moments(statistics, group["moments"], num_chunks, options)
    if options["with_argmax"]:
        row_argmax(group["argmax"], statistics, num_chunks, options["num_classes"])
    row_sums(statistics, num_chunks)


def _restart(group: Any, num_chunks: int, options: Any) -> None:
    """Put what ``num_chunks`` chunks have left in the columns, which are full, into column 0."""
    row_weights_and_distances(group["statistics"], group["moments"], num_chunks)
    _combine(group, num_chunks, options)
    restart_columns(group["statistics"])
    restart_moments(group["moments"], options)
    if options["with_argmax"]:
        restart_argmax(group["argmax"])


def _take_logs(group: Any, num_chunks: int, options: Any) -> None:
    _combine(group, num_chunks, options)
    row_logs(group["statistics"])
