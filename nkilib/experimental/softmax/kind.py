"""Which of the two functions a loop computes, and of which types; the kernels have one loop for both."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from nkilib.nki import nl


class Kind(Enum):
    """What stands in the output."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"


class BackwardTypes(NamedTuple):
    """Of the elements of dy, y and dx."""

    grad: nl.DType
    output: nl.DType
    grad_x: nl.DType
