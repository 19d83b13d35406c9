"""The backward on one core: one exponential an element, and the gradient at the targets beside."""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.chunk_loads import chunk_in_hbm, loaded_chunk
from nkilib.experimental.loss.target_access import make_index_constants, target_elements
from nkilib.experimental.loss.target_gradient import log_of_constant, prepare_batch, scatter_target_gradient
from nkilib.nki import nisa, nl


def backward_of_core(
    stream: Any, targets_hbm: Any, lse_state_hbm: Any, grad_logits_hbm: Any, scale: float, dtype: Any
) -> None:
    """scale * (softmax - onehot) of the positions of this core.

    Args:
        stream: from :func:`.chunk_loads.make_stream`.
        targets_hbm, lse_state_hbm: [N].
        grad_logits_hbm: [N, V]; may be the logits.
        scale: of the gradient.
        dtype: of the tiles.
    """
    logits_hbm, batches, _, num_chunks, cores = stream
    if len(batches) == 0:
        return None
    vocab_size = logits_hbm.shape[1]
    batch_rows = batches[0][1]
    constants = make_index_constants(batch_rows, vocab_size, cores)
    sources = (targets_hbm, lse_state_hbm, log_of_constant(scale, batch_rows), constants)
    prepared = prepare_batch(sources, batches[0], vocab_size, cores)
    previous = None
    for batch in range(len(batches)):
        first, rows = batches[batch]
        index_sbuf, bias_sbuf = prepared
        target_logit_sbuf = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
        stores = list()
        for chunk in range(num_chunks):
            load = batch * num_chunks + chunk
            chunk_sbuf = loaded_chunk(stream, load)
            nisa.activation(dst=chunk_sbuf, op=nl.exp, data=chunk_sbuf, bias=bias_sbuf)
            if chunk == 0:
                gather = nisa.dma_copy(
                    dst=target_logit_sbuf, src=target_elements(logits_hbm, index_sbuf, first, rows, cores)
                )
                if batch + 1 < len(batches):
                    prepared = prepare_batch(sources, batches[batch + 1], vocab_size, cores)
            store = nisa.dma_copy(dst=chunk_in_hbm(stream, load, grad_logits_hbm), src=chunk_sbuf)
            store.depends_on(gather)  # in place it overwrites the target's logit
            stores.append(store)
            # Later than its last store, so that the scatter need not wait for it, nor Scalar for the gather.
            if batch > 0 and chunk == min(1, num_chunks - 1):
                scatter_target_gradient(grad_logits_hbm, previous, scale, dtype, cores)
        previous = (first, index_sbuf, bias_sbuf, target_logit_sbuf, stores)
    scatter_target_gradient(grad_logits_hbm, previous, scale, dtype, cores)
    return None
