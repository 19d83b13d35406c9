# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The softmax mode of a loop and the types of its tensors. Softmax and log-softmax share one loop."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from nkilib.nki import nl


class Kind(Enum):
    """The softmax mode: whether the output is softmax or log-softmax."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"


class BackwardTypes(NamedTuple):
    """The element types of the backward's tensors: ``grad`` of dy, ``output`` of y and ``grad_x`` of dx."""

    grad: nl.DType
    output: nl.DType
    grad_x: nl.DType
