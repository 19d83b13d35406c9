# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The host side of the triplet margin loss: its registry entry, and its float64 reference with bounds on the errors."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.hardware import LIMIT_OF_LOG
from nkilib.core.host.error_bounds import (
    CORRECT,
    SIMULATED,
    SMALLEST_NORMAL,
    UNIT,
    Derived,
    Exact,
    Float64Array,
    FunctionErrors,
)
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.experimental.loss.rowwise.triplet_distances import needed_tensors, num_coefficients, pairs_of
from nkilib.experimental.loss.rowwise.triplet_margin import triplet_margin_loss_backward, triplet_margin_loss_forward
from nkilib.experimental.loss.skeletons.rowwise.host import (
    RowGradients,
    RowTensors,
    Tensors,
    rowwise_loss,
    summed,
)

__all__ = ["TRIPLET_MARGIN", "triplet_margin_loss_backward", "triplet_margin_loss_forward"]


_DISTANCES: Final = "margin and distances"
_ROOTS: Final = {"sqrt": 2.0}
ERRORS: Final = {
    1.0: TermError(4.0, {}, _DISTANCES, "p = 1", "2 u eps D", additions=1.0),
    2.0: TermError(5.5, _ROOTS, _DISTANCES, "p = 2", "2 u eps sqrt(D)", additions=0.5),
    inf: TermError(4.0, {}, _DISTANCES, "p = inf", "2 u eps"),
}
# The largest logarithm of a distance for which the error of other norms is stated: from 2^-7 to 2^7.
_LOG: Final = 4.9


def error_of_another_norm(p: float) -> TermError:
    """Return the bound on the error of the triplet loss for a p other than 1, 2 and infinity, for distances in [2^-7,
    2^7].
    """
    own = 2.0 * (2.5 + 0.5 / p + 2.0 * _LOG) + 1.5
    functions = {"log": 4.0 * _LOG, "exp": 2.0 + 2.0 / p}
    form, beside = f"p = {p:g}, distances of 2^-7 to 2^7", "2 u eps D^(1/p) + 2^-63 D^(1/p)"
    return TermError(own, functions, _DISTANCES, form, beside, additions=1.0 / p)


_NAMES = ("anchor", "positive", "negative")


@dataclass(frozen=True)
class _Distance:
    """The distances between the rows of two tensors, and their derivatives, with errors.

    Attributes:
        value: the distance of each row, [N].
        derivative: the derivative of each row's distance with respect to the row of the first tensor, [N, D].
    """

    value: Derived
    derivative: Exact


def _scaled_log(sums: Float64Array) -> Float64Array:
    """Return |log S'| for each sum S: S' is S, or S times 2^64 or 2^-64 where S is below 2^-32 or above 2^32."""
    logs = np.log2(np.maximum(sums, SMALLEST_NORMAL))
    return np.abs(logs - np.where(np.abs(logs) > 32.0, np.sign(logs) * 64.0, 0.0)) * np.log(2.0)


def _smaller(first: Derived, second: Derived) -> Derived:
    """Return the smaller of two distances, row by row; its relative error is the larger of the two."""
    value = np.minimum(first.value, second.value)

    def larger(left: Float64Array, right: Float64Array) -> Float64Array:
        fractions = (error / np.maximum(of.value, SMALLEST_NORMAL) for error, of in ((left, first), (right, second)))
        return np.asarray(value * np.maximum(*fractions))

    functions = {name: larger(error, second.functions[name]) for name, error in first.functions.items()}
    return Derived(value, value, larger(first.own, second.own), functions, first.beside)


@dataclass(frozen=True)
class TripletReference:
    """The float64 reference, ``F.triplet_margin_loss(..., reduction="none")``.

    Let u = 2^-23. A difference d = x - y + eps has an error of ``u / 2 (|x - y| + |d| + eps)``, at most u (|d| + eps).
    The distance is the p-norm of D differences; a sum of D numbers has n consecutive additions. The error of the
    distance is a sum of parts. Below, the first part for each p is absolute, the others are relative to the distance:

    - p = 2: u (distance + eps sqrt(D)), the norm of the errors of d; half of (n + 1) u / 2, for the squares and their
      sum; u / 2 for the root.
    - p = 1: u (distance + eps D), the sum of the errors of d; n u / 2 for the sum.
    - p = inf: u (distance + eps), the largest error of d.
    - Other p: u (distance + eps D^(1/p)), the norm of the errors of d; 1 / p of the relative error of the sum S of
      powers, which is p |log d| u + u / 2 for each power and n u / 2 for the sum; |log S'| u / p + 3 u / 2 for the
      root, where S' is S scaled by a power of two (:func:`_scaled_log`).

    The error of the loss is the sum of the errors of its distances, u / 2 |margin|, u / 2 of the sum of margin and
    first distance, and u / 2 of the loss. The derivative for p = 2, d / distance, has the error of d divided by the
    distance, the relative error of the distance, and 3.5 u of itself. For another p, (d / distance)^(p - 1) has p - 1
    times the relative errors of d, of the distance and of their quotient, and the errors of logarithm and power.

    Attributes:
        margin, p, eps, swap: the options of the function.
    """

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False

    @property
    def stated(self) -> TermError:
        """The bound on the error of :meth:`value`, as the guarantee states it for this p."""
        return ERRORS.get(self.p) or error_of_another_norm(self.p)

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses max(0, margin + near - far) and their errors.

        near is d(anchor, positive); far is d(anchor, negative), with ``swap`` at most d(positive, negative).
        """
        open_ = self._open(self._distances(tensors, CORRECT))
        return open_._replace(value=np.maximum(open_.value, 0.0))

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives of each row's loss with respect to the elements of the three tensors, with their
        errors.

        An error is infinite where rounding may decide whether the loss is 0, or which distance is the smaller one.
        """
        distances = self._distances(tensors, functions)
        open_ = self._open(distances).exact(functions)
        is_unsure = np.abs(open_.value) <= open_.error
        near, far, *swapped = distances
        share = np.ones_like(near.value.value)
        if swapped:
            gap = swapped[0].value.value - far.value.value
            share = np.where(gap > 0.0, 1.0, np.where(gap < 0.0, 0.0, 0.5))
            reach = sum(distance.value.exact(functions).error for distance in (far, *swapped))
            is_unsure |= (np.abs(gap) <= reach) & (gap != 0.0)
        is_open = (open_.value >= 0.0).astype(np.float64)
        weights = [is_open, -is_open * share, -is_open * (1.0 - share)]
        derivatives = {}
        for tensor, name in enumerate(_NAMES):
            terms = [
                (weight[:, None] * (1.0 if pair[0] == tensor else -1.0), distance.derivative)
                for pair, weight, distance in zip(pairs_of(self.swap), weights, distances, strict=False)
                if tensor in pair
            ]
            value = sum(weight * term.value for weight, term in terms)
            error = sum(np.abs(weight) * (term.error + 2.0 * UNIT * np.abs(term.value)) for weight, term in terms)
            derivatives[name] = Exact(np.asarray(value), np.where(is_unsure[:, None], np.inf, error))
        return derivatives

    def _open(self, distances: list[_Distance]) -> Derived:
        """Return margin + near - far (:meth:`value`), the losses before they are clipped at 0, with their errors."""
        near, far, *swapped = (distance.value for distance in distances)
        if swapped:
            far = _smaller(far, swapped[0])
        with_margin = self.margin + near.value
        value = with_margin - far.value
        terms = [np.abs(term) for term in (near.value, far.value, with_margin, value)]
        own = near.own + far.own + 0.5 * UNIT * (abs(self.margin) + terms[2] + terms[3])
        functions = {name: error + far.functions[name] for name, error in near.functions.items()}
        largest = np.max([*terms, np.full_like(value, abs(self.margin))], axis=0)
        return Derived(value, largest, own, functions, near.beside + far.beside)

    def _distances(self, tensors: Tensors, functions: FunctionErrors) -> list[_Distance]:
        pairs = [(tensors[_NAMES[first]], tensors[_NAMES[second]]) for first, second in pairs_of(self.swap)]
        return [self._distance(left - right, functions) for left, right in pairs]

    def _distance(self, plain: Float64Array, functions: FunctionErrors) -> _Distance:
        d = plain + self.eps
        error = UNIT * (np.abs(d) + abs(self.eps)) + SMALLEST_NORMAL
        if self.p == 1.0:
            sums, of_eps = summed(np.abs(d), UNIT * np.abs(d)), d.shape[1] * abs(self.eps)
            derivative = Exact(np.sign(d), np.where(np.abs(d) <= error, 2.0, 0.0))
            return _Distance(Derived(sums.value, sums.value, sums.error, {}, UNIT * of_eps), derivative)
        if self.p == inf:
            return self._largest(d, error)
        return self._euclidean(d, error, functions) if self.p == 2.0 else self._minkowski(d, error, functions)

    def _euclidean(self, d: Float64Array, error: Float64Array, functions: FunctionErrors) -> _Distance:
        squares = summed(d * d, 0.5 * UNIT * d * d)
        value, columns = np.sqrt(squares.value), d.shape[1]
        least = np.maximum(value, SMALLEST_NORMAL)
        own = UNIT * value + squares.error / (2.0 * least) + 0.5 * UNIT * value
        # Squares of numbers below 2^-63 may be flushed to zero.
        beside = np.sqrt(columns) * (UNIT * abs(self.eps) + np.sqrt(SMALLEST_NORMAL))
        distance = Derived(value, value, own, {"sqrt": UNIT * value}, beside)
        derivative = d / least[:, None]
        relative = (distance.exact(functions).error / least + (functions.reciprocal + 3.0) * UNIT)[:, None]
        return _Distance(distance, Exact(derivative, error / least[:, None] + 2.0 * relative * np.abs(derivative)))

    def _minkowski(self, d: Float64Array, error: Float64Array, functions: FunctionErrors) -> _Distance:
        p, columns = self.p, d.shape[1]
        size = np.clip(np.abs(d), 1.0 / LIMIT_OF_LOG, LIMIT_OF_LOG)
        logs, powers = np.abs(np.log(size)), size**p
        total = summed(powers, (p * logs + 0.5) * UNIT * powers)
        value = total.value ** (1.0 / p)
        scaled_log = _scaled_log(total.value)
        relative = total.error / total.value / p + (scaled_log / p + 1.5) * UNIT
        of_logs = (powers * logs).sum(axis=1) / total.value + scaled_log / p
        by_function = {"log": of_logs * UNIT * value, "exp": (1.0 + 1.0 / p) * UNIT * value}
        # Small magnitudes count as the least that has a logarithm, and powers may be flushed to zero.
        lost = 1.0 / LIMIT_OF_LOG + SMALLEST_NORMAL ** (1.0 / p)
        beside = columns ** (1.0 / p) * (UNIT * abs(self.eps) + lost)
        distance = Derived(value, value, (UNIT + relative) * value, by_function, beside)
        return _Distance(distance, self._share(d, error, distance, functions))

    def _share(self, d: Float64Array, error: Float64Array, of: Derived, functions: FunctionErrors) -> Exact:
        """Return sign(d) (|d| / distance)^(p - 1), the derivative of a distance with respect to the difference d, and
        its error.

        The error is infinite where the relative error of |d| / distance, or p - 1 times it, is above 1/4.

        Args:
            d: the differences, with eps, [N, D].
            error: the errors of ``d``, [N, D].
            of: the distances, [N].
            functions: the errors of the activation functions.
        """
        distance, exponent = np.maximum(of.value, SMALLEST_NORMAL)[:, None], self.p - 1.0
        share = np.clip(np.abs(d) / distance, 1.0 / LIMIT_OF_LOG, None)
        value = share**exponent
        of_distance = of.exact(functions).error[:, None] / distance
        relative = error / np.maximum(np.abs(d), SMALLEST_NORMAL) + of_distance + (functions.reciprocal + 0.5) * UNIT
        logs = exponent * np.abs(np.log(share)) * (functions.log + 0.5) * UNIT
        allowed = value * (2.0 * exponent * relative + logs + (functions.exp + 0.5) * UNIT)
        is_lost = np.maximum(exponent, 1.0) * relative > 0.25
        return Exact(np.sign(d) * (np.abs(d) / distance) ** exponent, np.where(is_lost, np.inf, allowed))

    def _largest(self, d: Float64Array, error: Float64Array) -> _Distance:
        value = np.abs(d).max(axis=1)
        is_largest = np.abs(d) == value[:, None]
        is_close = np.abs(d) >= value[:, None] - error - error.max(axis=1, keepdims=True)
        is_unsure = is_close.sum(axis=1) != is_largest.sum(axis=1)
        derivative = np.sign(d) * is_largest / is_largest.sum(axis=1, keepdims=True)
        unsure = np.broadcast_to(np.where(is_unsure, np.inf, 0.0)[:, None], d.shape)
        distance = Derived(value, value, UNIT * value, {}, UNIT * abs(self.eps) + SMALLEST_NORMAL)
        return _Distance(distance, Exact(derivative, unsure))


_EMBEDDINGS: Final = dict.fromkeys(("anchor", "positive", "negative"), Sample.NUMBERS)


def _form(label: str = "", **options: Any) -> Form:
    return Form(TripletReference(**options), _EMBEDDINGS, options, label)


TRIPLET_MARGIN: Final = rowwise_loss(
    "triplet_margin_loss",
    "TripletMarginLoss",
    triplet_margin_loss_forward,
    triplet_margin_loss_backward,
    formula="max(0, margin + d(a, p) - d(a, n)), d the p-norm of the difference + eps",
    derivative="d'(a, p) - d'(a, n) where margin + d(a, p) - d(a, n) >= 0, d' = difference / d for p = 2",
    errors=(*ERRORS.values(), error_of_another_norm(4.0)),
    gradients=RowGradients(
        "4 u times each derivative of a distance, plus the errors of the forward's coefficients, plus half a ulp; for "
        "p other than 1, 2 and infinity, also (p - 1) times the relative errors of the difference and of the "
        "distance, and (p - 1) u times the logarithm of each",
        "gradients are computed only on request; p must be at least 1",
    ),
    rows=RowTensors(
        coefficients=lambda arguments: num_coefficients(arguments["p"], arguments["swap"]),
        needed=lambda wanted, arguments: needed_tensors(wanted, arguments["swap"]),
    ),
    time_limits=((1.05, 1.05), (1.05, 1.05)),
    forms=(
        _form(),
        _form(", swap", swap=True, margin=2.0),
        _form(", p = 1", p=1.0, eps=1e-3, margin=30.0),
        _form(", p = infinity, swap", p=inf, swap=True),
        _form(", p = 3", p=3.0, margin=2.0),
        _form(", p = 1.5, swap", p=1.5, swap=True, margin=2.0),
    ),
    edges="a distance of 0 has gradient 0; with swap, equal distances share the gradient",
    differences="p must be at least 1; for p other than 1, 2 and infinity, a distance of 2^64 or more is infinite; if "
    "two tensors have rows of one element, a third tensor with longer rows is rejected; for p = 1 and infinity, the "
    "gradient of a NaN difference is NaN, not 0",
    notes="p must be at least 1; p = 4 stands for every p other than 1, 2 and infinity",
    family=Family.EMBEDDING,
)
