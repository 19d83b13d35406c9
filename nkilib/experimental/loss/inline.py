"""Cross-entropy loss and its gradient for large vocabularies, as plain functions to call from NKI code.

A kernel of yours calls these: the NKI compiler inlines functions, and refuses a call of something that is a kernel
itself (``nki/migration/index.rst``, "Remove nki.jit decorator on sub-kernels"). To launch them on their own, take the
kernels of the same names in :mod:`nkilib.experimental.loss.cross_entropy`.

Both work on batches of positions, one position a partition, and on chunks of the vocabulary, so that neither
needs a whole row on chip. The forward reads the logits from HBM once, the backward reads and writes them once.
"""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.backward import backward_of_core
from nkilib.experimental.loss.chunk_loads import make_stream
from nkilib.experimental.loss.forward import forward_of_core
from nkilib.experimental.loss.validation import validate_backward, validate_forward
from nkilib.nki import nl


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
    num_positions = logits_hbm.shape[0]
    loss_hbm = nl.ndarray((num_positions,), dtype=dtype, buffer=nl.shared_hbm, name="loss_hbm")
    lse_state_hbm = nl.ndarray((num_positions,), dtype=lse_dtype, buffer=nl.shared_hbm, name="lse_state_hbm")

    stream = make_stream(logits_hbm, positions_per_batch, chunk_size, dtype)
    forward_of_core(stream, targets_hbm, loss_hbm, lse_state_hbm, dtype)
    return loss_hbm, lse_state_hbm


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
    if inplace:
        grad_logits_hbm = logits_hbm
    else:
        grad_logits_hbm = nl.ndarray((num_positions, vocab_size), dtype=dtype, buffer=nl.shared_hbm, name="grad_hbm")

    scale = 1.0 / num_positions if reduction == "mean" else 1.0
    stream = make_stream(logits_hbm, positions_per_batch, chunk_size, dtype)
    backward_of_core(stream, targets_hbm, lse_state_hbm, grad_logits_hbm, scale, dtype)
    return grad_logits_hbm
