"""What the loop of a core over columns does, without its tensors: arithmetic only, from shapes and types."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.softmax.column_plan import ColumnPlan
from nkilib.experimental.softmax.column_steps import Phase


@dataclass(frozen=True)
class ColumnLoop:
    """The plan of a core, and what follows from it for its loop.

    Attributes:
        plan: how the launch is cut up.
        phases: for each tensor that is read, the first phase of each pass that reads it.
        kept: tiles of what the first pass computes and the second one takes again; 0 if that is computed anew.
        whole_windows: whether the second pass over a window starts after the first one has ended, else over a turn.
        stages: steps between the passes, in which sums are combined.
        overwrites: whether results take the place of the first tensor's items in SBUF.
    """

    plan: ColumnPlan
    phases: tuple[tuple[Phase, ...], ...]
    kept: int
    whole_windows: bool
    stages: int
    overwrites: bool
