"""What the gradients of a multi-label soft margin loss need: numbers of its tensors."""

from __future__ import annotations

INPUT, TARGET, WEIGHT = 0, 1, 2


def needed_tensors(wanted: tuple[int, ...], has_weight: bool) -> tuple[int, ...]:
    """The target is needed for all gradients but its own, the weight for the others."""
    of_labels = (INPUT,) if set(wanted) == {TARGET} else (INPUT, TARGET)
    return (*of_labels, WEIGHT) if has_weight and set(wanted) != {WEIGHT} else of_labels


def backward_tiles(wanted: tuple[int, ...]) -> int:
    """Half of those of two pieces: one for each gradient, and for that of the weight two."""
    return 4 if WEIGHT in wanted else 2
