# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The work of the two cores where they synchronise: at a barrier, an exchange or a collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..engines.sync.exchange import Parcel
from ..machine.call import Call
from ..machine.core import Core
from ..machine.races import SharedAccesses
from ..tensors.tensor import NkiTensor
from .errors import ReplayFailed
from .work import Meeting


class _Arrived:
    """A stand-in for the launch's barrier, at which the other core has arrived already: it returns that core's tile."""

    def __init__(self, core: int, src: NkiTensor) -> None:
        self._core = core
        self._src = src
        self._values = src.array.copy()
        self.is_aborted = False

    def meet(self, place: str, item: Parcel) -> list[Any]:
        """Return the data of the other core; both cores agreed on the terms when the launch was recorded."""
        return [replace(item, core=self._core, src=self._src, values=self._values)]


def exchange(cores: Sequence[Core], meetings: Sequence[Meeting]) -> None:
    """Run the instruction at which both cores synchronise.

    An exchange swaps their tiles, a collective runs on the first core, and a barrier is only reported to the observers.
    """
    if meetings[0].call.is_collective:
        _operate(cores[0], meetings[0])
        return
    if meetings[0].call.definition.name == "core_barrier":
        calls = [_call(core, meeting) for core, meeting in zip(cores, meetings, strict=True)]
        brought = [core.observers.arrive(call) for core, call in zip(cores, calls, strict=True)]
        for core, call, other in zip(cores, calls, reversed(brought), strict=True):
            core.observers.meet(call, other)
        return
    position = meetings[0].call.definition.names.index("src")
    sent = [_Arrived(core.number, call.call.values[position]) for core, call in zip(cores, meetings, strict=True)]
    for core, meeting, arrived in zip(cores, meetings, reversed(sent), strict=True):
        launch_barrier, core.launch.barrier = core.launch.barrier, arrived  # type: ignore[assignment]
        try:
            call = _call(core, meeting)
            call.definition.function(call, *meeting.call.values)
        finally:
            core.launch.barrier = launch_barrier


def _operate(core: Core, meeting: Meeting) -> None:
    """Run a collective of a single rank on one core, for both; the other core has come to the same collective."""
    if core.observers.find(SharedAccesses) is not None:
        raise ReplayFailed("an operation of the ranks, where the data decide what the cores touch")
    launch_barrier, core.launch.barrier = core.launch.barrier, _Agreed()  # type: ignore[assignment]
    try:
        call = _call(core, meeting)
        call.definition.function(call, *meeting.call.values)
    finally:
        core.launch.barrier = launch_barrier


class _Agreed:
    """A stand-in for the launch's barrier, at which the other core has arrived with the same operation."""

    def __init__(self) -> None:
        self.is_aborted = False

    def meet(self, place: str, item: Any) -> list[Any]:
        """Return the data of the other core, which are those of this core."""
        return [item]


def _call(core: Core, meeting: Meeting) -> Call:
    call = Call(core, meeting.call.definition, [*meeting.call.values, None])
    call.engine = meeting.call.engine
    return call
