# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of connectionist temporal classification (CTC): plain functions to call from NKI code.

The functions ``require_...`` check the arguments before the first instruction. :func:`fitting_layout` chooses the sizes
of a launch so that its tiles fit SBUF. T is the number of time steps, N of sequences, C of classes, and S of labels of
the longest target.
"""

from __future__ import annotations

from math import prod

from nkilib.core.hardware import PARTITIONS, HbmTensor
from nkilib.core.host.options import is_integer
from nkilib.core.loss_arguments import require_float_tensor, require_reduction, require_upstream
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require, require_flag, require_indirect_dma
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.ctc.forward import Results, forward_of_core
from nkilib.experimental.loss.ctc.gradient import (
    PIECE_COLUMNS,
    CtcUpstream,
    backward_of_core,
    kept_bytes,
    kept_wavefronts,
    runs,
)
from nkilib.experimental.loss.ctc.layout import BatchLayout, BatchShape, Inputs, steps_that_fit
from nkilib.nki import nl

# Sums of the logarithm of 0 stay finite.
_STEPS_MAX = 2**24
# A row of 512 bytes or less that is stored takes twice as long; a pair has two states of four bytes. Loads have no such
# limit, and with fewer pairs an instruction gets no shorter.
_FORWARD_PAIRS, _BACKWARD_PAIRS = 64, 32
# Tiles of a float32 for each pair that a group keeps, and those of a step.
_CONSTANT_COLUMNS = 20
# Of all states of a sequence, when the chunks are done.
_LIKELIHOOD_TILES = 6
_SMALL_BYTES = 8 * 1024
# Pieces of the gradient that are there at a time.
_PIECES = 2


def _require_int32(function: str, name: str, tensor_hbm: nl.NkiTensor) -> None:
    require(
        tensor_hbm.dtype == nl.int32,
        f"{function}: {name} must be nl.int32, got {tensor_hbm.dtype}; cast it",
    )


def require_batch(
    function: str,
    log_probs_hbm: nl.NkiTensor,
    targets_hbm: nl.NkiTensor | None,
    lengths: dict[str, nl.NkiTensor],
    blank: int,
) -> None:
    """Check the tensors and the class of the blank.

    Args:
        function: the name of the function in error messages.
        log_probs_hbm: the log-probabilities, [T, N, C].
        targets_hbm: the labels, int32 [N, S], or None.
        lengths: the input lengths and the target lengths, int32 [N], by the names of their arguments.
        blank: the class of the blank.
    """
    shape = tuple(log_probs_hbm.shape)
    require(
        len(shape) == 3 and prod(shape) > 0,
        f"{function}: log_probs_hbm must have shape (T, N, C) with at least one element, got {shape}; launch nothing "
        f"for an empty batch, and unsqueeze(1) a single sequence",
    )
    steps, sequences, classes = shape
    require_float_tensor(function, "log_probs_hbm.dtype", log_probs_hbm.dtype)
    require(
        steps <= _STEPS_MAX, f"{function}: log_probs_hbm must have at most {_STEPS_MAX} time steps, got {steps}; cut it"
    )
    if targets_hbm is not None:
        got = tuple(targets_hbm.shape)
        require(
            len(got) == 2 and got[0] == sequences and got[1] > 0,
            f"{function}: targets_hbm must have shape ({sequences}, S), S > 0, or be None if no target has a label, "
            f"got {got}; pad the targets",
        )
        _require_int32(function, "targets_hbm", targets_hbm)
    for name, lengths_hbm in lengths.items():
        require(
            tuple(lengths_hbm.shape) == (sequences,),
            f"{function}: {name} must have shape ({sequences},), one for each sequence, got {tuple(lengths_hbm.shape)}",
        )
        _require_int32(function, name, lengths_hbm)
    require(
        is_integer(blank) and 0 <= blank < classes,
        f"{function}: blank must be a class from 0 to {classes - 1}, got {blank}",
    )


def require_options(function: str, reduction: str, zero_infinity: bool) -> None:
    """Check the options of the loss, and that the device supports the indirect DMA that the kernels need."""
    require_reduction(function, reduction)
    require_flag(function, "zero_infinity", zero_infinity)
    require_indirect_dma(function)


def require_float32(function: str, name: str, tensor_hbm: nl.NkiTensor, shape: tuple[int, ...]) -> None:
    """Check the shape and the type of a float32 result of the forward that is passed to the backward."""
    require(
        tuple(tensor_hbm.shape) == shape and tensor_hbm.dtype == nl.float32,
        f"{function}: {name} must be float32 of shape {shape}, as the forward returned it, got {tensor_hbm.dtype} of "
        f"shape {tuple(tensor_hbm.shape)}",
    )


def _piece_bytes(layout: BatchLayout, dtype: nl.DType) -> int:
    """Return the bytes per partition of the tiles in which pieces of the gradient are computed."""
    of_element = dtype_bytes(nl.float32) + (0 if dtype == nl.float32 else 2 * dtype_bytes(dtype))
    return _PIECES * of_element * min(PIECE_COLUMNS, layout.rows * layout.classes)


def fitting_layout(function: str, shape: BatchShape, labels: int, dtype: nl.DType, of_backward: bool) -> BatchLayout:
    """Return the layout of a launch. Its chunks of time are as long as SBUF allows.

    Args:
        function: the name of the function in error messages.
        shape: T, N and C.
        labels: S.
        dtype: the type of the log-probabilities.
        of_backward: whether the launch is the backward.
    """
    fewest_pairs = _BACKWARD_PAIRS if of_backward else _FORWARD_PAIRS
    layout = BatchLayout.make(shape, labels, fewest_pairs, 1)
    element, float32 = dtype_bytes(dtype), dtype_bytes(nl.float32)
    width = 2 * layout.pairs + 1
    of_step = 2 * element * (layout.classes + layout.pairs) + float32 * (5 * layout.pairs + 2 * width + 4)
    fixed_bytes = 2 * float32 * width + _CONSTANT_COLUMNS * float32 * (layout.pairs + 1) + _SMALL_BYTES
    if of_backward:
        transposed = kept_wavefronts(layout.blocks) * len(runs(layout.pairs)) * PARTITIONS
        of_step += float32 * (2 * width + 2 * layout.pairs + transposed)
        fixed_bytes += _piece_bytes(layout, dtype) + kept_bytes(layout.group(0))
    else:
        of_states, available = _LIKELIHOOD_TILES * float32 * layout.states, usable_sbuf_bytes()
        require(
            of_states <= available,
            f"{function}: the states of {labels} labels take {of_states} bytes of an SBUF partition, which has "
            f"{available}; pass shorter targets",
        )
    chunk = steps_that_fit(of_step, fixed_bytes)
    require(
        chunk > 0,
        f"{function}: a time step of {layout.classes} classes and {labels} labels takes {of_step} bytes of an SBUF "
        f"partition, beside {fixed_bytes}, which has {usable_sbuf_bytes()}; pass fewer classes, as "
        f"bfloat16, or shorter targets",
    )
    return BatchLayout.make(shape, labels, fewest_pairs, chunk)


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
    """Compute the CTC loss: minus the logarithm of the summed probability of all alignments of a target to its input.

    Equivalent to ``F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)`` in
    PyTorch, computed in float32 logarithms. Launch with ``ctc_loss_forward[2](...)`` on a logical NeuronCore of two
    cores, which divide the sequences among themselves. The host reads no values of tensors.

    Dimensions:
        T: time steps. N: sequences. C: classes. S: labels of the longest target.

    Args:
        log_probs_hbm: [T, N, C] log-probabilities, bfloat16, float16 or float32, in HBM.
        targets_hbm: [N, S] int32, labels; None for S = 0. Labels behind a target's length are ignored. A label that is
            no class has probability 0.
        input_lengths_hbm: [N] int32, the number of time steps of each sequence, 0 to T.
        target_lengths_hbm: [N] int32, the number of labels of each target, 0 to S. A larger number means that the
            target has no alignment.
        blank: class of the blank.
        reduction: ``"none"``, ``"sum"`` or ``"mean"``. The mean divides each loss by max(target length, 1), and the sum
            of the quotients by N.
        zero_infinity: whether the loss of a target without an alignment is 0; else the loss is infinite.
        dtype: type of the losses for ``"none"``; None: the type of the log-probabilities.

    Returns:
        loss_hbm: the losses, [N] for ``"none"``, else their sum or mean, float32 [1].
        nll_hbm: [N] float32, the losses before reduction, infinite for a target without an alignment; an argument of
            the backward.
        alpha_hbm: [T, N, 2 S + 1] float32, for each time step and state of the target (blank, label, ..., blank) the
            log-probability of the prefixes that end in it; an argument of the backward. Values below -1e29 stand for
            the logarithm of 0. Values beyond the length of an input or a target are arbitrary.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "ctc_loss_forward"
    lengths = {"input_lengths_hbm": input_lengths_hbm, "target_lengths_hbm": target_lengths_hbm}
    require_batch(function, log_probs_hbm, targets_hbm, lengths, blank)
    require_options(function, reduction, zero_infinity)
    dtype = log_probs_hbm.dtype if dtype is None else dtype
    require_float_tensor(function, "dtype", dtype)
    shape = BatchShape(*log_probs_hbm.shape)
    labels = 0 if targets_hbm is None else targets_hbm.shape[1]
    layout = fitting_layout(function, shape, labels, log_probs_hbm.dtype, of_backward=False)
    is_each = reduction == "none"
    losses, loss_dtype = ((shape.sequences,), dtype) if is_each else ((1,), nl.float32)
    loss_hbm = nl.ndarray(losses, dtype=loss_dtype, buffer=nl.shared_hbm, name="loss_hbm")
    nll_hbm = nl.ndarray((shape.sequences,), dtype=nl.float32, buffer=nl.shared_hbm, name="nll_hbm")
    alphas = (shape.steps, shape.sequences, layout.states)
    alpha_hbm = nl.ndarray(alphas, dtype=nl.float32, buffer=nl.shared_hbm, name="alpha_hbm")
    batch = Inputs(log_probs_hbm, targets_hbm, input_lengths_hbm, target_lengths_hbm, blank)
    forward_of_core(layout, batch, Results(loss_hbm, nll_hbm, alpha_hbm, reduction, zero_infinity))
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

    The gradient is ``(exp(log_probs) - occupancy) * upstream``. The occupancy of a class at a time step is the
    probability that an alignment has this class at this time step. If the log-probabilities are the ``log_softmax`` of
    logits, the result is also the gradient with respect to the logits, because the derivative of ``log_softmax`` leaves
    it unchanged. Equivalent to the gradient of ``F.ctc_loss`` in PyTorch. Launch like :func:`ctc_loss_forward`.

    Dimensions:
        T: time steps. N: sequences. C: classes. S: labels of the longest target.

    Args:
        log_probs_hbm, targets_hbm, input_lengths_hbm, target_lengths_hbm, blank, reduction, zero_infinity: the
            arguments of the forward.
        nll_hbm, alpha_hbm: the results of the forward.
        grad_loss_hbm: the upstream gradient: for ``"none"`` [N], bfloat16, float16 or float32; else one float32, read
            on the device.

    Returns:
        grad_log_probs_hbm: [T, N, C] in the type of the log-probabilities, 0 beyond the end of each input. For a target
            without an alignment, the gradient is 0 with ``zero_infinity``, else NaN.

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
    layout = fitting_layout(function, shape, labels, log_probs_hbm.dtype, of_backward=True)
    require_float32(function, "nll_hbm", nll_hbm, (shape.sequences,))
    require_float32(function, "alpha_hbm", alpha_hbm, (shape.steps, shape.sequences, layout.states))
    grad_hbm = nl.ndarray(tuple(shape), dtype=log_probs_hbm.dtype, buffer=nl.shared_hbm, name="grad_log_probs_hbm")
    batch = Inputs(log_probs_hbm, targets_hbm, input_lengths_hbm, target_lengths_hbm, blank)
    upstream = CtcUpstream(grad_loss_hbm, reduction, zero_infinity)
    backward_of_core(layout, batch, (nll_hbm, alpha_hbm), upstream, grad_hbm)
    return grad_hbm
