# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pass that keeps a row in PSUM if a function of ``nki.language`` broadcasts it to all partitions.

The simulator runs ``nl.broadcast_to`` and the functions that broadcast as a product with ones and copies to SBUF, which
the hardware can do (``trainium_inferentia2_arch.rst``, alternative use of the Tensor engine). The product leaves the
row in PSUM, and the compiler need not copy it where Vector or Scalar read the result: ``fused_mamba.rst`` counts a
partition broadcast as one instruction of Tensor. The published times of ``mamba_v2`` (512 columns) and ``mamba_v3``
there, which broadcast two rows in each iteration, leave Vector no time for copies, and require N cycles for a
``tensor_tensor`` on N columns with a broadcast operand, as with an input in PSUM. With copies they model at 1.7 times
their time.
"""

from __future__ import annotations

from ...hardware.limits import PSUM_BANK_BYTES
from ...terms.enums import Engine
from ...terms.regions import MemoryRegion
from ..footprints import Tracked
from ..noted import Access, Noted
from .accesses import reads_of, writes_of

NAME = "keeps_broadcasts_in_psum"

# A product lies in one bank, and a wider row in several: from 1,024 columns on mamba_v2 is published at 1.33 times
# mamba_v3, which is the time of the copies of its two rows.
_MOST_BYTES = PSUM_BANK_BYTES
_PSUM_ELEMENT_BYTES = 4
_READERS = frozenset({Engine.vector, Engine.scalar})


class _Broadcast:
    """A tile in SBUF that holds only copies of products of a function: its readers may read PSUM instead."""

    __slots__ = ("copies", "function_at", "is_read", "sources")

    def __init__(self, noted: Noted) -> None:
        self.function_at = noted.code, noted.position
        self.copies: list[Noted] = []
        self.sources: list[Tracked] = []
        self.is_read = False


class Broadcasts:
    """The pass that drops the copies of a broadcast row from PSUM to SBUF if all its readers can read PSUM."""

    constants_of = frozenset[str]()

    def __init__(self) -> None:
        self._products: dict[Tracked, Noted] = {}
        self._open: dict[Tracked, _Broadcast] = {}

    def see(self, noted: Noted) -> None:
        name = noted.definition.name
        if name == "nc_matmul" and noted.function:
            for access in writes_of(noted):
                self._products[access[0]] = noted
        elif name == "tensor_copy" and noted.function and self._is_copy(noted):
            return
        if self._open:
            self._resolve(noted)

    def leaves(self, number: int) -> None:
        for known in [known for known, product in self._products.items() if product.number <= number]:
            del self._products[known]
        for known, broadcast in list(self._open.items()):
            if broadcast.copies[-1].number <= number:
                del self._open[known]
                if broadcast.is_read:
                    self._keep(known, broadcast)

    def _is_copy(self, noted: Noted) -> bool:
        """Tell whether an instruction copies a product of the same call of a function; if so, note the copy."""
        target, source = noted.operands
        if target is None or source is None:
            return False
        product = self._products.get(source[0])
        if product is None or (product.code, product.position) != (noted.code, noted.position):
            return False
        known = target[0]
        views = known.views
        if views.elements_each * _PSUM_ELEMENT_BYTES > _MOST_BYTES or views.region is not MemoryRegion.sbuf:
            return False
        broadcast = self._open.setdefault(known, _Broadcast(noted))
        if broadcast.function_at != (noted.code, noted.position):
            return False
        broadcast.copies.append(noted)
        broadcast.sources.append(source[0])
        return True

    def _resolve(self, noted: Noted) -> None:
        for access in writes_of(noted):
            self._open.pop(access[0], None)
        for access in reads_of(noted):
            broadcast = self._open.get(access[0])
            if broadcast is None:
                continue
            if noted.engine in _READERS and not _reads_psum(noted):
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


def _reads_psum(noted: Noted) -> bool:
    """Tell whether an instruction already reads a tile in PSUM, so that it cannot read another one there."""
    inputs: list[Access | None] = list(noted.operands[len(noted.roles.writes) :])
    return any(access is not None and access[0].views.region is MemoryRegion.psum for access in inputs)
