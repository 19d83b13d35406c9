# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the library, each with its cases. A public kernel without a case fails a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from nkilib.verify.kernels import (
    ctc,
    distillation,
    elementwise,
    extended,
    inlined,
    linear,
    linear_distillation,
    linear_ids,
    log_probabilities,
    margins,
    plain,
    rowwise,
    softmax,
)
from nkilib.verify.kernels.case import Case

SOURCES: Final[tuple[Callable[[], Iterator[Case]], ...]] = (
    plain.cases,
    extended.cases,
    linear.cases,
    linear_ids.cases,
    linear_distillation.cases,
    inlined.cases,
    log_probabilities.cases,
    softmax.cases,
    distillation.cases,
    elementwise.cases,
    rowwise.cases,
    margins.cases,
    ctc.cases,
)


def cases() -> list[Case]:
    """Return all cases, in the order in which they run."""
    return [case for source in SOURCES for case in source()]
