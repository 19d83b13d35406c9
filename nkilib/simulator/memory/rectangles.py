# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Blocks of an on-chip storage: some partitions, and the same bytes of each."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ..terms.layout import Layout, is_dense


class Rectangle(NamedTuple):
    """The bytes ``left`` to ``right`` of each of the partitions ``top`` to ``bottom``; the ends are exclusive."""

    top: int
    bottom: int
    left: int
    right: int

    def meets(self, other: Rectangle) -> bool:
        """Return whether both blocks have a byte in common."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def common(self, other: Rectangle) -> Rectangle:
        """Return the intersection of two blocks that overlap."""
        return Rectangle(
            max(self.top, other.top),
            min(self.bottom, other.bottom),
            max(self.left, other.left),
            min(self.right, other.right),
        )

    def contains(self, other: Rectangle) -> bool:
        return (
            self.top <= other.top
            and other.bottom <= self.bottom
            and self.left <= other.left
            and other.right <= self.right
        )

    def outside(self, other: Rectangle) -> list[Rectangle]:
        """Return the parts of this block outside ``other``: at most four, which do not overlap."""
        if not self.meets(other):
            return [self]
        top, bottom, left, right = self.common(other)
        parts = (
            Rectangle(self.top, top, self.left, self.right),
            Rectangle(bottom, self.bottom, self.left, self.right),
            Rectangle(top, bottom, self.left, left),
            Rectangle(top, bottom, right, self.right),
        )
        return [part for part in parts if part.top < part.bottom and part.left < part.right]


def rectangle_of(layout: Layout, itemsize: int, partition_bytes: int) -> Rectangle | None:
    """Return the block that a view covers, of elements of ``itemsize`` bytes.

    It is None for a view with gaps in a partition or between partitions, and for one without elements.
    """
    shape, strides, offset = layout
    if 0 in shape or not is_dense(shape[1:], strides[1:]):
        return None
    if shape[0] > 1 and strides[0] * itemsize != partition_bytes:
        return None
    top, left = divmod(offset * itemsize, partition_bytes)
    right = left + prod(shape[1:]) * itemsize
    return None if right > partition_bytes else Rectangle(top, top + shape[0], left, right)
