"""Which of the two functions a loop computes; the kernels have one loop for both."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """What stands in the output."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"
