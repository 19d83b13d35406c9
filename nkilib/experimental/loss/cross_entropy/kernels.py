# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy loss and its gradient for large vocabularies, where every target is a valid class.

Both kernels process batches of positions, one position per partition, and chunks of the vocabulary, so that neither
needs a whole row on chip. The forward reads the logits from HBM once, the backward reads and writes them once.
"""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.rows.checks import require, require_flag, require_float_type
from nkilib.experimental.loss.cross_entropy.backward import backward_of_core
from nkilib.experimental.loss.cross_entropy.forward import forward_of_core
from nkilib.experimental.loss.cross_entropy.maximum import with_form
from nkilib.experimental.loss.cross_entropy.options import Classes, Launch, Options
from nkilib.experimental.loss.cross_entropy.results import Results, new_vector
from nkilib.experimental.loss.cross_entropy.upstream import UniformUpstream
from nkilib.experimental.loss.cross_entropy.validation import validate_arrays, validate_lse, validate_tiles
from nkilib.nki import nl


def cross_entropy_forward(
    logits_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    positions_per_batch: int = 32,
    chunk_size: int = 32768,
    dtype: nl.DType = nl.bfloat16,
    lse_dtype: nl.DType | None = None,
    exact_maximum: bool | None = None,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Cross-entropy loss of every position, and the log-sum-exp that the backward needs.

    Equivalent to ``F.cross_entropy(logits, targets, reduction="none")`` and ``torch.logsumexp(logits, 1)`` in
    PyTorch. Launch with ``cross_entropy_forward[2](...)`` on a logical NeuronCore of two cores; without ``[2]``
    it runs on as many cores as ``NEURON_LOGICAL_NC_CONFIG`` says, or on one.

    Dimensions:
        N: positions, that is tokens (N > 0).
        V: vocabulary size (V > 0).

    Args:
        logits_hbm: [N, V], bfloat16, float16 or float32, in HBM.
        targets_hbm: [N], int32, in HBM; each in [0, V). Another value is an out-of-range access of the DMA engine.
        positions_per_batch: positions processed at a time, 1 to 128.
        chunk_size: vocabulary entries processed at a time, 1 to min(V, 65535), such that
            ``positions_per_batch * chunk_size * bytes(dtype) <= 24 MiB`` and a chunk fits a partition of SBUF.
        dtype: type of the tiles, to which the logits are rounded, and of the loss: bfloat16, float32, or float16 if
            the logits are float16. All statistics are float32 for every ``dtype``.
        lse_dtype: type of the log-sum-exp, bfloat16, float16 or float32; None means ``dtype``. A float16 result
            beyond 65504 is infinite.
        exact_maximum: True computes the maximum of every row before its exponentials. False subtracts, instead
            of the maximum, a shift that is known earlier: the larger of the maximum of the row's first chunk
            and the target's logit. It recomputes the few rows for which the shift is not exact enough; it needs
            at least two chunks per row, and a position for each core. None selects the form that is modelled to
            be faster: the shift for large launches of 16-bit types.

    Returns:
        loss_hbm: [N], ``dtype``, nats: ``log(sum(exp(logits))) - logits[target]``, never negative.
        lse_state_hbm: [N], ``lse_dtype``: ``log(sum(exp(logits)))``.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "cross_entropy_forward"
    launch = Launch(function, logits_hbm, targets_hbm, None, positions_per_batch, chunk_size, dtype)
    lse_dtype = dtype if lse_dtype is None else lse_dtype
    validate_arrays(launch, allow_probabilities=False)
    require_float_type(function, "lse_dtype", lse_dtype)
    options = _plain_options(launch)
    validate_tiles(launch, options.forward_plan)
    options = with_form(launch, options, exact_maximum)
    loss_hbm = new_vector("loss_hbm", launch.num_positions, dtype)
    lse_state_hbm = new_vector("lse_state_hbm", launch.num_positions, lse_dtype)
    forward_of_core(launch, options, Results(loss_hbm, lse_state_hbm))
    return loss_hbm, lse_state_hbm


def cross_entropy_backward(
    logits_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    lse_state_hbm: HbmTensor,
    reduction: str = "mean",
    positions_per_batch: int = 32,
    chunk_size: int = 32768,
    dtype: nl.DType = nl.bfloat16,
    inplace: bool = True,
) -> nl.NkiTensor:
    """Gradient of the cross-entropy loss with respect to the logits: ``scale * (softmax - onehot)``.

    Equivalent to the gradient of ``F.cross_entropy(logits, targets, reduction=reduction)`` in PyTorch. Launch it like
    the forward.

    Dimensions:
        N: positions, that is tokens (N > 0).
        V: vocabulary size (V > 0).

    Args:
        logits_hbm: [N, V], bfloat16, float16 or float32, in HBM: the logits passed to the forward.
        targets_hbm: [N], int32, in HBM: the targets passed to the forward.
        lse_state_hbm: [N], bfloat16, float16 or float32, in HBM: the log-sum-exp from the forward. Its rounding is
            multiplied into the gradient: bfloat16 changes exp(x - LSE) by up to 2^-9 of LSE, 6 percent for an LSE of
            32. Pass ``lse_dtype=nl.float32`` to the forward.
        reduction: ``"mean"`` (scale 1/N) or ``"sum"`` (scale 1).
        positions_per_batch, chunk_size: see the forward; the values may differ from the forward's.
        dtype: type of the tiles and of the gradient, which is rounded to it once: bfloat16, float32, or float16
            if the logits are float16. Every number per position is float32. float16 has nothing between 0 and
            6e-8: a mean over 4,096 positions is 0 where a probability is below 1.2e-4. Scale the loss, as the
            extended kernel's ``grad_loss`` does.
        inplace: write the gradient over ``logits_hbm``, in its dtype; else into a new tensor.

    Returns:
        grad_logits_hbm: [N, V], ``dtype``; with ``inplace``, ``logits_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "cross_entropy_backward"
    launch = Launch(function, logits_hbm, targets_hbm, None, positions_per_batch, chunk_size, dtype)
    validate_arrays(launch, allow_probabilities=False)
    options = _plain_options(launch)
    validate_tiles(launch, options.backward_plan)
    validate_lse(launch, lse_state_hbm)
    require(reduction in ("mean", "sum"), f'{function}: reduction must be "mean" or "sum", got {reduction}')
    require_flag(function, "inplace", inplace)
    scale = 1.0 / launch.num_positions if reduction == "mean" else 1.0
    return backward_of_core(launch, options, UniformUpstream(lse_state_hbm, scale), inplace)


def _plain_options(launch: Launch) -> Options:
    """Return the options of the plain kernels: every position is valid, and all other options are off."""
    return Options(Classes(0, launch.vocab_size, launch.vocab_size), is_plain=True)
