# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that make the tensors of losses as numpy arrays from a seed, one for each kind of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from nkilib.core.host.samples import Sample
from nkilib.verify.kernels import inputs
from nkilib.verify.observation import Array

Shape = tuple[int, ...]


def _numbers(seed: int, shape: Shape) -> Array:
    return inputs.numbers(seed, *shape)


def _logits(seed: int, shape: Shape) -> Array:
    """Return logits, with confident ones up to 60 among them."""
    values: Array = 3.0 * inputs.numbers(seed, *shape)
    values.reshape(-1)[::13] *= 20.0
    return values


def _positive(seed: int, shape: Shape) -> Array:
    """Return numbers from 1/8 on."""
    values: Array = np.abs(inputs.numbers(seed, *shape)) + np.float32(0.125)
    return values


def _probabilities(seed: int, shape: Shape) -> Array:
    """Return numbers in (0, 1), with 0.999 among them."""
    values: Array = 1.0 / (1.0 + np.exp(-3.0 * inputs.numbers(seed, *shape)))
    values.reshape(-1)[::11] = 0.999
    return values


def _log_probabilities(seed: int, shape: Shape) -> Array:
    values: Array = np.log(_probabilities(seed, shape))
    return values


def _signs(seed: int, shape: Shape) -> Array:
    """Return numbers that are 1 or -1."""
    values: Array = np.where(inputs.numbers(seed, *shape) < 0.0, np.float32(-1.0), np.float32(1.0))
    return values


def _similarities(seed: int, shape: Shape) -> Array:
    """Return 1, -1 and a few numbers that are neither."""
    values = _signs(seed, shape)
    values.reshape(-1)[::13] = 0.5
    return values


def _wide_logits(seed: int, shape: Shape) -> Array:
    return np.float32(6.0) * inputs.numbers(seed, *shape)


def _labels(seed: int, shape: Shape) -> Array:
    values: Array = np.clip(0.5 + inputs.numbers(seed, *shape), 0.0, 1.0)
    return values


def _class_weights(seed: int, shape: Shape) -> Array:
    return np.abs(inputs.numbers(seed, 1, shape[1])) + np.float32(0.125)


def _similarities_of_rows(seed: int, shape: Shape) -> Array:
    values = np.sign(inputs.numbers(seed, shape[0]))
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
