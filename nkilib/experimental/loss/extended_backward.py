"""The extended backward on one core: as :mod:`.backward`, where Vector applies the coefficients of each position."""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.chunk_loads import chunk_in_hbm, loaded_chunk
from nkilib.experimental.loss.extended_gradient import loaded_values, prepare_positions, softmax, target_gradient
from nkilib.experimental.loss.extended_loads import class_streams, loaded_class_factors, scratch_tile, sum_in_place
from nkilib.experimental.loss.softcap import through_cap
from nkilib.experimental.loss.target_access import make_class_constants, target_elements
from nkilib.experimental.loss.target_gradient import scatter_after
from nkilib.nki import nisa, nl


def extended_backward_of_core(
    stream: Any, scratch: Any, vectors: Any, weight_sum: Any, grad_logits_hbm: Any, dtype: Any, options: Any
) -> None:
    """The gradient of the positions of this core.

    Args:
        stream, scratch: from :func:`.extended_loads.make_extended_stream`.
        vectors: in HBM by name: ``targets``, ``class_weight``, ``lse``, ``maximum``, ``log_sum``, ``grad_loss``,
            ``grad_lse``, ``grad_logprob``, ``target_weight``; None for what there is not.
        weight_sum: W where it is known.
        grad_logits_hbm: [N, V]; may be the logits.
        dtype: of the tiles.
        options: from :mod:`.extended_options`.
    """
    _, batches, _, num_chunks, cores = stream
    if len(batches) == 0:
        return None
    sources = _make_sources(stream, scratch, vectors, weight_sum, options)
    # Class probabilities are read twice, first for their sum: the next batch's, when this one's are all done.
    early = num_chunks - 1 if sources["sums"] == "of positions" else 0
    prepared = _prepare(sources, 0, options)
    previous = None
    for batch in range(len(batches)):
        position = prepared
        position["stores"] = list()
        for chunk in range(num_chunks):
            load = batch * num_chunks + chunk
            chunk_sbuf = loaded_chunk(stream, load)
            _gradient_of_chunk(sources, position, batch, chunk, chunk_sbuf, options)
            if chunk == 0:
                _gather_target(stream, position, batches[batch], dtype, options)
            if chunk == early and batch + 1 < len(batches):
                prepared = _prepare(sources, batch + 1, options)
            store = nisa.dma_copy(dst=chunk_in_hbm(stream, load, grad_logits_hbm), src=chunk_sbuf)
            position["stores"].append(store)
            if options["has_probabilities"] == False:  # noqa: E712
                store.depends_on(position["gather"])  # in place it overwrites the target's logit
            # Later than its last store, so that the scatter need not wait for it, nor Scalar for the gather.
            if batch > 0 and chunk == min(1, num_chunks - 1):
                _scatter_target(grad_logits_hbm, previous, dtype, cores, options)
        previous = position
    _scatter_target(grad_logits_hbm, previous, dtype, cores, options)
    return None


def _make_sources(stream: Any, scratch: Any, vectors: Any, weight_sum: Any, options: Any) -> Any:
    """What batches are prepared from, by name; ``sums`` says over what the factors of the classes have to be summed:
    once for all positions, ``of classes``, for each batch, ``of positions``, or not at all, ``given``."""
    logits_hbm, batches, _, _, cores = stream
    sources = dict()
    sources["stream"], sources["scratch"], sources["vectors"] = stream, scratch, vectors
    sources["sums"] = "given"
    sources["constants"] = None
    sources["total"] = weight_sum
    visits = list()
    if options["has_probabilities"]:
        if vectors["target_weight"] == None:  # noqa: E711  (NKI has no "is")
            sources["sums"] = "of positions"
    else:
        sources["constants"] = make_class_constants(batches[0][1], logits_hbm.shape[1], cores, options)
        if weight_sum == None:  # noqa: E711
            sources["total"] = float(options["num_classes"])
            if options["needs_class_weights"]:
                sources["sums"] = "of classes"
                visits.append(batches[0])
    for batch in batches:
        if sources["sums"] == "of positions":
            visits.append(batch)
        visits.append(batch)
    sources["streams"] = class_streams(stream, scratch, vectors["targets"], vectors["class_weight"], options, visits)
    if sources["sums"] == "of classes":
        sources["total"] = _sum_of_factors(sources, 0, batches[0][1], options)
    return sources


def _visit(sources: Any, batch: int) -> int:
    """Which visit of the streams of the classes is the one of a batch's gradient."""
    if sources["sums"] == "of positions":
        return 2 * batch + 1
    return batch + 1 if sources["sums"] == "of classes" else batch


def _prepare(sources: Any, batch: int, options: Any) -> Any:
    """The coefficients of a batch, see :func:`.extended_gradient.prepare_positions`."""
    _, batches, _, _, cores = sources["stream"]
    first, rows = batches[batch]
    sums = sources["total"]
    if sources["sums"] == "of classes":
        sums = sums[0:rows, :]
    if sources["sums"] == "of positions":
        sums = _sum_of_factors(sources, 2 * batch, rows, options)
    elif options["has_probabilities"]:
        sums = loaded_values(sources["vectors"]["target_weight"], batches[batch], cores)
    position = prepare_positions(sources["vectors"], sources["constants"], batches[batch], cores, sums, options)
    position["first"] = first
    return position


def _sum_of_factors(sources: Any, visit: int, rows: int, options: Any) -> Any:
    """The sum over all classes of the factors of :func:`.extended_loads.loaded_class_factors`, float32 [rows, 1]."""
    num_chunks = sources["stream"][3]
    total_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    part_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    for chunk in range(num_chunks):
        factors_sbuf = loaded_class_factors(sources["streams"], visit * num_chunks + chunk, options)
        if chunk == 0:
            sum_in_place(factors_sbuf, total_sbuf)
        else:
            sum_in_place(factors_sbuf, part_sbuf)
            nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=part_sbuf, op=nl.add)
    return total_sbuf


def _gradient_of_chunk(sources: Any, position: Any, batch: int, chunk: int, chunk_sbuf: Any, options: Any) -> None:
    """A * softmax - spread * factors over a chunk of logits: in float32, rounded once, when it is written there."""
    num_chunks = sources["stream"][3]
    load = batch * num_chunks + chunk
    exponentials_sbuf = scratch_tile(sources["scratch"], "exponentials", load, chunk_sbuf)
    squares_sbuf, gradient_sbuf = None, chunk_sbuf
    if options["softcap"] != 0.0:
        squares_sbuf = scratch_tile(sources["scratch"], "squares", load, chunk_sbuf)
        gradient_sbuf = exponentials_sbuf
    softmax(exponentials_sbuf, squares_sbuf, chunk_sbuf, position["bias"], options["softcap"])
    factors_sbuf = loaded_class_factors(sources["streams"], _visit(sources, batch) * num_chunks + chunk, options)
    if position["spread"] == None:  # noqa: E711
        nisa.tensor_scalar(dst=gradient_sbuf, data=exponentials_sbuf, op0=nl.multiply, operand0=position["all"])
    elif factors_sbuf == None:  # noqa: E711
        nisa.tensor_scalar(
            dst=gradient_sbuf,
            data=exponentials_sbuf,
            op0=nl.multiply,
            operand0=position["all"],
            op1=nl.subtract,
            operand1=position["spread"],
        )
    else:
        nisa.tensor_scalar(dst=exponentials_sbuf, data=exponentials_sbuf, op0=nl.multiply, operand0=position["all"])
        nisa.scalar_tensor_tensor(
            dst=gradient_sbuf,
            data=factors_sbuf,
            op0=nl.multiply,
            operand0=position["spread"],
            op1=nl.subtract,
            operand1=exponentials_sbuf,
            reverse1=True,
        )
    if options["softcap"] != 0.0:
        through_cap(chunk_sbuf, gradient_sbuf, squares_sbuf)


def _gather_target(stream: Any, position: Any, batch: Any, dtype: Any, options: Any) -> None:
    """The logits of a batch's targets, before a store may overwrite them; class probabilities have none."""
    if options["has_probabilities"]:
        return None
    logits_hbm, _, _, _, cores = stream
    first, rows = batch
    position["target_logit"] = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
    position["gather"] = nisa.dma_copy(
        dst=position["target_logit"], src=target_elements(logits_hbm, position["index"], first, rows, cores)
    )
    return None


def _scatter_target(grad_logits_hbm: Any, position: Any, dtype: Any, cores: int, options: Any) -> None:
    """Put the gradient at the targets of a batch over what the batch's stores have put there."""
    if options["has_probabilities"]:
        return None
    gradient_sbuf = target_gradient(position, position["target_logit"], dtype, options)
    scatter_after(position["stores"], grad_logits_hbm, gradient_sbuf, position["index"], position["first"], cores)
    return None
