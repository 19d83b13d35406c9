"""Cross-entropy loss and its gradient for large vocabularies, as plain functions to call from NKI code.

A kernel of yours calls these: the NKI compiler inlines functions, and refuses a call of something that is a kernel
itself (``nki/migration/index.rst``, "Remove nki.jit decorator on sub-kernels"). To launch them on their own, take the
kernels of the same names in :mod:`nkilib.experimental.loss.cross_entropy`.

Both work on batches of positions, one position a partition, and on chunks of the vocabulary, so that neither
needs a whole row on chip. The forward reads the logits from HBM once, the backward reads and writes them once.
"""

from __future__ import annotations

from typing import Any

from nkilib.core.cores import positions_of_core, strided_rows
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.chunk_statistics import NEGATIVE_ONE, make_statistics, row_statistics
from nkilib.experimental.loss.sbuf_plan import make_chunk_buffers, rows_per_batch
from nkilib.experimental.loss.target_access import make_index_constants, target_elements, target_indices
from nkilib.experimental.loss.validation import validate_backward, validate_forward
from nkilib.nki import nisa, nl


def cross_entropy_forward(
    logits_hbm: Any,
    targets_hbm: Any,
    positions_per_batch: int = 32,
    chunk_size: int = 32768,
    dtype: Any = nl.bfloat16,
    lse_dtype: Any = None,
) -> tuple[Any, Any]:
    """Cross-entropy loss of every position, and the log-sum-exp that the backward needs.

    Equivalent to ``F.cross_entropy(logits, targets, reduction="none")`` and ``torch.logsumexp(logits, 1)`` in PyTorch.
    Launch with ``cross_entropy_forward[2](...)`` on a logical NeuronCore of two cores, without ``[2]`` on one core.

    Dimensions:
        N: positions, that is tokens (N > 0).
        V: vocabulary size (V > 0).

    Args:
        logits_hbm: [N, V], bfloat16 or float32, in HBM.
        targets_hbm: [N], int32, in HBM; each in [0, V). Another value is an out-of-range access of the DMA engine.
        positions_per_batch: positions that are worked on at a time, 1 to 128.
        chunk_size: vocabulary entries that are worked on at a time, 1 to min(V, 65535), such that
            ``positions_per_batch * chunk_size * bytes(dtype) <= 24 MiB`` and a chunk fits a partition of SBUF.
        dtype: bfloat16 or float32: type of the tiles, to which the logits are rounded, and of the loss. All statistics
            are float32 whatever it is.
        lse_dtype: bfloat16 or float32: type of the log-sum-exp; None means ``dtype``.

    Returns:
        loss_hbm: [N], ``dtype``, nats: ``log(sum(exp(logits))) - logits[target]``, never negative.
        lse_state_hbm: [N], ``lse_dtype``: ``log(sum(exp(logits)))``.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    if lse_dtype == None:  # noqa: E711  (NKI has no "is")
        lse_dtype = dtype
    validate_forward(logits_hbm, targets_hbm, positions_per_batch, chunk_size, dtype, lse_dtype)
    num_positions, vocab_size = logits_hbm.shape
    cores = nl.num_programs()
    core = nl.program_id()
    loss_hbm = nl.ndarray((num_positions,), dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")
    lse_state_hbm = nl.ndarray((num_positions,), dtype=lse_dtype, buffer=nl.shared_hbm, name="lse_state_hbm")

    batch_rows = rows_per_batch(positions_per_batch, vocab_size, cores)
    positions = positions_of_core(num_positions, cores, core)
    num_chunks = div_ceil(vocab_size, chunk_size)
    loads = num_chunks * div_ceil(positions, batch_rows)
    chunk_buffers_sbuf = make_chunk_buffers(batch_rows, chunk_size, dtype, loads)
    statistics = make_statistics(batch_rows)
    constants = make_index_constants(batch_rows, vocab_size, cores)
    for done in range(0, positions, batch_rows):
        first = core + done * cores
        rows = min(batch_rows, positions - done)
        index_sbuf = target_indices(targets_hbm, constants, vocab_size, first, rows, cores)
        target_logit_sbuf = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
        # DMA rounds this logit to dtype just as it rounds the chunks: no other logit can exceed the maximum.
        nisa.dma_copy(dst=target_logit_sbuf, src=target_elements(logits_hbm, index_sbuf, first, rows, cores))
        first_load = done // batch_rows * num_chunks
        neg_max_sbuf, sum_sbuf = row_statistics(
            strided_rows(logits_hbm, first, rows, cores), chunk_buffers_sbuf, first_load, statistics
        )
        loss_sbuf = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
        lse_sbuf = nl.ndarray((rows, 1), dtype=lse_dtype, buffer=nl.sbuf)
        _loss_and_lse(neg_max_sbuf, sum_sbuf, target_logit_sbuf, loss_sbuf, lse_sbuf, rows)
        nisa.dma_copy(dst=strided_rows(loss_hbm, first, rows, cores), src=loss_sbuf)
        nisa.dma_copy(dst=strided_rows(lse_state_hbm, first, rows, cores), src=lse_sbuf)
    return loss_hbm, lse_state_hbm


def _loss_and_lse(
    neg_max_sbuf: Any, sum_sbuf: Any, target_logit_sbuf: Any, loss_sbuf: Any, lse_sbuf: Any, rows: int
) -> None:
    """loss = log d - (x_target - m) and LSE = log d + m, each rounded once at the end.

    The loss does not go through the LSE: where logits are large, LSE - x_target would cancel what the LSE's rounding
    has left of log d. A row with a +inf has LSE +inf and, as in PyTorch, loss NaN: LSE * 0 is added, which is 0 where
    the LSE is finite.
    """
    log_sum_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=log_sum_sbuf, op=nl.log, data=sum_sbuf)
    exact_lse_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=exact_lse_sbuf, data1=log_sum_sbuf, data2=neg_max_sbuf, op=nl.subtract)
    exact_loss_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=exact_loss_sbuf,
        data=target_logit_sbuf,
        op0=nl.add,
        operand0=neg_max_sbuf,
        op1=nl.subtract,
        operand1=log_sum_sbuf,
        reverse1=True,
    )
    nisa.scalar_tensor_tensor(
        dst=loss_sbuf, data=exact_lse_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=exact_loss_sbuf
    )
    nisa.tensor_copy(dst=lse_sbuf, src=exact_lse_sbuf)


def cross_entropy_backward(
    logits_hbm: Any,
    targets_hbm: Any,
    lse_state_hbm: Any,
    reduction: str = "mean",
    positions_per_batch: int = 32,
    chunk_size: int = 32768,
    dtype: Any = nl.bfloat16,
    inplace: bool = True,
) -> Any:
    """Gradient of the cross-entropy loss with respect to the logits: ``scale * (softmax - onehot)``.

    Equivalent to the gradient of ``F.cross_entropy(logits, targets, reduction=reduction)`` in PyTorch. Launch as the
    forward.

    Dimensions:
        N: positions, that is tokens (N > 0).
        V: vocabulary size (V > 0).

    Args:
        logits_hbm: [N, V], bfloat16 or float32, in HBM: what the forward was given.
        targets_hbm: [N], int32, in HBM: what the forward was given.
        lse_state_hbm: [N], bfloat16 or float32, in HBM: the log-sum-exp from the forward. Its rounding is multiplied
            into the gradient: bfloat16 changes exp(x - LSE) by up to 2^-9 of LSE, 6 percent for an LSE of 32. Ask the
            forward for ``lse_dtype=nl.float32``.
        reduction: ``"mean"`` (scale 1/N) or ``"sum"`` (scale 1).
        positions_per_batch, chunk_size: as in the forward; they need not be the same.
        dtype: bfloat16 or float32: type of the tiles and of the gradient. Everything of shape [P, 1] is float32.
        inplace: write the gradient over ``logits_hbm``, in its dtype; else into a new tensor.

    Returns:
        grad_logits_hbm: [N, V], ``dtype``; with ``inplace``, ``logits_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    validate_backward(
        logits_hbm, targets_hbm, lse_state_hbm, reduction, positions_per_batch, chunk_size, dtype, inplace
    )
    num_positions, vocab_size = logits_hbm.shape
    cores = nl.num_programs()
    core = nl.program_id()
    if inplace:
        grad_logits_hbm = logits_hbm
    else:
        grad_logits_hbm = nl.ndarray((num_positions, vocab_size), dtype=dtype, buffer=nl.shared_hbm, name="grad_hbm")

    batch_rows = rows_per_batch(positions_per_batch, vocab_size, cores)
    positions = positions_of_core(num_positions, cores, core)
    num_chunks = div_ceil(vocab_size, chunk_size)
    loads = num_chunks * div_ceil(positions, batch_rows)
    chunk_buffers_sbuf = make_chunk_buffers(batch_rows, chunk_size, dtype, loads)
    constants = make_index_constants(batch_rows, vocab_size, cores)
    scale = 1.0 / num_positions if reduction == "mean" else 1.0
    log_scale_sbuf = _log_of_constant(scale, batch_rows)
    for done in range(0, positions, batch_rows):
        first = core + done * cores
        rows = min(batch_rows, positions - done)
        index_sbuf = target_indices(targets_hbm, constants, vocab_size, first, rows, cores)
        target_logit_sbuf = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
        gather = nisa.dma_copy(dst=target_logit_sbuf, src=target_elements(logits_hbm, index_sbuf, first, rows, cores))
        bias_sbuf = _softmax_bias(strided_rows(lse_state_hbm, first, rows, cores), log_scale_sbuf, rows)
        stores = _store_softmax(
            strided_rows(logits_hbm, first, rows, cores),
            strided_rows(grad_logits_hbm, first, rows, cores),
            chunk_buffers_sbuf,
            done // batch_rows * num_chunks,
            bias_sbuf,
            gather,
        )
        target_grad_sbuf = _target_gradient(target_logit_sbuf, bias_sbuf, scale, dtype, rows)
        scatter = nisa.dma_copy(
            dst=target_elements(grad_logits_hbm, index_sbuf, first, rows, cores), src=target_grad_sbuf
        )
        # The scatter overwrites one element of each row that the stores have put there.
        for store in stores:
            scatter.depends_on(store)
    return grad_logits_hbm


def _log_of_constant(value: float, rows: int) -> Any:
    """log(value) as a float32 tile [rows, 1]; once per kernel, since log and exp need different activation tables."""
    log_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=log_sbuf, value=value)
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf)
    return log_sbuf


def _softmax_bias(lse_hbm: Any, log_scale_sbuf: Any, rows: int) -> Any:
    """log(scale) - LSE: with it as bias, one activation gives exp(x - LSE + log(scale)) = scale * softmax.

    Where the LSE is infinite, LSE * 0 makes the bias NaN, and with it the row's gradient, as PyTorch has it.
    """
    lse_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=lse_sbuf, src=lse_hbm)
    bias_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=bias_sbuf,
        data=lse_sbuf,
        op0=nl.multiply,
        operand0=NEGATIVE_ONE,
        op1=nl.add,
        operand1=log_scale_sbuf[0:rows, :],
    )
    nisa.scalar_tensor_tensor(
        dst=bias_sbuf, data=lse_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=bias_sbuf
    )
    return bias_sbuf


def _store_softmax(
    logits_hbm: Any, grad_hbm: Any, chunk_buffers_sbuf: Any, first_load: int, bias_sbuf: Any, gather: Any
) -> Any:
    """Store exp(x + bias) of a batch of rows, chunk by chunk; returns the stores.

    The chunks take the buffers in turn, beginning where ``first_load`` earlier chunks have left off. Each store waits
    for ``gather``: in place it would overwrite the target's logit.
    """
    rows, vocab_size = logits_hbm.shape
    chunk_size = chunk_buffers_sbuf[0].shape[1]
    stores = list()
    for chunk in range(div_ceil(vocab_size, chunk_size)):
        start = chunk * chunk_size
        end = min(start + chunk_size, vocab_size)
        buffer_sbuf = chunk_buffers_sbuf[(first_load + chunk) % len(chunk_buffers_sbuf)]
        chunk_sbuf = buffer_sbuf[0:rows, 0 : end - start]
        nisa.dma_copy(dst=chunk_sbuf, src=logits_hbm[:, start:end])
        nisa.activation(dst=chunk_sbuf, op=nl.exp, data=chunk_sbuf, bias=bias_sbuf)
        store = nisa.dma_copy(dst=grad_hbm[:, start:end], src=chunk_sbuf)
        store.depends_on(gather)
        stores.append(store)
    return stores


def _target_gradient(target_logit_sbuf: Any, bias_sbuf: Any, scale: float, dtype: Any, rows: int) -> Any:
    """scale * (p - 1) at the target, rounded to ``dtype`` after the subtraction, where p near 1 would lose all digits.

    Returns:
        tile [rows, 1] of ``dtype``.
    """
    scaled_p_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=scaled_p_sbuf, op=nl.exp, data=target_logit_sbuf, bias=bias_sbuf)
    target_grad_sbuf = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=target_grad_sbuf, data=scaled_p_sbuf, op0=nl.subtract, operand0=scale)
    return target_grad_sbuf
