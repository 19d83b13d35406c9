# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of connectionist temporal classification (CTC): its registry entry, float64 reference and bounds on the
error of the kernels.

T is the number of time steps, N of sequences, C of classes, and S of labels of the longest target. An *alignment*
assigns a class to each time step so that it spells the target; the *occupancy* of a class at a time step is the
probability that an alignment has this class at this time. The *states* of a target are blank, label, blank, ..., blank;
*alphas* are the log-probabilities of the prefixes that end in each state. :func:`ctc_loss_reference` returns
:class:`CtcLosses`, :func:`ctc_loss_gradient_reference` the gradient; :func:`ctc_loss_bound` and
:func:`ctc_loss_gradient_bound` are the accepted errors. :func:`reduced` and :func:`reduction_factors` compute the
reduction. ``ctc_loss_forward`` and ``ctc_loss_backward`` are the kernels to launch.

The stated work of a kernel is its HBM traffic: the forward reads the log-probabilities and writes the alphas, the
backward reads both and writes the gradient. It does not include the latency of the recursion, whose time steps wait for
each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.cores import LEAF, levels
from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS
from nkilib.core.host.error_bounds import SIMULATED, SMALLEST_NORMAL, UNIT, Float64Array, rounding
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import SCALAR, Family, SizedLoss, TensorSize, tensor_bytes
from nkilib.experimental.loss.ctc import kernels

Integers: TypeAlias = npt.NDArray[Any]

# Units of u that a time step costs; a share below e^-20 counts as that; logarithms with errors in a probability.
_STEP_UNITS, _UNLIKELY, _LOGARITHMS = 2.0, 20.0, 3


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of one tensor of a launch on log-probabilities [T, N, C], by the tensor's name.

    Args:
        tensor: the name of an argument of the kernels without ``_hbm``, such as ``"targets"`` or ``"alpha"``.
        shape: (T, N, C).
        options: ``labels`` is S.
    """
    steps, sequences, _ = shape
    sizes = {
        "log_probs": TensorSize(shape),
        "targets": TensorSize((sequences, options["labels"]), "int32"),
        "input_lengths": TensorSize((sequences,), "int32"),
        "target_lengths": TensorSize((sequences,), "int32"),
        "nll": TensorSize((sequences,), "float32"),
        "alpha": TensorSize((steps, sequences, 2 * options["labels"] + 1), "float32"),
        "grad_loss": SCALAR,
    }
    return sizes[tensor]


def _work(log_probs_hbm: Any, targets_hbm: Any, passes: int) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    steps, sequences, _ = log_probs_hbm.shape
    states = 1 if targets_hbm is None else 2 * targets_hbm.shape[1] + 1
    alphas = steps * sequences * states * FLOAT32_BYTES
    return Work(passes * tensor_bytes(log_probs_hbm) + alphas, dtype=as_dtype(log_probs_hbm.dtype))


def forward_work(log_probs_hbm: Any, targets_hbm: Any, **_: Any) -> Work:
    """Return the work of ``ctc_loss_forward``, from the kernel's arguments."""
    return _work(log_probs_hbm, targets_hbm, 1)


def backward_work(log_probs_hbm: Any, targets_hbm: Any, **_: Any) -> Work:
    """Return the work of ``ctc_loss_backward``, from the kernel's arguments."""
    return _work(log_probs_hbm, targets_hbm, 2)


ctc_loss_forward = launchable(
    kernels.ctc_loss_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="2 u times the logarithm for each time step, u = 2^-23",
        notes="a sum adds 32 losses at a time, in an order that depends only on the shape; alpha is an output",
    ),
    forward_work,
)
ctc_loss_backward = launchable(
    kernels.ctc_loss_backward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="6 u times the logarithm for each time step, relative to the occupancy of a class, plus 8 u times the "
        "probability, plus the rounding of the gradient; u = 2^-23",
        notes="the groups of sequences, blocks of states and chunks of time steps depend only on shape and type",
    ),
    backward_work,
)

CTC: Final = SizedLoss(
    name="ctc_loss",
    module="CTCLoss",
    forward=ctc_loss_forward,
    backward=ctc_loss_backward,
    formula="-log sum of prod_t p_t(a_t) over alignments a of the target",
    derivative="exp(x) - occupancy, as in PyTorch, for x from log_softmax",
    differentiated=("log_probs",),
    options=("blank", "zero_infinity"),
    tests=("tests/experimental/loss/ctc", "tests/torch/functions"),
    edges="without an alignment the loss is inf and the gradient NaN, or both are 0 with zero_infinity; a class of "
    "probability 0 that is not a label has gradient 0, where PyTorch's is NaN",
    differences="bfloat16 and float16 are accepted; a label that is not a class has probability 0; gradients are those "
    "of the loss even where the blank is among the labels; the numbers of classes and labels are limited",
    size_of=size_of,
    family=Family.SEQUENCE,
)


class CtcLosses(NamedTuple):
    """The losses and occupancies of all sequences.

    Attributes:
        losses: [N]; infinite for a target without an alignment.
        occupancies: [T, N, C]; 0 for a target without an alignment.
    """

    losses: Float64Array
    occupancies: Float64Array


def _alphas(emissions: Float64Array, may_skip: npt.NDArray[np.bool_]) -> Float64Array:
    """Return the alphas, [T, states].

    Args:
        emissions: the log-probability of each state's class at each time, [T, states].
        may_skip: for each state, whether the state may follow the state two places before.
    """
    alphas = np.full(emissions.shape, -np.inf)
    alphas[0, :2] = emissions[0, :2]
    for t in range(1, len(emissions)):
        stays, enters, skips = alphas[t - 1], np.full_like(alphas[0], -np.inf), np.full_like(alphas[0], -np.inf)
        enters[1:] = stays[:-1]
        skips[2:] = np.where(may_skip[2:], stays[:-2], -np.inf)
        alphas[t] = np.logaddexp(np.logaddexp(stays, enters), skips) + emissions[t]
    return alphas


def _sequence(log_probs: Float64Array, classes: Integers, blank: int, occupancies: Float64Array) -> float:
    """Return the loss of one sequence, and add its occupancies to ``occupancies``, [time steps, C].

    ``log_probs`` is [time steps, C]; ``classes`` is the class of each state.
    """
    if len(log_probs) == 0:
        return 0.0 if len(classes) == 1 else np.inf
    emissions = log_probs[:, classes]
    may_skip = np.zeros(len(classes), bool)
    may_skip[2:] = (classes[2:] != blank) & (classes[2:] != classes[:-2])
    with np.errstate(all="ignore"):
        alphas = _alphas(emissions, may_skip)
        backwards = np.zeros_like(may_skip)
        backwards[2:] = may_skip[2:][::-1]
        betas = _alphas(emissions[::-1, ::-1], backwards)[::-1, ::-1]
        log_likelihood = np.logaddexp.reduce(alphas[-1, -2:])
        if log_likelihood == -np.inf:
            return np.inf
        posteriors = np.exp(np.where(emissions == -np.inf, -np.inf, alphas + betas - emissions) - log_likelihood)
    for state, number in enumerate(classes):
        occupancies[:, number] += posteriors[:, state]
    return -float(log_likelihood)


def ctc_loss_reference(
    log_probs: npt.NDArray[Any], targets: Integers, input_lengths: Integers, target_lengths: Integers, blank: int = 0
) -> CtcLosses:
    """Return the losses and occupancies of all sequences in float64.

    PyTorch equivalent of the losses: ``F.ctc_loss(log_probs.double(), targets, input_lengths, target_lengths, blank,
    reduction="none")``.

    Args:
        log_probs: the log-probabilities, [T, N, C].
        targets: the labels of the targets, [N, S].
        input_lengths, target_lengths: the number of time steps and of labels of each sequence, [N].
        blank: the class of the blank.
    """
    exact = log_probs.astype(np.float64)
    losses, occupancies = np.zeros(exact.shape[1]), np.zeros(exact.shape)
    for n, (steps, labels) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        classes = np.full(2 * labels + 1, blank)
        classes[1::2] = targets[n, :labels]
        losses[n] = _sequence(exact[:steps, n], classes, blank, occupancies[:steps, n])
    return CtcLosses(losses, occupancies)


def reduction_factors(target_lengths: Integers, reduction: str) -> Float64Array:
    """Return the factor of each loss in the reduction, [N]: 1, or for a mean 1 / (N * max(target length, 1))."""
    if reduction != "mean":
        return np.ones(len(target_lengths))
    return 1.0 / (np.maximum(target_lengths, 1) * float(len(target_lengths)))


def reduced(losses: Float64Array, target_lengths: Integers, reduction: str, zero_infinity: bool) -> Float64Array:
    """Return the losses, reduced as ``F.ctc_loss`` does: [N] for ``"none"``, else [1].

    Args:
        losses: the losses before reduction, [N].
        target_lengths: the number of labels of each target, [N].
        reduction: ``"none"``, ``"sum"`` or ``"mean"``.
        zero_infinity: whether infinite losses count as 0.
    """
    counted = np.where(np.isinf(losses), 0.0, losses) if zero_infinity else losses
    if reduction == "none":
        return counted
    return np.array([(counted * reduction_factors(target_lengths, reduction)).sum()])


def ctc_loss_gradient_reference(
    log_probs: npt.NDArray[Any],
    reference: CtcLosses,
    input_lengths: Integers,
    factors: Float64Array,
    zero_infinity: bool,
) -> Float64Array:
    """Return the gradient ``(exp(log_probs) - occupancies) * factors``, as PyTorch defines it, [T, N, C].

    Args:
        log_probs: the log-probabilities, [T, N, C].
        reference: the losses and occupancies.
        input_lengths: the number of time steps of each sequence, [N].
        factors: the upstream gradient of each loss before reduction, [N].
        zero_infinity: whether the gradient of an infinite loss is 0 instead of NaN.
    """
    is_inside = np.arange(len(log_probs))[:, np.newaxis] < input_lengths
    without = 0.0 if zero_infinity else np.nan
    of_sequence = np.where(np.isinf(reference.losses), without, factors)
    with np.errstate(all="ignore"):
        gradient = (np.exp(log_probs.astype(np.float64)) - reference.occupancies) * of_sequence[
            np.newaxis, :, np.newaxis
        ]
    return np.where(is_inside[:, :, np.newaxis], gradient, 0.0)


def _errors(reference: CtcLosses, input_lengths: Integers) -> Float64Array:
    """Return the bound on the error of each loss in float32, [N]; 0 for an infinite loss.

    u = 2^-23; rounding to float32 once costs u / 2 of the number. A time step computes two log-adds, log(e^a + e^b),
    and adds the log-probability of the state's class. These three results are rounded, and softplus, in the log-adds,
    adds 2 u of a number below log 2. A log-add averages the errors of a and b, because its derivatives sum up to 1. So
    a step costs at most 2 u of the logarithm.

    The magnitude of a logarithm is at most loss + 20: if the alignments through a state have the share s of the
    target's probability, the state's alpha is at least log s - loss, and shares below e^-20 count as e^-20.
    """
    magnitude = np.where(np.isinf(reference.losses), 0.0, reference.losses + _UNLIKELY)
    return np.asarray(_STEP_UNITS * UNIT * (input_lengths + 1) * magnitude)


def ctc_loss_bound(
    reference: CtcLosses, input_lengths: Integers, target_lengths: Integers, reduction: str, dtype: Any = np.float32
) -> Float64Array:
    """Return the accepted error of the losses, [N] for ``"none"``, or of the reduced loss, [1].

    The bound covers the finite losses; an infinite loss must be exact.

    Args:
        reference: the exact losses.
        input_lengths, target_lengths: the number of time steps and of labels of each sequence, [N].
        reduction: ``"none"``, ``"sum"`` or ``"mean"``.
        dtype: the type in which the losses are stored, for ``"none"``.
    """
    errors = _errors(reference, input_lengths)
    losses = np.where(np.isinf(reference.losses), 0.0, reference.losses)
    if reduction == "none":
        return errors + rounding(losses, dtype)
    factors = reduction_factors(target_lengths, reduction)
    additions = LEAF * (levels(len(losses)) + levels(PARTITIONS)) + 4
    return np.array([(errors * factors).sum() + additions * 0.5 * UNIT * (losses * factors).sum() + SMALLEST_NORMAL])


def ctc_loss_gradient_bound(
    log_probs: Any,
    reference: CtcLosses,
    input_lengths: Integers,
    factors: Float64Array,
    exact: Float64Array,
) -> Float64Array:
    """Return the accepted error of each element of the gradient, [T, N, C].

    An occupancy is the sum of the probabilities of the states of a class, exp(alpha + beta - emission + loss). Beta is
    the log-probability of the suffixes that start in the state, emission the log-probability of its class. The errors
    of alpha, beta and the loss and four further roundings give the relative error of an occupancy. Each exponential has
    a further error of ``SIMULATED.exp`` units u = 2^-23. Arguments are as for :func:`ctc_loss_gradient_reference`;
    ``exact`` is the result of that function. Gradients are stored in the type of the log-probabilities.
    """
    relative = np.expm1(_LOGARITHMS * _errors(reference, input_lengths))[np.newaxis, :, np.newaxis] + 4.0 * UNIT
    probabilities = np.exp(np.minimum(log_probs.astype(np.float64), 0.0))
    error = relative * reference.occupancies + (SIMULATED.exp + 2.0) * UNIT * (probabilities + reference.occupancies)
    scaled = np.abs(factors)[np.newaxis, :, np.newaxis] * (error + 2.0**-40)
    return scaled + rounding(np.nan_to_num(exact), log_probs.dtype) + SMALLEST_NORMAL
