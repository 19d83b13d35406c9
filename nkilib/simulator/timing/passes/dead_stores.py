# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pass that drops a ``memset`` whose bytes are all overwritten before one of them is read (:class:`DeadStores`).

Kernels fill a PSUM tile with zeros before the first ``nc_matmul`` into it, as the language once required; the first
product overwrites the zeros. If the device ran the fills where the kernel issues them, on Vector among the evictions of
the previous sums, Tensor would wait for them. The device does not: the two products of 2048 x 2048 x 2048 of
awslabs/nki-autotune (kernel_library) are published at 90.92% of Tensor's rate, which leaves no room for 64 fills of 533
ns each in the path of the sums. The model gives 2.2 times their time with the fills and 0.95 times without.

A *fill* is a ``memset`` that is still in the window, so that the pass can drop it.
"""

from __future__ import annotations

from math import prod

from ...terms.enums import ON_CHIP, nc_version
from ..dependencies import Tracked
from ..footprints import OccupiedBytes
from ..instruction import PendingInstruction
from .window import accessed_part, reads_of, writes_of

NAME = "drops_dead_stores"


def _size(part: OccupiedBytes) -> int:
    return prod(part.layout.shape) * part.width


class _Fill:
    """A fill in the window of the passes, with the parts of its tile that were overwritten so far."""

    __slots__ = ("instruction", "is_zero", "overwritten", "part", "size")

    def __init__(self, instruction: PendingInstruction, part: OccupiedBytes, is_zero: bool) -> None:
        self.instruction = instruction
        self.part = part
        self.size = _size(part)
        self.is_zero = is_zero
        self.overwritten: list[OccupiedBytes] = []

    def overwrite(self, part: OccupiedBytes) -> bool:
        """Record a write to ``part`` of the tile; return True if all bytes of the fill are certainly overwritten."""
        if not any(known.covers(part) for known in self.overwritten):
            self.overwritten = [known for known in self.overwritten if not part.covers(known)] + [part]
        if part.covers(self.part):
            return True
        # The pairs last: of a tile that is overwritten piece by piece they are many, and most pieces are too few yet.
        return (
            sum(map(_size, self.overwritten)) == self.size
            and all(self.part.covers(earlier) for earlier in self.overwritten)
            and not any(
                earlier.meets(other)
                for number, earlier in enumerate(self.overwritten)
                for other in self.overwritten[:number]
            )
        )

    def is_seen_by(self, part: OccupiedBytes) -> bool:
        # Whether a read of ``part`` may return the value that the fill wrote.
        return part.meets(self.part) and not any(known.covers(part) for known in self.overwritten)


class DeadStores:
    """The pass that drops a ``memset`` that is overwritten before it is read."""

    constants_of = frozenset[str]()

    def __init__(self, version: nc_version) -> None:
        # On trn3 a matmul adds to whatever was written; on the others only to the result of another matmul.
        self._adds_to_fills = version is nc_version.gen4
        self._open: dict[Tracked, _Fill] = {}

    def see(self, instruction: PendingInstruction) -> None:
        if self._open:
            self._resolve(instruction)
        if instruction.definition.name == "memset":
            self._begin(instruction)

    def leaves(self, number: int) -> None:
        for known in [known for known, fill in self._open.items() if fill.instruction.number <= number]:
            del self._open[known]

    def _begin(self, instruction: PendingInstruction) -> None:
        (access,) = instruction.operands
        assert access is not None
        known, layout, dtype, reach, _ = access
        if known.views.region in ON_CHIP and reach is None:
            part = known.views.footprint(layout, dtype, None).part
            if part is not None and part.count:
                self._open[known] = _Fill(instruction, part, instruction.decided("value") == 0)

    def _resolve(self, instruction: PendingInstruction) -> None:
        for access in reads_of(instruction):
            fill = self._open.get(access[0])
            if fill is not None:
                part = accessed_part(access)
                if access[3] is not None or (part is not None and fill.is_seen_by(part)):
                    del self._open[access[0]]
        leaves_some = any(rule.may_leave for rule, _ in instruction.definition.outputs)
        for access in writes_of(instruction):
            fill = self._open.get(access[0])
            if fill is None:
                continue
            part = accessed_part(access)
            is_read = leaves_some or (instruction.definition.is_matmul and self._adds_to_fills and not fill.is_zero)
            if is_read or access[3] is not None:
                del self._open[access[0]]
            elif part is not None and fill.overwrite(part):
                fill.instruction.dropped_by = NAME
                del self._open[access[0]]
