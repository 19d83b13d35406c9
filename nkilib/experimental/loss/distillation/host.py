# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of distillation from logits: kernels to launch, modelled times, float64 reference and bounds on the
error.

N positions, V classes, T the temperature; P and Q are the distributions of teacher and student, M = beta P + (1 - beta)
Q that of the mixture; KL is the Kullback-Leibler divergence. u = 2^-23 is the unit in the last place of 1, and a = 8 +
2 max|x| / T the size of a row of logits x; a_p and a_q are the sizes for two distributions p and q.

- The registry entry: ``distillation_forward`` and ``distillation_backward`` with guarantees and work. The work is that
  of any tiling: the minimum of HBM traffic, and activation functions.
- Modelled times: :func:`profile_distillation_launch`. The simulator is imported only when a profile asks for it: on
  hardware the kernels do not need it.
- The reference: :func:`distillation_reference` and :func:`distillation_gradient_reference`.
- The bounds: :func:`distillation_bound` and :func:`distillation_gradient_bound`, which docs/explanation/distillation.md
  derives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nkilib.base.guarantee import Guarantee
from nkilib.base.statements import Work
from nkilib.core.cores import positions_of_core
from nkilib.core.hardware import FLOAT32_BYTES
from nkilib.core.host.error_bounds import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.host.launchable import launchable
from nkilib.core.host.loss import TensorSize, launch_tensors, tensor_bytes
from nkilib.core.rows.gathered import ROWS_OF_TILE
from nkilib.core.rows.recomputation import BATCHES_MAX, most_trips
from nkilib.experimental.loss.distillation import kernels
from nkilib.nki import nl

if TYPE_CHECKING:
    from nkilib.simulator import ModelParameters, Profile
    from nkilib.simulator.profiling.profile import AskedTrips

Array = NDArray[np.float64]
# A temperature of all positions, or an array of one for each, [N], or of one for all, [1].
Temperature = float | NDArray[Any]

# Vectors that the forward returns.
_RESULTS = 6


def size_of(tensor: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> TensorSize:
    """Return the size of one tensor of a launch on logits [N, V]: logits, labels, or a value for each position."""
    if tensor in ("student", "teacher"):
        return TensorSize(shape)
    return TensorSize(shape[:1], "int32" if tensor == "labels" else "float32")


def _vector_bytes(student_hbm: Any, labels_hbm: Any) -> int:
    return int((_RESULTS + (labels_hbm is not None)) * FLOAT32_BYTES * student_hbm.shape[0])


def _work(student_hbm: Any, nbytes: int, functions: int) -> Work:
    from nkilib.simulator.terms.dtypes import as_dtype

    return Work(nbytes, exponentials=functions * prod(student_hbm.shape), dtype=as_dtype(student_hbm.dtype))


def forward_work(student_hbm: Any, teacher_hbm: Any, labels_hbm: Any = None, beta: float = 0.0, **_: Any) -> Work:
    """Return the work of ``distillation_forward``, from the kernel's parameters; each logit is read once.

    A KL takes two exponentials per element. Jensen-Shannon takes two for the log-sum-exps, and then both again and a
    softplus.
    """
    nbytes = tensor_bytes(student_hbm, teacher_hbm) + _vector_bytes(student_hbm, labels_hbm)
    return _work(student_hbm, nbytes, 2 if beta in (0.0, 1.0) else 5)


def backward_work(student_hbm: Any, teacher_hbm: Any, labels_hbm: Any = None, beta: float = 0.0, **_: Any) -> Work:
    """Return the work of ``distillation_backward``, from the kernel's parameters.

    A KL takes two exponentials per element, except for KL(student || teacher), which takes only the student's. The
    gradient of Jensen-Shannon takes the student's exponential and a softplus.
    """
    unread = FLOAT32_BYTES * student_hbm.shape[0] * (beta == 0.0)  # the moment
    nbytes = tensor_bytes(student_hbm, student_hbm, teacher_hbm) + _vector_bytes(student_hbm, labels_hbm) - unread
    return _work(student_hbm, nbytes, 1 if beta == 1.0 else 2)


def forward_trips(student_hbm: Any, **_: Any) -> dict[str, int]:
    """Return the largest number of iterations of the forward's loop over recomputed rows.

    It is reached if every row of a core is recomputed. Call this while the kernel runs, because the number of cores is
    known only then.
    """
    own = positions_of_core(student_hbm.shape[0], nl.num_programs(), 0)
    return {"recompute_rows": most_trips(min(own, BATCHES_MAX * ROWS_OF_TILE))}


distillation_forward = launchable(
    kernels.distillation_forward,
    Guarantee(
        math="float32",
        accumulator="float32",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place=None,
        error="u (a_P + a_Q) (2 + E|log(P/Q)|), absolute, with u = 2^-23 and a = 8 + 2 max|x|/T, 4 more with several "
        "partitions_per_position; the KL of equal logits is 0",
        notes="the chunks depend on V, on the size in bytes of a student logit and of a teacher logit, on whether "
        "the divergence is a KL or Jensen-Shannon, and on partitions_per_position; each piece is summed in the order "
        "of the engine's accumulator, then the sums of the pieces are added, with several partitions under the "
        "maximum of the row",
    ),
    forward_work,
    forward_trips,
)
distillation_backward = launchable(
    kernels.distillation_backward,
    Guarantee(
        math="float32",
        accumulator="none",
        deterministic=True,
        same_bits_on_cores=True,
        workspace="0",
        in_place="student_hbm",
        error="u (a_P + a_Q) times each term and the upstream gradient, plus the rounding of the result; a as in the "
        "forward",
        notes="the teacher has no gradient",
    ),
    backward_work,
)


def profile_distillation_launch(
    num_positions: int,
    vocab_size: int,
    dtype: Any,
    direction: str,
    *,
    teacher_dtype: Any = None,
    target: str = "trn2",
    cores: int = 2,
    parameters: ModelParameters | None = None,
    trips: AskedTrips | None = None,
    **options: Any,
) -> Profile:
    """Return the profile of a kernel on logits [N, V]; modelled, not measured.

    Example::

        print(profile_distillation_launch(4096, 32128, "bfloat16", "forward", beta=0.5))

    Args:
        num_positions: N.
        vocab_size: V.
        dtype: the dtype of the student's logits, and of the teacher's unless ``teacher_dtype`` is passed.
        direction: ``"forward"`` or ``"backward"``.
        teacher_dtype: the dtype of the teacher's logits.
        target: the generation of the device, such as ``"trn2"``.
        cores: the number of cores of the launch.
        parameters: the assumptions of the performance model where nothing is published.
        trips: the number of iterations of the forward's loop over recomputed positions, in the form that ``profile``
            accepts.
        options: further keyword arguments of the kernel, such as ``beta`` and ``chunk_size``.

    Raises:
        AssertionError: if the kernel does not take the arguments.
        NkiValidationError: if the hardware does not accept them.
    """
    from nkilib.simulator import profile, spec, using
    from nkilib.simulator.terms.dtypes import as_dtype

    is_forward, shape = direction == "forward", (num_positions, vocab_size)
    kernel: Any = distillation_forward if is_forward else distillation_backward
    tensors = launch_tensors(kernel, lambda tensor: size_of(tensor, shape, options), as_dtype(dtype))
    if teacher_dtype is not None:
        tensors["teacher_hbm"] = spec(shape, as_dtype(teacher_dtype))
    with using(target=target):
        asked = trips if is_forward else None
        return profile(kernel[cores], parameters=parameters, trips=asked, **{**tensors, **options})


def divisor_of(temperature: Temperature) -> Array:
    """Return a temperature as a float64 array, [N] or [1], by which an array with a value for each position can be
    divided.
    """
    return np.atleast_1d(np.asarray(temperature, np.float64))


def scale_units(temperature: Temperature) -> float:
    """Return the relative error of the scale 1 / T of a tensor of temperatures, in units u = 2^-23; 0 for a number.

    A number is inverted on the host; the bounds count the rounding of this 1 / T elsewhere. The device's reciprocal and
    a product have an error of at most 4 u.
    """
    return 0.0 if np.ndim(temperature) == 0 else 4.0


def _log_softmax(logits: Any, temperature: Temperature) -> Array:
    scaled = np.asarray(logits, np.float64) / divisor_of(temperature)[:, np.newaxis]
    with np.errstate(invalid="ignore"):
        distance = scaled - scaled.max(axis=1, keepdims=True)
        return np.asarray(distance - np.log(np.exp(distance).sum(axis=1, keepdims=True)))


@dataclass(frozen=True)
class Distributions:
    """The distributions of student and teacher, in float64.

    Attributes:
        student_log, teacher_log: the log-probabilities, [N, V].
    """

    student_log: Array
    teacher_log: Array

    @classmethod
    def of_logits(cls, student: Any, teacher: Any, temperature: Temperature = 1.0) -> Distributions:
        """Return the log-probabilities log_softmax(logits / T) of both models."""
        return cls(_log_softmax(student, temperature), _log_softmax(teacher, temperature))

    @cached_property
    def student(self) -> Array:
        """The probabilities of the student, Q, [N, V]."""
        return np.asarray(np.exp(self.student_log))

    @cached_property
    def teacher(self) -> Array:
        """The probabilities of the teacher, P, [N, V]."""
        return np.asarray(np.exp(self.teacher_log))

    def mixture_log(self, beta: float) -> Array:
        """Return log(beta * P + (1 - beta) * Q), [N, V]."""
        if beta not in self._mixtures:
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.log(beta) + self.teacher_log, np.log1p(-beta) + self.student_log
                self._mixtures[beta] = np.asarray(np.logaddexp(*terms), np.float64)
        return self._mixtures[beta]

    @cached_property
    def _mixtures(self) -> dict[float, Array]:
        return {}


def kl(log_p: Array, log_q: Array) -> Array:
    """Return KL(p || q) of each row, from log-probabilities; a class with p = 0 adds 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.exp(log_p) * (log_p - log_q)
    return np.asarray(np.where(log_p == -np.inf, 0.0, terms).sum(axis=1))


def distillation_reference(
    student: Any,
    teacher: Any,
    labels: Any = None,
    beta: float = 0.0,
    temperature: Temperature = 1.0,
    ignore_index: int = -100,
) -> Array:
    """Return the loss of every position in float64, [N]: the divergence that ``beta`` selects, 0 where the label is
    ignored.

    Args:
        student, teacher: the logits, [N, V].
        labels: [N] integers, or None; positions of ``ignore_index`` are ignored.
        beta: 0 for KL(P || Q), 1 for KL(Q || P); between them the generalized Jensen-Shannon divergence.
        temperature: T.
        ignore_index: the label of ignored positions.
    """
    distributions = Distributions.of_logits(student, teacher, temperature)
    if beta == 0.0:
        loss = kl(distributions.teacher_log, distributions.student_log)
    elif beta == 1.0:
        loss = kl(distributions.student_log, distributions.teacher_log)
    else:
        mixture = distributions.mixture_log(beta)
        loss = beta * kl(distributions.teacher_log, mixture) + (1.0 - beta) * kl(distributions.student_log, mixture)
    return loss if labels is None else np.where(np.asarray(labels) == ignore_index, 0.0, loss)


def distillation_gradient_reference(
    student: Any,
    teacher: Any,
    grad_loss: Any,
    labels: Any = None,
    beta: float = 0.0,
    temperature: Temperature = 1.0,
    ignore_index: int = -100,
) -> Array:
    """Return the gradient with respect to the student's logits in float64, [N, V], for the upstream gradients
    ``grad_loss``, [N].

    See :func:`distillation_reference` for the other arguments.
    """
    distributions = Distributions.of_logits(student, teacher, temperature)
    upstream = np.asarray(grad_loss, np.float64) / divisor_of(temperature)
    if labels is not None:
        upstream = np.where(np.asarray(labels) == ignore_index, 0.0, upstream)
    if beta == 0.0:
        gradient = distributions.student - distributions.teacher
    else:
        against = distributions.teacher_log if beta == 1.0 else distributions.mixture_log(beta)
        with np.errstate(invalid="ignore"):
            distance = np.where(distributions.student_log == -np.inf, 0.0, distributions.student_log - against)
        gradient = (
            (1.0 if beta == 1.0 else 1.0 - beta)
            * distributions.student
            * (distance - kl(distributions.student_log, against)[:, None])
        )
    return np.asarray(upstream[:, None] * gradient)


def _size(logits: Any, temperature: Temperature, is_split: bool) -> Array:
    """Return a = 8 + 2 * max|x| / T of each row, over its finite logits x; for a tensor of T, and for positions on
    several partitions (``is_split``), see :func:`distillation_bound`.
    """
    values, units = np.asarray(logits, np.float64), scale_units(temperature)
    largest = np.where(np.isfinite(values), np.abs(values), 0.0).max(axis=1) / divisor_of(temperature)
    return np.asarray((12.0 if is_split else 8.0) + units + 2.0 * (1.0 + units) * largest)


def _mean_distance(log_p: Array, log_q: Array) -> Array:
    with np.errstate(invalid="ignore"):
        terms = np.exp(log_p) * np.abs(log_p - log_q)
    return np.asarray(np.where(log_p == -np.inf, 0.0, terms).sum(axis=1))


def distillation_bound(
    student: Any, teacher: Any, beta: float = 0.0, temperature: Temperature = 1.0, is_split: bool = False
) -> Array:
    """Return the accepted error of the loss of every position, [N].

    ``is_split`` says whether a position lies on several partitions.

    The reference starts from the logits that a kernel receives. u is 2^-23, the unit in the last place of 1. An
    exponential of a row of logits x, minus a shift c of at most the size of its logits, has a relative error of u * a
    with a = 8 + 2 * max|x| / T: from the function itself, the rounding of its argument, and the sum that it is added
    to. With p the weighting distribution and q the other one, r = log(p / q), E_p the mean under p and d the
    differences of the logits:

    - KL: u * (a_p + a_q) * (2 + E_p|r|): the first-order terms of E[d - c] and of the log of the ratio of the sums;
    - Jensen-Shannon: the same with the weighted mean of both distances to the mixture, and with 2 |log((1 - beta)
      beta)| more in a: logs that are added to the mixture's and subtracted again.

    With a tensor of temperatures 1 / T has a relative error of at most 4 u, from the device's reciprocal and a product.
    It changes x - c, which is at most 2 * max|x|, by 4 u of itself, and the mean of differences as well: a is 12 + 10 *
    max|x| / T.

    If a position lies on several partitions, a chunk k has its own shifts m_k, and e is exp((x - m_k) / T) times
    exp((m_k - m) / T). Both arguments are at most 0 and add up to (x - m) / T, so that their roundings cost what that
    of one argument does. The second exponential costs 2 u, the products with it u, and the sum over chunks and
    partitions u: a is larger by 4. These are factors of e in the mean as well as in S, so they act like the error of
    e. c_k - c, at most 2 max|x| of both rows together, is rounded to u / 2 of itself, as d - c_k is: both are within
    the 2 u (a_p + a_q).

    The error of sums is below u * 8 of the sum of magnitudes: runs of at most 2,048 elements are added up by the
    engine's accumulator in float32, which for terms of one sign is 8 u on average; tests check this at 262,144 classes.
    """
    distributions = Distributions.of_logits(student, teacher, temperature)
    sizes = _size(student, temperature, is_split) + _size(teacher, temperature, is_split)
    if beta in (0.0, 1.0):
        pair = (
            (distributions.teacher_log, distributions.student_log)
            if beta == 0.0
            else (distributions.student_log, distributions.teacher_log)
        )
        return np.asarray(UNIT * sizes * (2.0 + _mean_distance(*pair)))
    mixture = distributions.mixture_log(beta)
    distance = beta * _mean_distance(distributions.teacher_log, mixture) + (1 - beta) * _mean_distance(
        distributions.student_log, mixture
    )
    sizes = sizes - 2.0 * (np.log(beta) + np.log1p(-beta))
    return np.asarray(UNIT * sizes * (2.0 + distance))


def distillation_gradient_bound(
    student: Any,
    teacher: Any,
    grad_loss: Any,
    exact: Array,
    beta: float = 0.0,
    temperature: Temperature = 1.0,
    is_split: bool = False,
) -> Array:
    """Return the accepted error of every element of the gradient, [N, V].

    The bound is u * (a_p + a_q) of each term of the gradient, see :func:`distillation_bound`, plus half a unit in the
    last place of the dtype of ``student``, which the kernel's result has. A probability below 2^-126 is subnormal in
    float32, has fewer digits, and may be flushed to 0. So the bound adds 2^-126 times the factors of the probability,
    which are the distances and the upstream gradient. A tensor of temperatures adds 8 u of each term for the factors 1
    / T, of which KL(student || teacher) has two.

    Args:
        student, teacher: the logits, [N, V].
        grad_loss: the upstream gradients, [N].
        exact: the reference gradient, [N, V].
        beta, temperature: see :func:`distillation_reference`.
        is_split: whether a position lay on several partitions in the forward.
    """
    distributions = Distributions.of_logits(student, teacher, temperature)
    upstream = np.abs(np.asarray(grad_loss, np.float64) / divisor_of(temperature))[:, None]
    sizes = _size(student, temperature, is_split) + _size(teacher, temperature, is_split)
    sizes = (sizes + 2.0 * scale_units(temperature))[:, None]
    if beta == 0.0:
        terms, factors = distributions.student + distributions.teacher, np.full_like(distributions.student, 2.0)
    else:
        against = distributions.teacher_log if beta == 1.0 else distributions.mixture_log(beta)
        with np.errstate(invalid="ignore"):
            distance = np.where(distributions.student_log == -np.inf, 0.0, np.abs(distributions.student_log - against))
        factors = 2.0 + distance + kl(distributions.student_log, against)[:, None]
        terms = distributions.student * factors
    off = upstream * (UNIT * sizes * terms + SMALLEST_NORMAL * factors)
    return np.asarray(off + rounding(exact, np.asarray(student).dtype))
