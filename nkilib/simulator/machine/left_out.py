# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a launch with ``skip_arithmetic`` does not compute, and what it has to.

A storage whose values are left out has no memory. An instruction that writes such storages alone checks its operands,
notes what it reads and writes, and ends where it would compute; one that writes a storage with memory computes, and
all that it reads must have memory too. So a value that is there is the one that a full launch computes.

Where an address, the bound of a loop or a check needs values of a storage without memory, the launch ends and starts
again (launch/skipping.py), and what was made at the same place of the kernel has memory from then on, as has all that
this came from as far as the launch has seen. A place is the line of calls from the kernel's function to
where the storage is made, so that all iterations of a loop of Python are one.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator
from types import CodeType, FrameType

from ..memory.storage import Storage
from ..terms.spec import DataNeeded, ValuesWanted
from .observer import Issued
from .trips import Stated

# Of instructions that meet other ranks nothing is known of what these leave out.
_REFUSED_MODULE = "nki.collectives"


class LeftOut:
    """What one launch leaves out; its cores share it.

    Args:
        made: the origins of the storages that have memory.
        makes_all: whether all have.
        trips: how often loops run whose bounds are left out; None if nobody has said so.
        bottom: the code that calls the kernel's function.

    Attributes:
        wanted: origins of storages whose values are needed and were left out.
        wants_all: whether values were needed of which it is not known where they come from.
    """

    def __init__(self, made: frozenset[Hashable], makes_all: bool, trips: Stated | None, bottom: CodeType) -> None:
        self.trips = trips
        self.wanted: set[Hashable] = set()
        self.wants_all = False
        self._made = made
        self._makes_all = makes_all
        self._bottom = bottom
        self._sources: dict[Hashable, set[Hashable]] = {}
        self._said: list[str] = []
        self._without_values: set[Hashable] = set()

    @property
    def is_lacking(self) -> bool:
        """Whether something was needed that was left out."""
        return self.wants_all or bool(self.wanted)

    def makes(self, origin: Hashable) -> bool:
        """Whether storages of that origin have memory."""
        return self._makes_all or origin in self._made

    def origin_here(self) -> Hashable:
        """That of a storage which the kernel makes now."""
        place: list[int] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._bottom:
            place += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        return tuple(place)

    def want(self, origin: Hashable) -> None:
        """Values of that origin are needed; None where it is not known which."""
        if origin is None:
            self.wants_all = True
        else:
            self.wanted.add(origin)

    def cannot_make(self, origin: Hashable) -> None:
        """Nobody knows the values of that origin."""
        self._without_values.add(origin)

    def all_wanted(self) -> set[Hashable]:
        """What is wanted, and what that was seen to come from; it need not be all of that."""
        found, left = set(self.wanted), list(self.wanted)
        while left:
            more = self._sources.get(left.pop(), set()) - found
            found |= more
            left += more
        return found - (self._without_values - self.wanted)

    def run(self, call: Issued) -> None:
        """Run an instruction: wholly if it writes a storage with memory, else up to where it would compute.

        Raises:
            ValuesWanted: if something needs values that were left out.
            NotImplementedError: for an operation among ranks.
        """
        if call.definition.module == _REFUSED_MODULE:
            raise NotImplementedError(
                f"{call.definition.label}: skip_arithmetic does not know what other ranks leave out; launch without it"
            )
        outputs = list(_outputs(call))
        computes = not all([storage.is_abstract for storage in outputs])
        if computes:
            self._need(outputs)
            self._need(view.storage for view in call.reads)
        try:
            call.definition.function(call, *call.values[:-1])
        except DataNeeded as needed:
            if computes:
                self.want(needed.origin)
                raise ValuesWanted(needed.origin) from None
        for storage in outputs:
            self._sources.setdefault(storage.origin, set()).update([view.storage.origin for view in call.reads])

    def _need(self, storages: Iterable[Storage]) -> None:
        lacking = {storage.origin for storage in storages if storage.is_abstract}
        if lacking:
            self.wanted |= lacking
            raise ValuesWanted(next(iter(lacking)))

    def say(self, text: str) -> None:
        """The kernel prints; :meth:`print_all` does so, for the launch may end and start again."""
        self._said.append(text)

    def print_all(self) -> None:
        """Print what the kernel has printed."""
        print("".join(self._said), end="", flush=True)


def _outputs(call: Issued) -> Iterator[Storage]:
    for _, position in call.definition.outputs:
        if call.values[position] is not None:
            yield call.values[position].storage
    for operand in call.indirect:
        if operand.is_output:
            yield operand.base.storage
