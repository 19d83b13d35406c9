"""Loop ranges of ``nki.language``. All loops run as Python loops, eagerly."""

from __future__ import annotations

from .errors import NkiValidationError


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """``range`` with the documented argument order: a loop that the compiler unrolls."""
    return range(0, start, step) if stop is None else range(start, stop, step)


def dynamic_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """A loop that runs on the device. Bounds are integers; registers are not implemented yet.

    Raises:
        NotImplementedError: if a bound is a register.
        NkiValidationError: if ``step`` is no positive integer.
    """
    for bound in (start, stop):
        if bound is not None and not isinstance(bound, int):
            raise NotImplementedError(
                f"nki.language.dynamic_range: bounds other than integers are not implemented in the simulator yet, "
                f"got {bound!r}"
            )
    if not isinstance(step, int) or step < 1:
        raise NkiValidationError(f"nl.dynamic_range: step must be a positive integer, got {step!r}")
    return static_range(start, stop, step)
