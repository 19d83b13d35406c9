# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs that are hard on a cross-entropy kernel, as rows of one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

BF16 = np.dtype(ml_dtypes.bfloat16)
FP16 = np.dtype(np.float16)
FP32 = np.dtype(np.float32)
DTYPE_PAIRS = [(logits_dtype, dtype) for logits_dtype in (BF16, FP32) for dtype in (BF16, FP32)]

Array = npt.NDArray[Any]
RowMaker = Callable[[np.random.Generator, int], tuple[Array, int]]


def pair_name(value: Any) -> str | None:
    """Readable test ids for numpy types."""
    return value.name if isinstance(value, np.dtype) else None


def normal_batch(positions: int, vocabulary: int, seed: int = 0, spread: float = 3.0) -> tuple[Array, Array]:
    """Normal noise [N, V] in float32 and uniform targets [N] in int32."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((positions, vocabulary), np.float32) * np.float32(spread)
    return logits, rng.integers(0, vocabulary, positions, dtype=np.int32)


def confident_batch(positions: int, vocabulary: int, probability: float, seed: int = 0) -> tuple[Array, Array]:
    """Normal noise whose targets have at most the given probability (before rounding to bfloat16).

    The first row has it; 1 - p then grows to twice its value at the last row, so that no two rows have equal losses.
    """
    logits, targets = normal_batch(positions, vocabulary, seed, spread=1.0)
    for number, (row, target) in enumerate(zip(logits, targets, strict=True)):
        raise_to_probability(row, int(target), 1.0 - (1.0 - probability) * (1.0 + number / positions))
    return logits, targets


def raise_to_probability(row: Array, index: int, probability: float) -> None:
    """Set ``row[index]`` so that its softmax is ``probability``; a row of one element stays as it is."""
    if row.size > 1:
        rest = np.delete(row, index).astype(np.float64)
        row[index] = np.log(np.exp(rest).sum()) + np.log(probability / (1.0 - probability))


def hard_batch(vocabulary: int, seed: int = 0) -> tuple[Array, Array]:
    """One row of every kind in ``HARD_ROWS``: logits [len(HARD_ROWS), V] in float32, targets in int32."""
    logits = np.empty((len(HARD_ROWS), vocabulary), np.float32)
    targets = np.empty(len(HARD_ROWS), np.int32)
    for number, make in enumerate(HARD_ROWS.values()):
        logits[number], targets[number] = make(np.random.default_rng([seed, number]), vocabulary)
    return logits, targets


def _noise(rng: np.random.Generator, vocabulary: int) -> Array:
    return rng.standard_normal(vocabulary, np.float32)


def _normal(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    return 3 * _noise(rng, vocabulary), int(rng.integers(vocabulary))


def _confident(probability: float, right: bool) -> RowMaker:
    def make(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
        row, target = _noise(rng, vocabulary), int(rng.integers(vocabulary))
        raise_to_probability(row, target if right else (target + 1) % vocabulary, probability)
        return row, target

    return make


def _plus_minus_10000(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    row = np.where(rng.random(vocabulary) < 0.5, np.float32(-1e4), np.float32(1e4))
    return row, int(row.argmin())


def _uniform_to_10000(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    return rng.uniform(-1e4, 1e4, vocabulary).astype(np.float32), int(rng.integers(vocabulary))


def _all_equal(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    return np.full(vocabulary, 3.140625, np.float32), int(rng.integers(vocabulary))


def _one_far_above(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    row = _noise(rng, vocabulary)
    row[vocabulary // 2] = 1e4
    return row, 0


def _some_minus_infinity(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    row, target = _normal(rng, vocabulary)
    finite = row[target]
    row[rng.random(vocabulary) < 0.5] = -np.inf
    row[target] = finite
    return row, target


def _only_target_finite(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    row, target = np.full(vocabulary, -np.inf, np.float32), int(rng.integers(vocabulary))
    row[target] = -2.5
    return row, target


def _first_third_minus_infinity(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    row = _noise(rng, vocabulary)
    row[: vocabulary // 3] = -np.inf
    return row, vocabulary - 1


def _last_third_minus_infinity(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    row = _noise(rng, vocabulary)
    row[vocabulary - vocabulary // 3 :] = -np.inf
    return row, 0


def _large_negative(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    return _noise(rng, vocabulary) - np.float32(1e5), int(rng.integers(vocabulary))


def _near_lowest(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    return np.full(vocabulary, -3e38, np.float32), int(rng.integers(vocabulary))


def _tiny_spread(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    return 1 + np.float32(1e-6) * _noise(rng, vocabulary), int(rng.integers(vocabulary))


def _ascending(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    return np.linspace(-40, 40, vocabulary, dtype=np.float32), vocabulary - 1


def _descending(rng: np.random.Generator, vocabulary: int) -> tuple[Array, int]:
    return np.linspace(40, -40, vocabulary, dtype=np.float32), vocabulary - 1


HARD_ROWS: dict[str, RowMaker] = {
    "normal": _normal,
    "p 0.999 at the target": _confident(0.999, right=True),
    "p 0.999 elsewhere": _confident(0.999, right=False),
    "p 0.99999 at the target": _confident(0.99999, right=True),
    "p near 1 at the target": _confident(1 - 1e-12, right=True),
    "+1e4 or -1e4": _plus_minus_10000,
    "uniform to 1e4": _uniform_to_10000,
    "all equal": _all_equal,
    "one far above": _one_far_above,
    "half -inf": _some_minus_infinity,
    "all but the target -inf": _only_target_finite,
    "first third -inf": _first_third_minus_infinity,
    "last third -inf": _last_third_minus_infinity,
    "around -1e5": _large_negative,
    "all -3e38": _near_lowest,
    "tiny spread": _tiny_spread,
    "ascending": _ascending,
    "descending": _descending,
}
