# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``simulate(kernel, skip_arithmetic=True)``: a launch that checks everything and computes only what it has to.

At first it computes nothing. Where values are needed that it has left out, it ends and starts again with memory for
what holds them; see machine/left_out.py. To start again is cheap as long as little is computed.
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

# What ``simulate(trips=)`` takes.
AskedTrips = Stated | Literal["none"]

# A launch that has started again so often computes everything: kernels that make their code anew each time have no
# places that could be known again.
_MOST_STARTS = 100


def checked_trips(asked: Any) -> Stated | None:
    """What ``simulate(trips=)`` was given.

    Raises:
        TypeError, ValueError: if it is nothing that it takes.
    """
    if asked is None or asked == "none":
        return None if asked is None else 0
    check_stated("simulate", "'none'", asked)
    return dict(asked) if isinstance(asked, Mapping) else int(asked)


def run_skipping(kernel: Launchable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch ``kernel``, again and again until all values are there that something depends on.

    Those who watch launches see the last one.

    Raises:
        NkiValidationError: what a launch that computes raises; or if values are needed of an argument without any.
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
    """What a launch that has failed has asked for, on any core, besides what its instructions have."""
    for each in (error, *(run.error for run in launched.running)):
        if isinstance(each, ValuesWanted):
            left_out.want(each.origin)


@dataclass(frozen=True)
class _Memory:
    """What has memory in a launch.

    Attributes:
        made: the origins of the storages that have.
        everything: whether all have.
        starts: how many launches came before.
    """

    made: frozenset[Hashable] = frozenset()
    everything: bool = False
    starts: int = 0

    def with_more(self, left_out: LeftOut, kernel: str) -> _Memory:
        """What has memory in the next launch, after one in which something lacked it."""
        if self.everything:
            raise RuntimeError(f"{kernel}: skip_arithmetic lacks values where it computes all of them: a bug of nkilib")
        made = self.made | left_out.all_wanted()
        is_enough = made > self.made and self.starts < _MOST_STARTS and not left_out.wants_all
        return _Memory(made, not is_enough, self.starts + 1)
