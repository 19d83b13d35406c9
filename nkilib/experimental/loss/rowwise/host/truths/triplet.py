"""Triplet margin.

A difference d = x - y + eps is off by ``u / 2 (abs(x - y) + abs(d))``. The distance, with n additions in a row:

    p = 2    the sum of squares: 2 abs(d) times that, u / 2 d^2, n u / 2 of the sum; the root halves what is relative,
             and is off by 2 u
    p = 1    the sum of these, n u / 2 of the sum
    p = inf  the largest of these

The loss: the errors of its distances, and 2 u of margin and distances. A derivative of p = 2, d / distance: the error
of d by the distance, and the relative one of the distance and 5 u of the derivative.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT
from nkilib.experimental.loss.elementwise.host.reference import Float64Array
from nkilib.experimental.loss.elementwise.host.truth import Exact
from nkilib.experimental.loss.rowwise.host.pairs import pairs_of
from nkilib.experimental.loss.rowwise.host.truth import ROOT_UNITS, Tensors, summed

_NAMES = ("anchor", "positive", "negative")


@dataclass(frozen=True)
class _Distance:
    """Of rows.

    Attributes:
        value: the distances [N].
        derivative: by the first tensor of the pair, [N, D].
    """

    value: Exact
    derivative: Exact


@dataclass(frozen=True)
class TripletTruth:
    """``F.triplet_margin_loss(..., reduction="none")`` in float64.

    Attributes:
        margin, p, eps, swap: of it.
    """

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False

    def value(self, tensors: Tensors) -> Exact:
        """max(0, margin + near - far)."""
        distances = self._distances(tensors)
        open_ = self._open(distances)
        return Exact(np.maximum(open_.value, 0.0), open_.error)

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """Signed sums of derivatives of distances; undefined where the loss or a minimum may be on another side."""
        distances = self._distances(tensors)
        open_ = self._open(distances)
        is_unsure = np.abs(open_.value) <= open_.error
        near, far, *swapped = distances
        share = np.ones_like(near.value.value)
        if swapped:
            gap = swapped[0].value.value - far.value.value
            share = np.where(gap > 0.0, 1.0, np.where(gap < 0.0, 0.0, 0.5))
            is_unsure |= (np.abs(gap) <= far.value.error + swapped[0].value.error) & (gap != 0.0)
        is_open = (open_.value >= 0.0).astype(np.float64)
        weights = [is_open, -is_open * share, -is_open * (1.0 - share)]
        found = {}
        for tensor, name in enumerate(_NAMES):
            terms = [
                (weight[:, None] * (1.0 if pair[0] == tensor else -1.0), distance.derivative)
                for pair, weight, distance in zip(pairs_of(self.swap), weights, distances, strict=False)
                if tensor in pair
            ]
            value = sum(weight * each.value for weight, each in terms)
            error = sum(np.abs(weight) * (each.error + 2.0 * UNIT * np.abs(each.value)) for weight, each in terms)
            found[name] = Exact(np.asarray(value), np.where(is_unsure[:, None], np.inf, error))
        return found

    def _open(self, distances: list[_Distance]) -> Exact:
        near, far, *swapped = (each.value for each in distances)
        least = np.minimum(far.value, swapped[0].value) if swapped else far.value
        error = np.maximum(far.error, swapped[0].error) if swapped else far.error
        size = abs(self.margin) + near.value + least
        return Exact(self.margin + near.value - least, near.error + error + 2.0 * UNIT * size)

    def _distances(self, tensors: Tensors) -> list[_Distance]:
        pairs = [(tensors[_NAMES[first]], tensors[_NAMES[second]]) for first, second in pairs_of(self.swap)]
        return [self._distance(left - right) for left, right in pairs]

    def _distance(self, plain: Float64Array) -> _Distance:
        d = plain + self.eps
        error = 0.5 * UNIT * (np.abs(plain) + np.abs(d)) + SMALLEST_NORMAL
        if self.p == 1.0:
            sign_error = np.where(np.abs(d) <= error, 2.0, 0.0)
            return _Distance(summed(np.abs(d), error), Exact(np.sign(d), sign_error))
        return self._largest(d, error) if self.p == inf else _euclidean(d, error)

    def _largest(self, d: Float64Array, error: Float64Array) -> _Distance:
        value = np.abs(d).max(axis=1)
        is_largest = np.abs(d) == value[:, None]
        is_close = np.abs(d) >= value[:, None] - error - error.max(axis=1, keepdims=True)
        is_unsure = is_close.sum(axis=1) != is_largest.sum(axis=1)
        derivative = np.sign(d) * is_largest / is_largest.sum(axis=1, keepdims=True)
        unsure = np.broadcast_to(np.where(is_unsure, np.inf, 0.0)[:, None], d.shape)
        return _Distance(Exact(value, error.max(axis=1)), Exact(derivative, unsure))


def _euclidean(d: Float64Array, error: Float64Array) -> _Distance:
    squares = summed(d * d, 2.0 * np.abs(d) * error + error * error + 0.5 * UNIT * d * d)
    value = np.sqrt(squares.value)
    least = np.maximum(value, SMALLEST_NORMAL)
    of_root = np.minimum(squares.error / (2.0 * least), np.sqrt(squares.error)) + ROOT_UNITS * UNIT * value
    derivative = d / least[:, None]
    relative = (of_root / least + 5.0 * UNIT)[:, None]
    return _Distance(
        Exact(value, of_root), Exact(derivative, error / least[:, None] + 2.0 * relative * np.abs(derivative))
    )
