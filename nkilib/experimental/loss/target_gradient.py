"""The backward beside its chunks: what a batch needs before its first exponential, and the gradient at its targets.

All of it is small: a batch is prepared while the one before streams, and its targets' gradient is computed and
scattered while the next one does.
"""

from __future__ import annotations

from typing import Any

from nkilib.core.cores import strided_rows
from nkilib.experimental.loss.chunk_statistics import NEGATIVE_ONE
from nkilib.experimental.loss.target_access import target_elements, target_indices
from nkilib.nki import nisa, nl


def log_of_constant(value: float, rows: int) -> Any:
    """log(value) as a float32 tile [rows, 1]; once per kernel, since log and exp need different activation tables."""
    log_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=log_sbuf, value=value)
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf)
    return log_sbuf


def prepare_batch(sources: Any, batch: Any, vocab_size: int, cores: int) -> Any:
    """Where a batch's target elements are, and the bias that makes its softmax.

    Args:
        sources: targets [N] and LSE [N] in HBM, log(scale) [P, 1], and the constants of the indices.
        batch: its first position, and how many.
        vocab_size, cores: as in :func:`target_indices`.

    Returns:
        tiles [rows, 1]: the int32 indices, and the float32 bias.
    """
    targets_hbm, lse_state_hbm, log_scale_sbuf, constants = sources
    first, rows = batch
    bias_sbuf = _softmax_bias(strided_rows(lse_state_hbm, first, rows, cores), log_scale_sbuf, rows)
    return target_indices(targets_hbm, constants, vocab_size, first, rows, cores), bias_sbuf


def _softmax_bias(lse_hbm: Any, log_scale_sbuf: Any, rows: int) -> Any:
    """log(scale) - LSE: with it as bias, one activation gives exp(x - LSE + log(scale)) = scale * softmax."""
    lse_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=lse_sbuf, src=lse_hbm)
    return negated_lse(lse_sbuf, log_scale_sbuf[0:rows, :])


def negated_lse(lse_sbuf: Any, added: Any) -> Any:
    """``added - LSE``, float32 [rows, 1], the bias of a softmax.

    Where the LSE is infinite, LSE * 0 makes the bias NaN, and with it the row's gradient, as PyTorch has it.
    """
    bias_sbuf = nl.ndarray(lse_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=bias_sbuf, data=lse_sbuf, op0=nl.multiply, operand0=NEGATIVE_ONE, op1=nl.add, operand1=added)
    nisa.scalar_tensor_tensor(
        dst=bias_sbuf, data=lse_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=bias_sbuf
    )
    return bias_sbuf


def scatter_target_gradient(grad_hbm: Any, batch: Any, scale: float, dtype: Any, cores: int) -> None:
    """Put the gradient at the targets of a batch over what the batch's stores have put there.

    Args:
        grad_hbm: [N, V].
        batch: its first position; the targets' indices, the bias and the targets' logits, [rows, 1]; its stores.
        scale, dtype, cores: of the launch.
    """
    first, index_sbuf, bias_sbuf, target_logit_sbuf, stores = batch
    target_grad_sbuf = _target_gradient(target_logit_sbuf, bias_sbuf, scale, dtype, index_sbuf.shape[0])
    scatter_after(stores, grad_hbm, target_grad_sbuf, index_sbuf, first, cores)


def scatter_after(stores: Any, grad_hbm: Any, target_grad_sbuf: Any, index_sbuf: Any, first: int, cores: int) -> None:
    """Scatter an element a row of a batch, when the stores of its rows are done."""
    rows = index_sbuf.shape[0]
    scatter = nisa.dma_copy(dst=target_elements(grad_hbm, index_sbuf, first, rows, cores), src=target_grad_sbuf)
    for store in stores:
        scatter.depends_on(store)


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
