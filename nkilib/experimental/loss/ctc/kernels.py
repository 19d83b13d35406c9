# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels of connectionist temporal classification: plain functions, to be launched or called from NKI code."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.core.losses.checks import require_floats, require_upstream
from nkilib.experimental.loss.ctc.backward import backward_of_core
from nkilib.experimental.loss.ctc.forward import Batch, Results, forward_of_core
from nkilib.experimental.loss.ctc.gradient import Upstream
from nkilib.experimental.loss.ctc.plan import BatchShape
from nkilib.experimental.loss.ctc.validation import fitting_plan, require_batch, require_float32, require_options
from nkilib.nki import nl


def ctc_loss_forward(
    log_probs_hbm: HbmTensor,
    targets_hbm: HbmTensor | None,
    input_lengths_hbm: HbmTensor,
    target_lengths_hbm: HbmTensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    dtype: nl.DType | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the CTC loss: minus the log-probability of all alignments of a target to its input.

    Equivalent to ``F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)`` in
    PyTorch, computed in float32 logarithms. Launch with ``ctc_loss_forward[2](...)`` on a logical NeuronCore of two
    cores; each computes half of the sequences. The host reads no values.

    Dimensions:
        T: time steps. N: sequences. C: classes. S: labels of the longest target.

    Args:
        log_probs_hbm: [T, N, C] log-probabilities, bfloat16, float16 or float32, in HBM.
        targets_hbm: [N, S] int32, labels; None for S = 0. Labels behind a target's length are ignored. A label that is
            no class has probability 0.
        input_lengths_hbm: [N] int32, times of each sequence, 0 to T.
        target_lengths_hbm: [N] int32, labels of each target, 0 to S. A longer target has no alignment.
        blank: class of the blank.
        reduction: ``"none"``, ``"sum"`` or ``"mean"``, which divides each loss by the length of its target, at least 1,
            and the sum by N.
        zero_infinity: whether the loss of a target without an alignment is 0; else it is infinite.
        dtype: type of the losses for ``"none"``; None: the type of the log-probabilities.

    Returns:
        loss_hbm: [N] for ``"none"``, else [1], float32.
        nll_hbm: [N] float32, the losses before ``zero_infinity`` and the reduction, an argument of the backward.
        alpha_hbm: [T, N, 2 S + 1] float32, logarithms of the probabilities of all prefixes, an argument of the
            backward. Values below -1e29 stand for the logarithm of 0. Values behind the length of an input or a
            target mean nothing.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "ctc_loss_forward"
    lengths = {"input_lengths_hbm": input_lengths_hbm, "target_lengths_hbm": target_lengths_hbm}
    require_batch(function, log_probs_hbm, targets_hbm, lengths, blank)
    require_options(function, reduction, zero_infinity)
    dtype = log_probs_hbm.dtype if dtype is None else dtype
    require_floats(function, "dtype", dtype)
    shape = BatchShape(*log_probs_hbm.shape)
    labels = 0 if targets_hbm is None else targets_hbm.shape[1]
    plan = fitting_plan(function, shape, labels, log_probs_hbm.dtype, of_backward=False)
    is_each = reduction == "none"
    losses, loss_dtype = ((shape.sequences,), dtype) if is_each else ((1,), nl.float32)
    loss_hbm = nl.ndarray(losses, dtype=loss_dtype, buffer=nl.shared_hbm, name="loss_hbm")
    nll_hbm = nl.ndarray((shape.sequences,), dtype=nl.float32, buffer=nl.shared_hbm, name="nll_hbm")
    alphas = (shape.steps, shape.sequences, plan.states)
    alpha_hbm = nl.ndarray(alphas, dtype=nl.float32, buffer=nl.shared_hbm, name="alpha_hbm")
    batch = Batch(log_probs_hbm, targets_hbm, input_lengths_hbm, target_lengths_hbm, blank)
    forward_of_core(plan, batch, Results(loss_hbm, nll_hbm, alpha_hbm, reduction, zero_infinity))
    return loss_hbm, nll_hbm, alpha_hbm


def ctc_loss_backward(
    log_probs_hbm: HbmTensor,
    targets_hbm: HbmTensor | None,
    input_lengths_hbm: HbmTensor,
    target_lengths_hbm: HbmTensor,
    nll_hbm: HbmTensor,
    alpha_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> nl.NkiTensor:
    """Compute the gradient of the loss with respect to the log-probabilities, as PyTorch defines it.

    For each time and class it is ``exp(log_probs)`` minus the probability that an alignment is at that class at
    that time, times the upstream gradient. If the log-probabilities are the ``log_softmax`` of logits, it is
    also the gradient with respect to the logits, because the derivative of ``log_softmax`` leaves it unchanged.
    Equivalent to the gradient of ``F.ctc_loss`` in PyTorch. Launch like :func:`ctc_loss_forward`.

    Dimensions:
        T: time steps. N: sequences. C: classes. S: labels of the longest target.

    Args:
        log_probs_hbm, targets_hbm, input_lengths_hbm, target_lengths_hbm, blank, reduction, zero_infinity: the
            arguments of the forward.
        nll_hbm, alpha_hbm: the results of the forward.
        grad_loss_hbm: [N] for ``"none"``, bfloat16, float16 or float32; else one float32, which is read on the device.

    Returns:
        grad_log_probs_hbm: [T, N, C] in the type of the log-probabilities, 0 behind the end of each input. Without an
        alignment it is 0 with ``zero_infinity`` and else NaN.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "ctc_loss_backward"
    lengths = {"input_lengths_hbm": input_lengths_hbm, "target_lengths_hbm": target_lengths_hbm}
    require_batch(function, log_probs_hbm, targets_hbm, lengths, blank)
    require_options(function, reduction, zero_infinity)
    shape = BatchShape(*log_probs_hbm.shape)
    require_upstream(function, grad_loss_hbm, (shape.sequences,), is_each=reduction == "none")
    labels = 0 if targets_hbm is None else targets_hbm.shape[1]
    plan = fitting_plan(function, shape, labels, log_probs_hbm.dtype, of_backward=True)
    require_float32(function, "nll_hbm", nll_hbm, (shape.sequences,))
    require_float32(function, "alpha_hbm", alpha_hbm, (shape.steps, shape.sequences, plan.states))
    grad_hbm = nl.ndarray(tuple(shape), dtype=log_probs_hbm.dtype, buffer=nl.shared_hbm, name="grad_log_probs_hbm")
    batch = Batch(log_probs_hbm, targets_hbm, input_lengths_hbm, target_lengths_hbm, blank)
    upstream = Upstream(grad_loss_hbm, reduction, zero_infinity)
    backward_of_core(plan, batch, (nll_hbm, alpha_hbm), upstream, grad_hbm)
    return grad_hbm
