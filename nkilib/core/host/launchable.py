"""Kernels that are launched on their own, with what is stated of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nkilib.base.guarantee import Guarantee, states_guarantee
from nkilib.base.work import StatesTrips, StatesWork, states_trips, states_work
from nkilib.nki import nki

# By the function: whoever asks for a kernel gets the same one.
_MADE: Final[dict[Callable[..., Any], Any]] = {}


def launchable(
    function: Callable[..., Any], guarantee: Guarantee, work: StatesWork, trips: StatesTrips | None = None
) -> Any:
    """What ``nki.jit`` makes of a function of NKI code.

    Args:
        function: the kernel.
        guarantee: what it promises.
        work: what it works on, by its arguments.
        trips: how often its loops run at most, by its arguments, where the data say it.
    """
    stated = states_guarantee(guarantee)(states_work(work)(function))
    kernel = _MADE[function] = nki.jit(stated if trips is None else states_trips(trips)(stated))
    return kernel


def launched(function: Callable[..., Any]) -> Any:
    """The kernel that :func:`launchable` made of a function.

    Raises:
        LookupError: it made none.
    """
    kernel = _MADE.get(function)
    if kernel is None:
        raise LookupError(f"launched: {function.__name__} must be in the row of a loss, which makes it launchable")
    return kernel
