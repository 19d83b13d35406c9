# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy and its gradient in float64: the reference against which the kernels are checked.

For the plain kernels: :func:`cross_entropy_forward_reference` and :func:`cross_entropy_backward_reference`; for the
extended kernels, which have options (:class:`ExtendedLoss`): :func:`extended_forward_reference` and
:func:`extended_backward_reference`. The references of other losses use :func:`row_statistics`,
:func:`gradient_of_rows`, :func:`probabilities`, :func:`gradient_scale`, :func:`row_blocks`, :func:`rounded_to` and
:func:`as_numpy_dtype`. The logits x are [N, V]: N positions (rows), V classes. z are the logits after cap and
temperature.

The reference starts where a kernel starts: logits rounded to the type of its tiles (``dtype``), unchanged targets, and
in the backward the log-sum-exp that the kernel received. From there on every operation is float64, so the remaining
difference between reference and kernel is the kernel's own error (see :mod:`.bounds`).

Only numpy and ml_dtypes are needed. Rows are processed in blocks, so the working memory stays at a few times
``_BLOCK_ELEMENTS`` float64 values, independent of N and V.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Float64Array: TypeAlias = npt.NDArray[np.float64]

# Elements of a block of rows: 8 MiB in float64. A single row may be longer.
_BLOCK_ELEMENTS = 1 << 20
_DTYPES = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))


def as_numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the numpy type of an NKI, numpy or ml_dtypes type, or of a name such as ``"bfloat16"``.

    Raises:
        TypeError: if the type is none of float32, bfloat16 and float16.
    """
    try:
        resolved = np.dtype(dtype)
    except TypeError:
        resolved = np.dtype(str(dtype))  # an NKI type that is no string prints as its name
    if resolved not in _DTYPES:
        raise TypeError(f"cross-entropy reference: dtype must be float32, bfloat16 or float16, got {dtype!r}")
    return resolved


@dataclass(frozen=True)
class RowStatistics:
    """The values per row from which loss and log-sum-exp are computed, each float64 [N].

    Attributes:
        maximum: m, the largest logit of the row.
        target_logit: x_target, the logit at the row's target.
        log_sum: log d, where d is the sum of exp(x - m) over the row; in [0, log V] for a finite m.
    """

    maximum: Float64Array
    target_logit: Float64Array
    log_sum: Float64Array

    @property
    def loss(self) -> Float64Array:
        """The loss ``F.cross_entropy(x, targets, reduction="none")`` = (m - x_target) + log d; NaN where m is not
        finite.
        """
        with np.errstate(invalid="ignore"):
            return (self.maximum - self.target_logit) + self.log_sum

    @property
    def lse(self) -> Float64Array:
        """The log-sum-exp ``torch.logsumexp(x, dim=1)`` = m + log d; m itself where m is infinite."""
        return np.where(np.isinf(self.maximum), self.maximum, self.maximum + self.log_sum)


def row_statistics(logits: npt.NDArray[Any], targets: npt.NDArray[Any], dtype: Any) -> RowStatistics:
    """Return the maximum, the target logit and the log of the sum of exponentials of every row.

    Args:
        logits: [N, V], float32, bfloat16 or float16.
        targets: [N], integers in [0, V).
        dtype: type of the kernel's tiles, to which the logits are rounded first.

    Raises:
        ValueError: if the shapes do not match or a dimension is 0.
        IndexError: if a target lies outside [0, V).
        TypeError: if ``dtype`` is none of float32, bfloat16 and float16.
    """
    _check(logits, targets)
    positions = logits.shape[0]
    maximum, target_logit, log_sum = (np.empty(positions, np.float64) for _ in range(3))
    for rows in row_blocks(logits):
        x = rounded_to(logits[rows], dtype)
        maximum[rows] = x.max(axis=1)
        target_logit[rows] = x[np.arange(len(x)), targets[rows]]
        with np.errstate(invalid="ignore"):  # inf - inf: the sum of a row whose maximum is infinite is NaN
            x -= maximum[rows, np.newaxis]
        log_sum[rows] = np.log(np.exp(x, out=x).sum(axis=1))
    return RowStatistics(maximum, target_logit, log_sum)


def cross_entropy_forward_reference(
    logits: npt.NDArray[Any], targets: npt.NDArray[Any], dtype: Any
) -> tuple[Float64Array, Float64Array]:
    """Return the loss and the log-sum-exp of every row in float64.

    PyTorch equivalent, with ``x = logits.to(dtype).double()``::

        loss = F.cross_entropy(x, targets.long(), reduction="none")
        lse = torch.logsumexp(x, dim=1)

    See :func:`row_statistics` for arguments and errors.

    Returns:
        loss [N], lse [N], both float64.
    """
    statistics = row_statistics(logits, targets, dtype)
    return statistics.loss, statistics.lse


def cross_entropy_backward_reference(
    logits: npt.NDArray[Any], targets: npt.NDArray[Any], lse_state: npt.NDArray[Any], reduction: str, dtype: Any
) -> Float64Array:
    """Return the gradient of the loss with respect to the logits in float64.

    PyTorch equivalent, with ``x = logits.to(dtype).double()``::

        scale * (torch.exp(x - lse_state.double()[:, None]) - F.one_hot(targets.long(), V))

    If ``lse_state`` is exact, autograd gives the same for ``F.cross_entropy(x, targets.long(), reduction=reduction)``.

    Args:
        logits: [N, V], float32, bfloat16 or float16.
        targets: [N], integers in [0, V).
        lse_state: [N], the log-sum-exp as the kernel received it, rounded to its type.
        reduction: "mean" (scale 1/N) or "sum" (scale 1).
        dtype: type of the kernel's tiles, to which the logits are rounded first.

    Returns:
        The gradient, float64 [N, V]. For some rows of a large tensor use :func:`gradient_of_rows`.

    Raises:
        ValueError: if the shapes do not match, a dimension is 0, or ``reduction`` is neither "mean" nor "sum".
        IndexError: if a target lies outside [0, V).
        TypeError: if ``dtype`` is none of float32, bfloat16 and float16.
    """
    _check(logits, targets, lse_state)
    scale = gradient_scale(reduction, logits.shape[0])
    gradient = np.empty(logits.shape, np.float64)
    for rows in row_blocks(logits):
        gradient[rows] = gradient_of_rows(logits[rows], targets[rows], lse_state[rows], scale, dtype)
    return gradient


def gradient_of_rows(
    logits: npt.NDArray[Any], targets: npt.NDArray[Any], lse_state: npt.NDArray[Any], scale: float, dtype: Any
) -> Float64Array:
    """Return ``scale * (exp(x - lse) - onehot)`` in float64 for all given rows, with the logits x rounded to ``dtype``.

    A row whose log-sum-exp is not finite gives NaN, as in autograd: the row contains NaN or +inf, or only -inf.
    """
    gradient = probabilities(logits, lse_state, dtype)
    gradient[np.arange(len(gradient)), targets] -= 1.0
    gradient *= scale
    return gradient


def probabilities(logits: npt.NDArray[Any], lse_state: npt.NDArray[Any], dtype: Any) -> Float64Array:
    """Return ``exp(x - lse)`` in float64 for all given rows, with the logits x rounded to ``dtype``.

    A row whose log-sum-exp is not finite gives NaN.
    """
    x = rounded_to(logits, dtype)
    lse = lse_state.astype(np.float64)
    x -= np.where(np.isfinite(lse), lse, np.nan)[:, np.newaxis]
    return np.exp(x, out=x)


def gradient_scale(reduction: str, positions: int) -> float:
    """Return the factor of the gradient of one position: 1/N for "mean", 1 for "sum".

    Raises:
        ValueError: if ``reduction`` is neither "mean" nor "sum".
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f'cross-entropy reference: reduction must be "mean" or "sum", got {reduction!r}')
    return 1.0 / positions if reduction == "mean" else 1.0


def row_blocks(logits: npt.NDArray[Any]) -> Iterator[slice]:
    """Yield slices that together cover the rows of ``logits`` in order.

    A slice has at most ``_BLOCK_ELEMENTS`` logits, or is a single row.
    """
    positions, vocabulary = logits.shape
    step = max(1, _BLOCK_ELEMENTS // vocabulary)
    for start in range(0, positions, step):
        yield slice(start, min(start + step, positions))


def rounded_to(logits: npt.NDArray[Any], dtype: Any) -> Float64Array:
    """Return a float64 copy of ``logits``, rounded to ``dtype``: the values in a kernel's tiles.

    With ``dtype`` None nothing is rounded, for logits that a kernel computes itself.
    """
    if dtype is None:
        return logits.astype(np.float64)
    with np.errstate(over="ignore"):  # what is beyond the range of a type becomes infinite there
        return logits.astype(as_numpy_dtype(dtype), copy=False).astype(np.float64)


def _check(logits: npt.NDArray[Any], targets: npt.NDArray[Any], lse_state: npt.NDArray[Any] | None = None) -> None:
    if logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(f"cross-entropy reference: logits must be [N, V] with N, V > 0, got shape {logits.shape}")
    for name, values in (("targets", targets), ("lse_state", lse_state)):
        if values is not None and values.shape != logits.shape[:1]:
            raise ValueError(
                f"cross-entropy reference: {name} must have shape {logits.shape[:1]}, one a row of logits, "
                f"got {values.shape}"
            )
    outside = np.flatnonzero((targets < 0) | (targets >= logits.shape[1]))
    if outside.size:
        row = int(outside[0])
        raise IndexError(
            f"cross-entropy reference: target of row {row} must lie in [0, {logits.shape[1]}), got {targets[row]}"
        )


@dataclass(frozen=True)
class ExtendedLoss:
    """The options of the extended kernels, under the names of the kernels' parameters.

    There is no option for a shard of the vocabulary: compute the results of the whole vocabulary, and take a part.
    ``temperature`` is a number, or an array [N] or [1].
    """

    class_weight: npt.NDArray[Any] | None = None
    ignore_index: int = -100
    label_smoothing: float = 0.0
    logit_softcap: float | None = None
    lse_square_scale: float = 0.0
    temperature: float | npt.NDArray[Any] = 1.0

    def of_rows(self, rows: slice) -> ExtendedLoss:
        """Return the options of a range of positions."""
        temperature = self.temperature
        if isinstance(temperature, float) or len(temperature) == 1:
            return self
        return replace(self, temperature=temperature[rows])

    @property
    def divisor(self) -> float | Float64Array:
        """The temperature as a divisor of vectors [N]."""
        return self.temperature if isinstance(self.temperature, float) else self.temperature.astype(np.float64)

    @property
    def element_divisor(self) -> float | Float64Array:
        """The temperature as a divisor of matrices [N, V]."""
        return self.divisor if isinstance(self.divisor, float) else self.divisor[:, np.newaxis]

    @property
    def scale_units(self) -> float:
        """The relative error of z that the temperature causes, in units u.

        The inverse of the temperature and two products are rounded; for a tensor of temperatures, 2 u more are allowed
        for the device's reciprocal.
        """
        if not isinstance(self.temperature, float):
            return 4.0
        return 0.0 if self.temperature == 1.0 else 2.0

    def scores(self, logits: npt.NDArray[Any], dtype: Any) -> Float64Array:
        """Return z, float64 [N, V]: the logits rounded to ``dtype``, capped, and divided by the temperature."""
        x = rounded_to(logits, dtype)
        if self.logit_softcap is None:
            return x / self.element_divisor
        capped = np.where(np.isneginf(x), x, self.logit_softcap * np.tanh(x / self.logit_softcap))
        return capped / self.element_divisor

    def weights(self, vocabulary: int) -> Float64Array:
        """Return the class weights w, float64 [V]; 1 without class weights."""
        return np.ones(vocabulary) if self.class_weight is None else self.class_weight.astype(np.float64)

    def is_valid(self, targets: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return the mask of valid positions, [N]; with class probabilities, all positions are valid."""
        return np.ones(len(targets), np.bool_) if targets.ndim == 2 else targets != self.ignore_index

    def factors(self, targets: npt.NDArray[Any], vocabulary: int) -> Float64Array:
        """Return the factor f_k of each class k of each position, [N, V].

        The loss of a position is the sum over k of f_k * (lse - z_k), plus s * lse^2 with s = ``lse_square_scale``.
        The factors of ignored positions are 0.
        """
        smoothed = self.label_smoothing / vocabulary
        if targets.ndim == 2:
            return self.weights(vocabulary) * ((1.0 - self.label_smoothing) * targets.astype(np.float64) + smoothed)
        valid = self.is_valid(targets)
        factors = np.where(valid[:, np.newaxis], smoothed * self.weights(vocabulary), 0.0)
        classes = targets[valid]
        factors[np.flatnonzero(valid), classes] += (1.0 - self.label_smoothing) * self.weights(vocabulary)[classes]
        return factors


@dataclass(frozen=True)
class ExtendedResults:
    """The results of the extended forward, each [N]: float64, except ``argmax``, which is int64.

    Only the linear forward returns the last two fields.
    """

    loss: Float64Array
    lse: Float64Array
    target_logit: Float64Array
    position_weight: Float64Array
    argmax: npt.NDArray[np.int64]
    entropy: Float64Array
    distance_sum: Float64Array
    log_sum_squares: Float64Array
    mean_logit: Float64Array

    def of_rows(self, rows: slice) -> ExtendedResults:
        """Return the results of a range of positions."""
        return ExtendedResults(*(getattr(self, result.name)[rows] for result in fields(self)))


def extended_forward_reference(
    logits: npt.NDArray[Any], targets: npt.NDArray[Any], dtype: Any, options: ExtendedLoss
) -> ExtendedResults:
    """Return all results of ``extended_cross_entropy_forward`` in float64, all rows at once.

    Args:
        logits: [N, V], float32, bfloat16 or float16; float64 if ``dtype`` is None.
        targets: [N] integers, each a class or ``options.ignore_index``; or [N, V] class probabilities.
        dtype: type of the kernel's tiles, to which the logits are rounded first; None for no rounding.
        options: the options of the loss.
    """
    vocabulary = logits.shape[1]
    z, factors = options.scores(logits, dtype), options.factors(targets, vocabulary)
    valid, weights = options.is_valid(targets), options.weights(vocabulary)
    with np.errstate(invalid="ignore", over="ignore"):
        maximum = z.max(axis=1)
        distances = z - maximum[:, np.newaxis]
        exponentials = np.exp(distances)
        total = exponentials.sum(axis=1)
        lse = np.where(np.isinf(maximum), maximum, maximum + np.log(total))
        below = np.log(total)[:, np.newaxis] - distances  # lse - z, where large logits have cancelled
        # 0 * inf is NaN where a probability says so, and nothing where the factor is only formal.
        counts = (factors != 0.0) | (targets.ndim == 2) | (options.label_smoothing != 0.0)
        loss = np.where(counts, factors * below, 0.0).sum(axis=1) + options.lse_square_scale * np.square(lse)
        terms = np.where(exponentials == 0.0, 0.0, exponentials * distances)
        entropy = np.log(total) - terms.sum(axis=1) / total
        log_sum_squares = np.log(np.square(exponentials).sum(axis=1)) - 2.0 * np.log(total)
        unmasked = ~np.isneginf(z)
        mean_logit = np.where(unmasked, z, 0.0).sum(axis=1) / unmasked.sum(axis=1)
        distance_sum = ((factors if targets.ndim == 2 else weights) * -distances).sum(axis=1)
        if targets.ndim == 2:
            target_logit, position_weight = (factors * z).sum(axis=1), factors.sum(axis=1)
        else:
            classes = np.where(valid, targets, 0)
            target_logit = np.where(valid, z[np.arange(len(z)), classes], 0.0)
            position_weight = np.where(valid, weights[classes], 0.0)
    argmax = rounded_to(logits, dtype).argmax(axis=1)
    loss = np.where(valid, loss, 0.0)
    return ExtendedResults(
        loss, lse, target_logit, position_weight, argmax, entropy, distance_sum, log_sum_squares, mean_logit
    )


@dataclass(frozen=True)
class BackwardInputs:
    """The inputs of the extended backward besides logits and targets, each [N].

    Attributes:
        lse: the log-sum-exp as the kernel received it, rounded to its type.
        grad_loss, grad_lse, grad_logprob, grad_entropy: upstream gradients; None for 0.
        entropy: the entropy as the kernel received it, rounded to its type; None if there is no gradient of the
            entropy.
    """

    lse: npt.NDArray[Any]
    grad_loss: npt.NDArray[Any]
    grad_lse: npt.NDArray[Any] | None = None
    grad_logprob: npt.NDArray[Any] | None = None
    entropy: npt.NDArray[Any] | None = None
    grad_entropy: npt.NDArray[Any] | None = None

    def of_rows(self, rows: slice) -> BackwardInputs:
        """Return the inputs of a range of positions."""
        optional = (self.grad_lse, self.grad_logprob, self.entropy, self.grad_entropy)
        return BackwardInputs(
            self.lse[rows], self.grad_loss[rows], *(None if vector is None else vector[rows] for vector in optional)
        )


def extended_backward_reference(
    logits: npt.NDArray[Any], targets: npt.NDArray[Any], dtype: Any, options: ExtendedLoss, given: BackwardInputs
) -> Float64Array:
    """Return the gradient of ``extended_cross_entropy_backward`` in float64, all rows at once.

    Args:
        logits, targets, dtype, options: see :func:`extended_forward_reference`.
        given: the upstream gradients and saved results.
    """
    positions, vocabulary = logits.shape
    z, factors = options.scores(logits, dtype), options.factors(targets, vocabulary)
    valid = options.is_valid(targets)
    exact_lse = np.where(np.isfinite(given.lse), given.lse.astype(np.float64), np.nan)
    of_loss = np.where(valid, given.grad_loss, 0.0).astype(np.float64)
    of_lse = np.zeros(positions) if given.grad_lse is None else given.grad_lse.astype(np.float64)
    drawn = of_loss[:, np.newaxis] * factors
    if given.grad_logprob is not None:
        of_logprob = np.where(valid, given.grad_logprob, 0.0).astype(np.float64)
        drawn[np.flatnonzero(valid), targets[valid]] -= of_logprob[valid]
    square = np.where(of_loss == 0.0, 0.0, of_loss * 2.0 * options.lse_square_scale * exact_lse)
    coefficients = drawn.sum(axis=1) + square + of_lse
    log_p = z - exact_lse[:, np.newaxis]
    p = np.exp(log_p)
    gradient = coefficients[:, np.newaxis] * p - drawn
    if given.entropy is not None and given.grad_entropy is not None:
        of_entropy, known = given.grad_entropy.astype(np.float64), given.entropy.astype(np.float64)
        with np.errstate(invalid="ignore"):
            terms = p * (log_p + known[:, np.newaxis])
        gradient -= of_entropy[:, np.newaxis] * np.where(p == 0.0, 0.0, terms)  # p log p goes to 0 with p
    gradient /= options.element_divisor
    if options.logit_softcap is not None:
        gradient *= 1.0 - np.square(np.tanh(rounded_to(logits, dtype) / options.logit_softcap))
    return gradient
