# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The plan of the loop of one core over columns. It is computed from shapes and types only and holds no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.softmax.column_plan import ColumnPlan
from nkilib.experimental.softmax.column_steps import Phase


@dataclass(frozen=True)
class ColumnLoop:
    """The plan of a core and the properties of its loop that follow from the plan.

    Attributes:
        plan: the division of the launch into windows, parts and segments.
        phases: for each tensor that the loop reads, the first :class:`.Phase` of each pass in which the tensor is read.
        kept: the number of tiles that keep results of the first pass for the second pass; 0 if the second pass
            recomputes these results.
        whole_windows: True if the second pass over a window starts after the first pass over the whole window; False
            if the second pass over a strip of columns starts after the first pass over that strip.
        stages: the number of stages that combine sums between the passes. Each stage takes one step.
        overwrites: whether results are written over the items of the first tensor in SBUF.
    """

    plan: ColumnPlan
    phases: tuple[tuple[Phase, ...], ...]
    kept: int
    whole_windows: bool
    stages: int
    overwrites: bool
