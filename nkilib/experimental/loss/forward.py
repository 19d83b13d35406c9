"""The forward on one core: statistics chunk by chunk, results group by group of batches."""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.batches import batch_groups, group_values
from nkilib.experimental.loss.chunk_loads import loaded_chunk
from nkilib.experimental.loss.chunk_statistics import (
    chunk_statistics,
    make_statistics,
    row_logs,
    row_sums,
    row_weights,
)
from nkilib.experimental.loss.target_access import make_index_constants, target_elements, target_indices
from nkilib.nki import nisa, nl


def forward_of_core(stream: Any, targets_hbm: Any, loss_hbm: Any, lse_state_hbm: Any, dtype: Any) -> None:
    """Losses and log-sum-exps of the positions of this core.

    Args:
        stream: from :func:`.chunk_loads.make_stream`.
        targets_hbm, loss_hbm, lse_state_hbm: [N].
        dtype: of the tiles.
    """
    logits_hbm, batches, _, num_chunks, cores = stream
    if len(batches) == 0:
        return None
    vocab_size = logits_hbm.shape[1]
    constants = make_index_constants(batches[0][1], vocab_size, cores)
    group = None
    for start, end in batch_groups(len(batches), num_chunks):
        previous = group
        first, rows = batches[start]
        statistics = make_statistics(rows, end - start, num_chunks, dtype)
        target_logits_sbuf = nl.ndarray((rows, end - start), dtype=dtype, buffer=nl.sbuf)
        group = (first, statistics, target_logits_sbuf)
        for load in range(start * num_chunks, end * num_chunks):
            batch = load // num_chunks
            chunk = load % num_chunks
            first, rows = batches[batch]
            chunk_statistics(loaded_chunk(stream, load), statistics, batch - start, chunk)
            if chunk == 0:
                index_sbuf = target_indices(targets_hbm, constants, vocab_size, first, rows, cores)
            if chunk == min(1, num_chunks - 1):
                # DMA rounds this logit to dtype just as it rounds the chunks: no other logit can exceed the maximum.
                nisa.dma_copy(
                    dst=target_logits_sbuf[:, batch - start : batch - start + 1],
                    src=target_elements(logits_hbm, index_sbuf, first, rows, cores),
                )
            # The group before is finished beside this one's first chunks, so that no engine waits for another one.
            if start > 0 and load == start * num_chunks:
                _take_logs(previous, num_chunks)
            if start > 0 and load == min(start * num_chunks + 1, end * num_chunks - 1):
                _store_results(previous, loss_hbm, lse_state_hbm, cores)
        row_weights(statistics, num_chunks)
    _take_logs(group, num_chunks)
    _store_results(group, loss_hbm, lse_state_hbm, cores)
    return None


def _take_logs(group: Any, num_chunks: int) -> None:
    """d and log d of the rows of a group of batches."""
    _, statistics, _ = group
    row_sums(statistics, num_chunks)
    row_logs(statistics)


def _store_results(group: Any, loss_hbm: Any, lse_state_hbm: Any, cores: int) -> None:
    """loss = log d - (x_target - m) and LSE = log d + m, each rounded once at the end.

    The loss does not go through the LSE: where logits are large, LSE - x_target would cancel what the LSE's rounding
    has left of log d. A row with a +inf has LSE +inf and, as in PyTorch, loss NaN: LSE * 0 is added, which is 0 where
    the LSE is finite.

    Args:
        group: its first position, its statistics, and the logits of its targets, [rows, batches].
        loss_hbm, lse_state_hbm: [N].
        cores: of the launch.
    """
    first, statistics, target_logit_sbuf = group
    neg_max_sbuf, _, log_sum_sbuf = statistics[1]
    exact_lse_sbuf = log_sum_exps(log_sum_sbuf, neg_max_sbuf)
    exact_loss_sbuf = target_losses(log_sum_sbuf, neg_max_sbuf, target_logit_sbuf)
    rows, batches = log_sum_sbuf.shape
    loss_sbuf = nl.ndarray((rows, batches), dtype=loss_hbm.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=loss_sbuf, data=exact_lse_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=exact_loss_sbuf
    )
    lse_sbuf = nl.ndarray((rows, batches), dtype=lse_state_hbm.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=lse_sbuf, src=exact_lse_sbuf)
    nisa.dma_copy(dst=group_values(loss_hbm, first, rows, batches, cores), src=loss_sbuf)
    nisa.dma_copy(dst=group_values(lse_state_hbm, first, rows, batches, cores), src=lse_sbuf)


def log_sum_exps(log_sum_sbuf: Any, neg_max_sbuf: Any) -> Any:
    """log d + m, float32 [rows, batches]."""
    exact_lse_sbuf = nl.ndarray(log_sum_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=exact_lse_sbuf, data1=log_sum_sbuf, data2=neg_max_sbuf, op=nl.subtract)
    return exact_lse_sbuf


def target_losses(log_sum_sbuf: Any, neg_max_sbuf: Any, target_logit_sbuf: Any) -> Any:
    """log d - (x_target - m), float32 [rows, batches]."""
    exact_loss_sbuf = nl.ndarray(log_sum_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=exact_loss_sbuf, data1=target_logit_sbuf, data2=neg_max_sbuf, op=nl.add)
    nisa.tensor_tensor(dst=exact_loss_sbuf, data1=log_sum_sbuf, data2=exact_loss_sbuf, op=nl.subtract)
    return exact_loss_sbuf
