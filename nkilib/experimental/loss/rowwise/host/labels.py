"""What the gradients of a multi-label soft margin loss need: numbers of its tensors."""

from __future__ import annotations

INPUT, TARGET, WEIGHT = 0, 1, 2


def needed_tensors(wanted: tuple[int, ...], has_weight: bool) -> tuple[int, ...]:
    """The target is needed for the gradient of the input alone."""
    of_labels = (INPUT, TARGET) if INPUT in wanted else (INPUT,)
    return (*of_labels, WEIGHT) if has_weight else of_labels
