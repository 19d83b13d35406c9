# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distributions of the tensors of a loss, by name.

Checks, benchmarks and profiles draw them with different libraries.
"""

from __future__ import annotations

from enum import Enum


class Sample(Enum):
    """The distribution of the numbers of a tensor."""

    NUMBERS = "normal numbers"
    LOGITS = "normal numbers with a standard deviation of 3, and confident ones among them"
    WIDE_LOGITS = "normal numbers with a standard deviation of 6"
    POSITIVE = "numbers from 1/8 on"
    PROBABILITIES = "numbers in (0, 1), 0.999 among them"
    LABELS = "numbers in [0, 1], both ends among them"
    LOG_PROBABILITIES = "logarithms of numbers in (0, 1)"
    SIGNS = "1 and -1"
    SIMILARITIES = "1, -1, and a few numbers that are neither"
    SIMILARITIES_OF_ROWS = "for each row 1, -1 or, of some, 0"
    CLASS_WEIGHTS = "a number from 1/8 on for each class"
