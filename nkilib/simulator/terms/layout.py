# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arithmetic on strided layouts: a shape, its strides and an offset, all counted in elements, without data.

- :class:`Layout`: a layout; :func:`dense`, :func:`dense_form`, :func:`row_major_strides`: the layout of a new tensor;
- :func:`extent`, :func:`is_dense`, :func:`has_repeats`: properties of a layout;
- :func:`reshape_strides`: the strides of the same elements in another shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]
# Kernels make tensors of a few shapes, again and again.
_MOST_SHAPES = 4096


class Layout(NamedTuple):
    """A strided layout: the element at index (i0, i1, ...) is number ``offset + sum(strides[k] * ik)`` in storage."""

    shape: Shape
    strides: Shape
    offset: int


def row_major_strides(shape: Sequence[int]) -> Shape:
    """Return the strides of a dense tensor of ``shape`` whose last dimension changes fastest."""
    if len(shape) == 2:  # most are
        return shape[1], 1
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def dense(shape: Shape) -> Layout:
    """Return the layout of a new tensor of ``shape`` whose elements lie in row-major order without gaps."""
    return Layout(shape, row_major_strides(shape), 0)


class DenseForm(NamedTuple):
    """Values that follow from the shape of a dense tensor.

    Attributes:
        layout: the layout of a new dense tensor of that shape.
        size: the number of elements.
        row_size: the number of elements at one index of dimension 0.
    """

    layout: Layout
    size: int
    row_size: int


@lru_cache(maxsize=_MOST_SHAPES)
def dense_form(shape: Shape) -> DenseForm:
    """Return the layout and the sizes of a dense tensor of ``shape``, from a cache."""
    sizes = tuple(map(int, shape))  # True is a size too, and equals 1
    return DenseForm(dense(sizes), prod(sizes), prod(sizes[1:]))


def extent(layout: Layout) -> tuple[int, int]:
    """Return the lowest and the highest storage position, in elements, that ``layout`` addresses; (0, -1) if none."""
    if 0 in layout.shape:
        return 0, -1
    low = high = layout.offset
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        if stride < 0:
            low += stride * (size - 1)
        else:
            high += stride * (size - 1)
    return low, high


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements are in row-major order without a gap; dimensions of size 1 are ignored."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _reach(steps: Sequence[tuple[int, int]]) -> int:
    return sum(stride * (size - 1) for stride, size in steps)


def _leads(steps: Sequence[tuple[int, int]], distance: int) -> bool:
    """Return whether two indices of a layout can be ``distance`` elements apart.

    The distance must be a sum of strides, where each stride is added or subtracted fewer times than the size of its
    dimension.

    Args:
        steps: stride and size of each dimension, the strides descending.
        distance: the distance in elements.
    """
    distance = abs(distance)
    if distance == 0 or not steps or steps[0][0] == 0:
        return distance == 0
    (stride, size), smaller = steps[0], steps[1:]
    rest = _reach(smaller)
    fewest, most = max(-((rest - distance) // stride), 1 - size), min((distance + rest) // stride, size - 1)
    return any(_leads(smaller, distance - count * stride) for count in range(fewest, most + 1))


@lru_cache(maxsize=_MOST_SHAPES)
def has_repeats(shape: Shape, strides: Shape) -> bool:
    """Return whether two indices of a layout lead to the same element, as with a stride of 0."""
    if 0 in shape:
        return False
    steps = sorted(((abs(stride), size) for size, stride in zip(shape, strides, strict=True) if size > 1), reverse=True)
    for place, (stride, size) in enumerate(steps):
        smaller = steps[place + 1 :]
        if stride == 0:
            return True
        farthest = min(size - 1, _reach(smaller) // stride)
        if any(_leads(smaller, count * stride) for count in range(1, farthest + 1)):
            return True
    return False


def reshape_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """Return the strides with which ``new_shape`` addresses the same elements in the same order; None if impossible.

    Dimensions of the old and the new shape are matched in groups of equal size. Within a group the old dimensions must
    be dense relative to each other, because the new dimensions split the whole group.
    """
    if prod(shape) != prod(new_shape):
        return None
    if 0 in shape:
        return row_major_strides(new_shape)
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    new_strides: list[int] = []
    position = 0
    group_size, group_stride = 1, 1  # elements of the group not yet consumed, and the stride of its last dimension
    for size in new_shape:
        if size == 1:
            new_strides.append(group_size * group_stride if group_size > 1 else 1)
            continue
        while group_size % size or group_size < size:
            # There is a next one: both shapes have equally many elements.
            next_size, next_stride = old[position]
            position += 1
            if group_size > 1 and group_stride != next_size * next_stride:
                return None
            group_size *= next_size
            group_stride = next_stride
        group_size //= size
        new_strides.append(group_size * group_stride)
    return tuple(new_strides)
