"""When parts of a tensor are ready to be read or to be overwritten, part by part.

Most parts are combs: equally long runs of bytes at equal distances, such as some columns of some rows. Whether two of
these share a byte is arithmetic; other parts are compared range by range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

from ..byte_spans import first_meeting, spans_of
from ..enums import engine
from ..layout import Layout, extent
from ..tensor import NkiTensor


@dataclass(frozen=True, eq=False)
class Part:
    """Some elements of a storage. Equal ones are one object: see :func:`part_of`.

    Attributes:
        layout: which ones.
        width: bytes of each.
        first, last: the first byte and the last one.
        length: bytes of a run.
        step: from one run to the next.
        count: how many runs there are; 0 where they are not equally far apart.
        level: of like extents.
    """

    layout: Layout
    width: int
    first: int
    last: int
    length: int
    step: int
    count: int
    level: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", (self.last - self.first).bit_length())

    def meets(self, other: Part) -> bool:
        """Whether the two share a byte."""
        if self.last < other.first or other.last < self.first:
            return False
        if self is other or (self.count == 1 and other.count == 1):
            return True
        if not self.count or not other.count or (self.step != other.step and self.count > 1 and other.count > 1):
            return _share_a_byte(self, other)
        step = self.step if self.count > 1 else other.step
        # Run i of self meets run k of other if (i - k) * step lies strictly between these two.
        above, below = other.first - self.first - self.length, other.first - self.first + other.length
        runs_apart = max(above // step + 1, 1 - other.count)
        return runs_apart < self.count and runs_apart * step < below

    def covers(self, other: Part) -> bool:
        """Whether this part is known to hold all of ``other``."""
        if self is other:
            return True
        if other.first < self.first or other.last > self.last or not self.count:
            return False
        if self.count == 1:
            return True
        is_alike = other.count == 1 or (other.count > 1 and other.step == self.step)
        return is_alike and (other.first - self.first) % self.step + other.length <= self.length


def part_of(tensor: NkiTensor) -> Part | None:
    """The part of its storage that a tensor is, or may be where its address is read at run time; None if empty."""
    layout = tensor.layout
    indirect = tensor.indirect_access
    if indirect is not None and indirect.kind != "tensor":
        layout = _reach(tensor)
    return _part(layout, tensor.storage.width_of(tensor.dtype))


def _reach(tensor: NkiTensor) -> Layout:
    """Every element that a view with an index may be at: the rows that a vector chooses from, or all of its tensor."""
    indirect = tensor.indirect_access
    assert indirect is not None
    elements = tensor.storage.elements_of(tensor.dtype)
    stride, free = indirect.stride, Layout(tensor.shape[1:], tensor.strides[1:], tensor.offset)
    if indirect.kind == "vector" and stride > 0:
        rows = min(indirect.limit, (elements - 1 - extent(free)[1]) // stride + 1)
        return Layout((max(0, rows), *free.shape), (stride, *free.strides), tensor.offset)
    return Layout((elements,), (1,), 0)


@lru_cache(maxsize=65536)
def _part(layout: Layout, width: int) -> Part | None:
    if 0 in layout.shape:
        return None
    low, high = extent(layout)
    first, last = low * width, high * width + width - 1
    length, step, count = width, 0, 1
    for size, stride in sorted(zip(layout.shape, layout.strides, strict=True), key=lambda item: abs(item[1])):
        distance = abs(stride) * width
        if size == 1 or distance == 0:
            continue
        if count == 1 and distance <= length:
            length += distance * (size - 1)
        elif count == 1:
            step, count = distance, size
        elif distance == step * count:
            count *= size
        else:
            return Part(layout, width, first, last, 0, 0, 0)
    return Part(layout, width, first, last, length, step, count)


@lru_cache(maxsize=65536)
def _share_a_byte(one: Part, other: Part) -> bool:
    sides = [[spans_of(part.layout, part.width)] for part in (one, other)]
    return first_meeting(*sides) is not None


class Use:
    """From when on what an instruction left of a part can be used, and which engine it ran on."""

    __slots__ = ("by", "part", "until_ns")

    def __init__(self, part: Part, by: engine, until_ns: float) -> None:
        self.part = part
        self.by = by
        self.until_ns = until_ns


class _Index:
    """Uses by where their parts begin; those of like extent together, so that few are looked at."""

    __slots__ = ("_known", "_levels")

    def __init__(self) -> None:
        # By the value of an engine: the hash of a member of an Enum takes a call.
        self._known: dict[tuple[Part, int], Use] = {}
        self._levels: dict[int, tuple[list[int], list[Use]]] = {}

    def add(self, part: Part, by: engine, until_ns: float) -> None:
        key = part, by._value_
        known = self._known.get(key)
        if known is not None:
            if until_ns > known.until_ns:
                known.until_ns = until_ns
            return
        use = self._known[key] = Use(part, by, until_ns)
        firsts, uses = self._levels.setdefault(part.level, ([], []))
        at = bisect_right(firsts, part.first)
        firsts.insert(at, part.first)
        uses.insert(at, use)

    def all(self) -> list[Use]:
        """Every use."""
        return list(self._known.values())

    def clear(self) -> None:
        if self._known:
            self._known.clear()
            self._levels.clear()

    def near(self, part: Part) -> list[Use]:
        """The uses of all parts that can meet ``part``."""
        found: list[Use] = []
        if self._known:
            for level, (firsts, uses) in self._levels.items():
                low = bisect_left(firsts, part.first - (1 << level))
                found += uses[low : bisect_right(firsts, part.last, low)]
        return found

    def remove(self, use: Use) -> None:
        del self._known[use.part, use.by._value_]
        firsts, uses = self._levels[use.part.level]
        at = bisect_left(firsts, use.part.first)
        while uses[at] is not use:
            at += 1
        del firsts[at], uses[at]


class Uses:
    """The accesses to one storage that later instructions may have to wait for."""

    __slots__ = ("_only", "_reads", "_writes")

    def __init__(self, first: Part) -> None:
        # The part that all accesses so far had: most tiles are used as a whole, which needs no search.
        self._only: Part | None = first
        self._reads = _Index()
        self._writes = _Index()

    def before_read(self, part: Part) -> list[Use]:
        """What a read has to wait for: the writes that it meets."""
        if self._only is part:
            return self._writes.all()
        self._only = None
        return [use for use in self._writes.near(part) if use.part.meets(part)]

    def before_write(self, part: Part) -> list[Use]:
        """What a write has to wait for: the reads and writes that it meets."""
        if self._only is part:
            return self._writes.all() + self._reads.all()
        return self.before_read(part) + [use for use in self._reads.near(part) if use.part.meets(part)]

    def note_read(self, part: Part, by: engine, until_ns: float) -> None:
        """A read that asked :meth:`before_read` was done at ``until_ns``."""
        self._reads.add(part, by, until_ns)

    def note_write(self, part: Part, by: engine, until_ns: float) -> None:
        """A write that asked :meth:`before_write` can be used from ``until_ns`` on.

        Whoever waits for it waits for what it has waited for itself: that is forgotten.
        """
        if self._only is part:
            self._reads.clear()
            self._writes.clear()
            self._writes.add(part, by, until_ns)
            return
        first, last = part.first, part.last
        for index in (self._reads, self._writes):
            for use in index.near(part):
                other = use.part
                if other.first >= first and other.last <= last and part.covers(other):
                    index.remove(use)
        self._writes.add(part, by, until_ns)
