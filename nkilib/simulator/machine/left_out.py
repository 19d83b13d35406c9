# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values that a launch with ``skip_arithmetic`` does not compute ("leaves out"), and how instructions run there.

The *origin* of a storage is the place in the kernel that makes it: the chain of calls from the kernel's function to
that line, so that all iterations of a Python loop are one origin. The origin of an argument's storage is the argument.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator
from types import CodeType, FrameType

from ..memory.storage import Storage
from ..terms.spec import DataNeeded, ValuesWanted
from .loops import Stated
from .observer import Issued

# The instructions that synchronise with other ranks: it is not known which values those leave out.
_REFUSED_MODULE = "nki.collectives"


def _outputs(call: Issued) -> Iterator[Storage]:
    for _, position in call.definition.outputs:
        if call.values[position] is not None:
            yield call.values[position].storage
    for operand in call.indirect:
        if operand.is_output:
            yield operand.base.storage


class LeftOut:
    """The values that a launch with ``skip_arithmetic`` leaves out; the cores of the launch share this object.

    A storage whose values are left out has no memory. An instruction that writes only such storages checks its
    operands, records its reads and writes, and stops before it computes. An instruction that writes a storage with
    memory computes, and all storages that it reads must have memory too. A value that exists equals that of a full
    launch.

    If an address, the bound of a loop or a check needs values of a storage without memory, the launch ends and starts
    again (``run_skipping`` in launch/running.py). Then the storages of the same origin have memory, and so have the
    storages from which their values were computed, as far as the launch has seen.

    Args:
        made: the origins of the storages that have memory.
        makes_all: whether all storages have memory.
        trips: the iteration counts of loops whose bounds are left out; None if no counts are stated.
        bottom: the code object that calls the kernel's function, where the chain of calls of an origin begins.

    Attributes:
        wanted: the origins of storages whose values are needed and were left out.
        wants_all: whether values of unknown origin are needed.
    """

    def __init__(self, made: frozenset[Hashable], makes_all: bool, trips: Stated | None, bottom: CodeType) -> None:
        self.trips = trips
        self.wanted: set[Hashable] = set()
        self.wants_all = False
        self._made = made
        self._makes_all = makes_all
        self._bottom = bottom
        self._sources: dict[Hashable, set[Hashable]] = {}
        self._output: list[str] = []
        self._without_values: set[Hashable] = set()

    @property
    def is_lacking(self) -> bool:
        """Whether this launch needed a value that was left out; the results of such a launch are not valid."""
        return self.wants_all or bool(self.wanted)

    def makes(self, origin: Hashable) -> bool:
        """Return whether storages with this origin have memory."""
        return self._makes_all or origin in self._made

    def origin_here(self) -> Hashable:
        """Return the origin of a storage that the kernel makes now."""
        place: list[int] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self._bottom:
            place += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        return tuple(place)

    def want(self, origin: Hashable) -> None:
        """Record that values of storages with this origin are needed; None is an unknown origin."""
        if origin is None:
            self.wants_all = True
        else:
            self.wanted.add(origin)

    def cannot_make(self, origin: Hashable) -> None:
        """Record that the caller passed the argument ``origin`` without values, so that a new launch cannot compute
        them.
        """
        self._without_values.add(origin)

    def all_wanted(self) -> set[Hashable]:
        """Return the origins in :attr:`wanted`, and all origins from which this launch computed their values.

        The result lacks arguments that were passed without values, except those in :attr:`wanted`.
        """
        origins, left = set(self.wanted), list(self.wanted)
        while left:
            more = self._sources.get(left.pop(), set()) - origins
            origins |= more
            left += more
        return origins - (self._without_values - self.wanted)

    def run(self, call: Issued) -> None:
        """Run an instruction: completely if it writes a storage with memory, otherwise only its checks.

        Raises:
            ValuesWanted: values are needed that were left out.
            NotImplementedError: the instruction is an operation among ranks.
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

    def keep_output(self, text: str) -> None:
        """Keep text that the kernel prints until :meth:`print_all`.

        The launch may end and start again, and would otherwise print the text twice.
        """
        self._output.append(text)

    def print_all(self) -> None:
        """Print the text that :meth:`keep_output` has kept."""
        print("".join(self._output), end="", flush=True)
