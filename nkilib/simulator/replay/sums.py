# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums of products: matmuls that add to one matrix of PSUM become one piece of work, with operands that are cast once.

Each product is computed separately and added in the order of the matmuls, so that the results are bitwise identical to
one matmul after the other; engines/tensor/sums.py says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.casts import copy_as_float32
from ..numerics.products import transposed_product
from ..terms.layout import Layout
from .ghosts import Ghost
from .memory import Memory
from .steps import Steps
from .work import Meeting, Product, Ref, Work, everything


@dataclass(eq=False)
class Side:
    """The left or the right operands of several products: matrices of one storage at equal distances.

    Attributes:
        first: the first matrix.
        count: the number of matrices.
        distance: the number of elements from one matrix to the next.
    """

    first: Ref
    count: int = 1
    distance: int = 0

    def goes_on_with(self, ref: Ref) -> bool:
        """Tell whether ``ref`` is the matrix at the next place."""
        if ref.storage is not self.first.storage or ref.dtype != self.first.dtype:
            return False
        shape, strides, offset = ref.layout
        if shape != self.first.layout.shape or strides != self.first.layout.strides:
            return False
        return self.count == 1 or offset == self.first.layout.offset + self.count * self.distance

    def add(self, ref: Ref) -> None:
        """Add ``ref`` as the next matrix."""
        if self.count == 1:
            self.distance = ref.layout.offset - self.first.layout.offset
        self.count += 1

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for sides with the same elements."""
        return self.first.storage.number, self.first.layout, self.first.dtype, self.count, self.distance


@dataclass(eq=False)
class Run:
    """Successive products whose left operands are at equal distances, and whose right operands are."""

    left: Side
    right: Side


@dataclass(eq=False)
class Sum(Work):
    """The work of several matmuls: a sum of products, assigned or added to a matrix of PSUM."""

    dst: Ref
    is_added: bool
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writes = [self.dst]
        self.reads = [self.dst] if self.is_added else []

    def add(self, product: Product) -> None:
        """Add one more product."""
        left, right = product.stationary, product.moving
        self.reads += [left, right]
        last = self.runs[-1] if self.runs else None
        if last is not None and last.left.goes_on_with(left) and last.right.goes_on_with(right):
            last.left.add(left)
            last.right.add(right)
        else:
            self.runs.append(Run(Side(left), Side(right)))


def with_sums(works: list[Work]) -> list[Work]:
    """Return the work with sums in place of products.

    A sum takes in products as long as possible: until other work touches its result or changes an operand.
    """
    summed: list[Work] = []
    waiting: dict[int, Sum] = {}  # by the number of the storage that takes it
    for work in works:
        if isinstance(work, Product) and work.is_added:
            pending = waiting.get(work.dst.storage.number)
            if pending is not None and pending.dst.layout == work.dst.layout:
                _settle(waiting, summed, work, but=pending)
                pending.add(work)
                continue
        _settle(waiting, summed, work, but=None)
        if isinstance(work, Product):
            waiting[work.dst.storage.number] = Sum(work.dst, work.is_added)
            waiting[work.dst.storage.number].add(work)
        else:
            summed.append(work)
    return [*summed, *waiting.values()]


def _settle(waiting: dict[int, Sum], summed: list[Work], work: Work, but: Sum | None) -> None:
    """Append the waiting sums that ``work`` touches, or whose operands it changes, to ``summed``, except ``but``."""
    if isinstance(work, Meeting):
        summed.extend(waiting.values())
        waiting.clear()
        return
    for number, pending in list(waiting.items()):
        if pending is not but and _touches(work, pending):
            summed.append(waiting.pop(number))


def _touches(work: Work, pending: Sum) -> bool:
    target = pending.dst.storage
    if any(ref.storage is target for ref in (*work.reads, *work.writes)):
        return True
    # A tile that changes anywhere ends the sum, as in a launch: which products are neighbours decides the distance of
    # the rows of their operands, and with it how BLAS sums the elements of a vector.
    return any(written.storage is read.storage for written in work.writes for read in pending.reads)


class SumBuilder:
    """A builder of the steps of sums; the float32 copies of operands are reused until their tile changes."""

    def __init__(self, core: int, memory: Memory) -> None:
        self._core = core
        self._memory = memory
        self._copies: dict[tuple[Any, ...], _Copy] = {}
        self._buffers: dict[int, list[npt.NDArray[np.float32]]] = {}

    def changed(self, work: Work) -> None:
        """Drop the copies of elements that some work is about to overwrite."""
        for key, copy in list(self._copies.items()):
            if any(ref.storage is copy.storage and ref.place.meets(copy.ref.place) for ref in work.writes):
                del self._copies[key]
                self._buffers.setdefault(copy.values.size, []).append(copy.values)

    def build(self, steps: Steps, work: Sum) -> None:
        """Add the steps of a sum."""
        into = self._memory.array(work.dst)
        is_begun = work.is_added
        for run in work.runs:
            left, right, count = self._matrix(steps, run.left), self._matrix(steps, run.right), run.left.count
            for number in range(count):
                factors = left[number::count], right[number::count]
                if is_begun:
                    product = self._memory.scratch(self._core, "product", into.shape)
                    steps.call(transposed_product, *factors, product)
                    steps.call(np.add, into, product, into)
                else:
                    steps.call(transposed_product, *factors, into)
                is_begun = True

    def _matrix(self, steps: Steps, side: Side) -> npt.NDArray[np.float32]:
        copy = self._copies.get(side.key)
        if copy is None:
            (rows, columns), (step, _), offset = side.first.layout
            layout = Layout((rows, side.count, columns), (step, side.distance, 1), offset)
            size = rows * side.count * columns
            free = self._buffers.get(size)
            values = free.pop() if free else self._memory.take(self._core, 4 * size).view(np.float32)
            ref = Ref(side.first.view.with_layout(layout))
            ref.place = everything(ref.storage) if side.count > 1 and side.distance < 0 else ref.place
            steps.call(copy_as_float32, values.reshape(rows, side.count, columns), self._memory.array(ref))
            copy = self._copies[side.key] = _Copy(ref, ref.storage, values)
        (rows, columns), _, _ = side.first.layout
        return copy.values.reshape(rows * side.count, columns)


@dataclass(frozen=True)
class _Copy:
    """A float32 copy of an operand."""

    ref: Ref
    storage: Ghost
    values: npt.NDArray[np.float32]
