# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pass that leaves a row in PSUM that a function of ``nki.language`` broadcasts (:class:`Broadcasts`).

The simulator runs ``nl.broadcast_to`` and other broadcasting functions as a product with ones, which writes the row to
PSUM, and copies to SBUF (``trainium_inferentia2_arch.rst``, alternative use of the Tensor engine). Vector and Scalar
can read PSUM, so that the compiler can leave the copies out: ``fused_mamba.rst`` counts a partition broadcast as one
instruction of Tensor. That page publishes times for ``mamba_v2`` (512 columns) and ``mamba_v3``, which broadcast two
rows in each iteration. The times are too short for copies on Vector, and require that a ``tensor_tensor`` on N
columns with a broadcast operand takes N cycles, as with an input in PSUM. With copies the model gives 1.7 times the
published time.
"""

from __future__ import annotations

from ...hardware.generations import PSUM_BANK_BYTES
from ...terms.enums import Engine, MemoryRegion
from ..dependencies import Tracked
from ..instruction import PendingInstruction, TensorAccess
from .window import reads_of, writes_of

NAME = "keeps_broadcasts_in_psum"

# A product lies in one bank, and a wider row in several: from 1,024 columns on mamba_v2 is published at 1.33 times
# mamba_v3, which is the time of the copies of its two rows.
_MOST_BYTES = PSUM_BANK_BYTES
_PSUM_ELEMENT_BYTES = 4
_READERS = frozenset({Engine.vector, Engine.scalar})


class _Broadcast:
    """The copies that one call of a ``nki.language`` function makes of its products, from PSUM to one tile in SBUF."""

    __slots__ = ("copies", "function_at", "is_read", "sources")

    def __init__(self, instruction: PendingInstruction) -> None:
        self.function_at = instruction.code, instruction.position
        self.copies: list[PendingInstruction] = []
        self.sources: list[Tracked] = []
        self.is_read = False


def _reads_psum(instruction: PendingInstruction) -> bool:
    # Such an instruction cannot read the broadcast row from PSUM too.
    inputs: list[TensorAccess | None] = list(instruction.operands[len(instruction.roles.writes) :])
    return any(access is not None and access[0].views.region is MemoryRegion.psum for access in inputs)


class Broadcasts:
    """The pass that drops the copies of a broadcast row from PSUM to SBUF if all its readers can read PSUM."""

    constants_of = frozenset[str]()

    def __init__(self) -> None:
        self._products: dict[Tracked, PendingInstruction] = {}
        self._open: dict[Tracked, _Broadcast] = {}

    def see(self, instruction: PendingInstruction) -> None:
        name = instruction.definition.name
        if name == "nc_matmul" and instruction.function:
            for access in writes_of(instruction):
                self._products[access[0]] = instruction
        elif name == "tensor_copy" and instruction.function and self._is_copy(instruction):
            return
        if self._open:
            self._resolve(instruction)

    def leaves(self, number: int) -> None:
        for known in [known for known, product in self._products.items() if product.number <= number]:
            del self._products[known]
        for known, broadcast in list(self._open.items()):
            if broadcast.copies[-1].number <= number:
                del self._open[known]
                if broadcast.is_read:
                    self._keep(known, broadcast)

    def _is_copy(self, instruction: PendingInstruction) -> bool:
        # Whether the instruction copies a product to SBUF in the same call of a ``nki.language`` function that computed
        # the product; if so, the copy is recorded.
        target, source = instruction.operands
        if target is None or source is None:
            return False
        product = self._products.get(source[0])
        if product is None or (product.code, product.position) != (instruction.code, instruction.position):
            return False
        known = target[0]
        views = known.views
        if views.elements_each * _PSUM_ELEMENT_BYTES > _MOST_BYTES or views.region is not MemoryRegion.sbuf:
            return False
        broadcast = self._open.setdefault(known, _Broadcast(instruction))
        if broadcast.function_at != (instruction.code, instruction.position):
            return False
        broadcast.copies.append(instruction)
        broadcast.sources.append(source[0])
        return True

    def _resolve(self, instruction: PendingInstruction) -> None:
        for access in writes_of(instruction):
            self._open.pop(access[0], None)
        for access in reads_of(instruction):
            broadcast = self._open.get(access[0])
            if broadcast is None:
                continue
            if instruction.engine in _READERS and not _reads_psum(instruction):
                broadcast.is_read = True
            else:
                del self._open[access[0]]

    @staticmethod
    def _keep(known: Tracked, broadcast: _Broadcast) -> None:
        known.views = known.views.moved_to(MemoryRegion.psum)
        if len(broadcast.copies) == 1:
            known.share(broadcast.sources[0])
        for copy in broadcast.copies:
            copy.dropped_by = copy.dropped_by or NAME
