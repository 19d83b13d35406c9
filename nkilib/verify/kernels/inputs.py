# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Fixed inputs of the kernels: the same on every machine, up to the last bit of numpy's log and cos.

A function makes one sort of input, such as numbers, integers, logits or targets, of a :data:`Shape` and of one of the
:data:`TYPES` (:data:`ALL_TYPES`). Inputs with infinities, NaN and subnormal numbers (:data:`INF`, :data:`NAN`,
:data:`SUBNORMAL`) come from functions ``special_...``, and have :data:`SPECIAL_SIZES` and a :data:`SPECIAL_TILING`.
:func:`late_maxima` makes logits whose maximum is in the last column. :data:`MAKERS` has, for each distribution in the
registry of losses, the function that makes such tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

from nkilib.core.host.loss import Sample
from nkilib.nki import nl
from nkilib.verify.step import Array

INF: Final = float("inf")
NAN: Final = float("nan")
SUBNORMAL: Final = 1e-39

Shape = tuple[int, ...]

TYPES: Final = {"float32": (np.dtype(np.float32), nl.float32), "bfloat16": (np.dtype(ml_dtypes.bfloat16), nl.bfloat16)}
ALL_TYPES: Final = {**TYPES, "float16": (np.dtype(np.float16), nl.float16)}


def _uniform(places: Array, seed: int) -> Array:
    """Return float64 numbers in (0, 1), computed from the index of each element (``places``) and the seed alone.

    The numbers come from the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
    """
    start = np.uint64(seed * 0xD1B54A32D192ED03 % 2**64)
    state = (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + start
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


def numbers(seed: int, *shape: int) -> Array:
    """Return standard normal numbers, float32, made by Box and Muller's formula from a hash of the element's index.

    A generator of numpy may change its stream with a release. A report names only the case, so its inputs must not
    change.
    """
    places = np.arange(int(np.prod(shape)), dtype=np.uint64)
    radius = np.sqrt(-2.0 * np.log(_uniform(places, 2 * seed)))
    return (radius * np.cos(2.0 * np.pi * _uniform(places, 2 * seed + 1))).astype(np.float32).reshape(shape)


def integers(seed: int, limit: int, *shape: int) -> Array:
    """Return pseudo-random int32 numbers in [0, limit)."""
    places = np.arange(int(np.prod(shape)), dtype=np.uint64)
    return (_uniform(places, 2 * seed) * limit).astype(np.int32).clip(0, limit - 1).reshape(shape)


def logits(positions: int, vocabulary: int, type_name: str) -> Array:
    """Return normal logits with a standard deviation of 3. In every seventh row, the middle class has a far larger
    logit.
    """
    values = 3.0 * numbers(1, positions, vocabulary)
    values[::7, vocabulary // 2] += 20.0
    return values.astype(ALL_TYPES[type_name][0])


def targets(positions: int, vocabulary: int) -> Array:
    """Return a target for each position. At every seventh position it is the class with the far larger logit of
    :func:`logits`, so that its probability is close to 1.
    """
    classes = integers(2, vocabulary, positions)
    classes[::7] = vocabulary // 2
    return classes


def probabilities(positions: int, vocabulary: int) -> Array:
    """Return rows of positive numbers whose sum is 1, float32 [positions, vocabulary]."""
    positive = np.abs(numbers(3, positions, vocabulary))
    return (positive / positive.sum(axis=1, keepdims=True)).astype(np.float32)


def class_weights(vocabulary: int) -> Array:
    """Return positive weights of the classes, float32."""
    return np.abs(numbers(4, vocabulary)) + np.float32(0.5)


# Eight logits and a target each. With chunks of 3 the special values meet chunk borders, whole chunks and the end.
_ROWS: Final[tuple[tuple[list[float], int], ...]] = (
    ([1, 2, 3, 4, -1, -2, -3, -4], 3),
    ([1, -INF, 3, -INF, 5, -2, -INF, -4], 0),
    ([1, -INF, 3, -INF, 5, -2, -INF, -4], 3),
    ([-INF, -INF, -INF, 4, 5, -2, -3, -4], 7),
    ([-INF] * 7 + [-5], 7),
    ([-INF] * 7 + [-5], 0),
    ([-INF] * 8, 2),
    ([1, 2, 3, INF, 5, -2, -3, -4], 0),
    ([1, 2, 3, INF, 5, -2, -3, -4], 3),
    ([INF] * 8, 6),
    ([1, 2, 3, 4, NAN, -2, -3, -4], 0),
    ([1, 2, 3, 4, NAN, -2, -3, -4], 4),
    ([1, INF, 3, 4, NAN, -2, -3, -4], 0),
    ([NAN] * 8, 2),
    ([3e38, -3e38, 0, 1, 3e38, -3e38, 2, 3], 1),
    ([-3e38] * 8, 4),
    ([0.0, -0.0, 0.0, -0.0, -0.0, 0.0, -0.0, 0.0], 1),
    ([SUBNORMAL, -SUBNORMAL, 0, 0, SUBNORMAL, -0.0, 0, 0], 0),
    ([0, -88, -95, -100, -110, -1000, 0, -88], 2),
    ([1e4, -1e4, 1e4, -1e4, 1e4, -1e4, 1e4, -1e4], 1),
    ([7] * 8, 5),
    ([60, 0, 0, 0, 0, 0, 0, 0], 0),
)
SPECIAL_SIZES: Final = (len(_ROWS), len(_ROWS[0][0]))
SPECIAL_TILING: Final[dict[str, Any]] = {"positions_per_batch": 16, "chunk_size": 3}


def late_maxima(positions: int, vocabulary: int, type_name: str) -> Array:
    """Return logits whose largest one is in the last column of most rows, 200 above the others.

    Every 14th row, from the first on, is an exception. Every fifth row is sorted.
    """
    values = logits(positions, vocabulary, "float32")
    values[np.arange(positions) % 14 != 0, -1] += 200.0
    values[::5].sort(axis=1)
    return values.astype(ALL_TYPES[type_name][0])


def special_logits(type_name: str) -> Array:
    """Return rows of logits with infinities, NaN, both zeros, subnormal numbers, and the largest and smallest numbers.

    The softmax of some rows is subnormal.
    """
    with np.errstate(over="ignore"):
        return np.array([row for row, _ in _ROWS], np.float32).astype(ALL_TYPES[type_name][0])


def special_targets() -> Array:
    """Return a target for each row of :func:`special_logits`."""
    return np.array([target for _, target in _ROWS], np.int32)


def _numbers(seed: int, shape: Shape) -> Array:
    return numbers(seed, *shape)


def _logits(seed: int, shape: Shape) -> Array:
    values: Array = 3.0 * numbers(seed, *shape)
    values.reshape(-1)[::13] *= 20.0
    return values


def _positive(seed: int, shape: Shape) -> Array:
    values: Array = np.abs(numbers(seed, *shape)) + np.float32(0.125)
    return values


def _probabilities(seed: int, shape: Shape) -> Array:
    values: Array = 1.0 / (1.0 + np.exp(-3.0 * numbers(seed, *shape)))
    values.reshape(-1)[::11] = 0.999
    return values


def _log_probabilities(seed: int, shape: Shape) -> Array:
    values: Array = np.log(_probabilities(seed, shape))
    return values


def _signs(seed: int, shape: Shape) -> Array:
    values: Array = np.where(numbers(seed, *shape) < 0.0, np.float32(-1.0), np.float32(1.0))
    return values


def _similarities(seed: int, shape: Shape) -> Array:
    values = _signs(seed, shape)
    values.reshape(-1)[::13] = 0.5
    return values


def _wide_logits(seed: int, shape: Shape) -> Array:
    return np.float32(6.0) * numbers(seed, *shape)


def _labels(seed: int, shape: Shape) -> Array:
    values: Array = np.clip(0.5 + numbers(seed, *shape), 0.0, 1.0)
    return values


def _class_weights(seed: int, shape: Shape) -> Array:
    return np.abs(numbers(seed, 1, shape[1])) + np.float32(0.125)


def _similarities_of_rows(seed: int, shape: Shape) -> Array:
    values = np.sign(numbers(seed, shape[0]))
    values[::7] = 0.0
    return values


MAKERS: Final[dict[Sample, Callable[[int, Shape], Array]]] = {
    Sample.NUMBERS: _numbers,
    Sample.LOGITS: _logits,
    Sample.WIDE_LOGITS: _wide_logits,
    Sample.POSITIVE: _positive,
    Sample.PROBABILITIES: _probabilities,
    Sample.LABELS: _labels,
    Sample.LOG_PROBABILITIES: _log_probabilities,
    Sample.SIGNS: _signs,
    Sample.SIMILARITIES: _similarities,
    Sample.SIMILARITIES_OF_ROWS: _similarities_of_rows,
    Sample.CLASS_WEIGHTS: _class_weights,
}
"""From a seed and the shape of the loss's first tensor, an array of such numbers."""
