# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``simulate(kernel, skip_arithmetic=True)``: a launch that checks everything and computes only the values it needs.

The first launch computes nothing. If it needs values that it has left out, it ends, and a further launch has
memory for the storages of these values and computes them; see machine/left_out.py. A restart is cheap as long as
little is computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..machine.left_out import LeftOut
from ..machine.observer import active_watchers
from ..machine.trips import Stated, check_stated
from ..terms.spec import ValuesWanted
from .launchable import Launchable
from .prepared import PreparedLaunch
from .running import CoreRun
from .whole import run_to_end

# The type of ``simulate(trips=)``.
AskedTrips = Stated | Literal["none"]

# After this number of restarts a launch computes everything: kernels that generate their code again each time have no
# places that could be recognized.
_MOST_STARTS = 100


def checked_trips(asked: Any) -> Stated | None:
    """Return the checked argument ``trips`` of ``simulate``.

    Raises:
        TypeError, ValueError: if it is not accepted.
    """
    if asked is None or asked == "none":
        return None if asked is None else 0
    check_stated("simulate", "'none'", asked)
    return dict(asked) if isinstance(asked, Mapping) else int(asked)


def run_skipping(kernel: Launchable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch ``kernel`` repeatedly until all values on which something depends are computed.

    Watchers observe the last launch.

    Raises:
        NkiValidationError: the error of a launch that computes everything; or if values are needed of an argument that
            has none.
        NotImplementedError: for operations among ranks, or if values are needed of an argument that shares memory with
            another.
    """
    skipping = kernel.settings.skipping
    trips = None if skipping is None else skipping.trips
    has = _Memory()
    is_watched = not active_watchers()
    while True:
        left_out = LeftOut(has.made, has.everything, trips, CoreRun.__call__.__code__)
        launched = PreparedLaunch(kernel, args, kwargs, is_watched=is_watched, left_out=left_out)
        try:
            result = run_to_end(launched, kernel.__name__)
        except (Exception, ValuesWanted) as error:
            _note_wanted(left_out, launched, error)
            if is_watched and not left_out.is_lacking:
                left_out.print_all()
                raise
        else:
            if is_watched and not left_out.is_lacking:
                left_out.print_all()
                return result
        if left_out.is_lacking:
            has = has.with_more(left_out, kernel.__name__)
        else:
            is_watched = True


def _note_wanted(left_out: LeftOut, launched: PreparedLaunch, error: BaseException) -> None:
    """Record in ``left_out`` the values whose lack has ended a launch on any core, outside of an instruction too."""
    for raised in (error, *(run.error for run in launched.running)):
        if isinstance(raised, ValuesWanted):
            left_out.want(raised.origin)


@dataclass(frozen=True)
class _Memory:
    """The storages that have memory in a launch; the values of the others are left out.

    Attributes:
        made: the origins (``Storage.origin``) of the storages that have memory.
        everything: whether all storages have memory.
        starts: the number of launches before this one.
    """

    made: frozenset[Hashable] = frozenset()
    everything: bool = False
    starts: int = 0

    def with_more(self, left_out: LeftOut, kernel: str) -> _Memory:
        """Return the storages that need memory in the next launch, after a launch that lacked values of some."""
        if self.everything:
            raise RuntimeError(f"{kernel}: skip_arithmetic lacks values where it computes all of them: a bug of nkilib")
        made = self.made | left_out.all_wanted()
        is_enough = made > self.made and self.starts < _MOST_STARTS and not left_out.wants_all
        return _Memory(made, not is_enough, self.starts + 1)
