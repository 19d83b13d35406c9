# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The properties of a tensor that the model of time needs. Tensors with equal properties share one description.

A kernel makes the same few views again and again: each description is looked up by the view's layout, and computed only
for a new one.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ..memory.storage import Storage
from ..terms.dtypes import DType
from ..terms.layout import Layout, is_dense
from ..terms.regions import HBM, ON_CHIP, MemoryRegion
from .parts import Part, Reach, part_of
from .transfers import Side, side_of
from .uses import HbmUses, TileUses

# A kernel that makes more views of a storage than this is very long: the cache is cleared.
_KEPT = 16384


class Form:
    """Shape, strides, type and region of a tensor: the properties that the cost of an instruction can depend on.

    Equal forms are one object: see :func:`form_of`.

    Attributes:
        free_size: the number of elements of a partition, or of a row.
        nbytes: the bytes of its elements, on the device.
    """

    __slots__ = ("buffer", "dtype", "free_size", "is_in_hbm", "nbytes", "shape", "strides")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, buffer: MemoryRegion) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.buffer = buffer
        self.free_size = prod(shape[1:])
        self.nbytes = prod(shape) * dtype.itemsize
        self.is_in_hbm = buffer in HBM

    @property
    def is_on_chip(self) -> bool:
        return self.buffer in ON_CHIP

    def is_contiguous(self) -> bool:
        """Tell whether the elements are contiguous, on chip within each partition; see :meth:`View.is_contiguous`."""
        first = 1 if self.is_on_chip else 0
        return is_dense(self.shape[first:], self.strides[first:])

    def has_runs(self) -> bool:
        """Tell whether the elements are contiguous along the innermost free dimension that has several elements."""
        free = zip(reversed(self.shape[1:]), reversed(self.strides[1:]), strict=True)
        return next((stride == 1 for size, stride in free if size > 1), True)


@lru_cache(maxsize=65536)
def form_of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, buffer: MemoryRegion) -> Form:
    """Return the :class:`Form` with these properties, one object for all calls."""
    return Form(shape, strides, dtype, buffer)


class Footprint:
    """The form of a view and the elements of its storage that it occupies.

    Attributes:
        form: the shape, strides, type and region of the view.
        part: the elements that it occupies; None if it has none.
    """

    __slots__ = ("_offset", "_pitch", "_side", "form", "part")

    def __init__(self, form: Form, part: Part | None, offset: int, pitch: int) -> None:
        self.form = form
        self.part = part
        self._offset = offset
        self._pitch = pitch
        self._side: Side | None = None

    @property
    def side(self) -> Side:
        """The properties that the time of a transfer from or to the view depends on."""
        if self._side is None:
            form, first, step = self.form, 0, 0
            if form.is_on_chip:
                first, step = self._offset // self._pitch, form.strides[0] // self._pitch
            self._side = side_of(form.shape, form.strides, form.dtype.itemsize, form.buffer, first, step)
        return self._side


class Views:
    """The footprints of the views of all storages of one shape, type, type in the simulator's memory, and region."""

    __slots__ = ("_dtype", "_held_as", "_known", "_shape", "region")

    def __init__(self, shape: tuple[int, ...], dtype: DType, held_as: np.dtype[Any], region: MemoryRegion) -> None:
        self._shape = shape
        self._dtype = dtype
        self._held_as = held_as
        self.region = region
        self._known: dict[Hashable, Footprint] = {}

    @property
    def partitions(self) -> int:
        return self._shape[0]

    @property
    def bytes_each(self) -> int:
        """The bytes that the storage takes in a partition."""
        return prod(self._shape[1:]) * self._dtype.itemsize

    @property
    def elements_each(self) -> int:
        """The number of elements that the storage has in a partition."""
        return prod(self._shape[1:])

    def moved_to(self, region: MemoryRegion) -> Views:
        """Return the views of a storage in another region that is equal in everything else."""
        return _views_of(self._shape, self._dtype, self._held_as, region)

    def footprint(self, layout: Layout, dtype: DType, reach: Reach | None) -> Footprint:
        """Return the footprint of a view of such a storage; ``reach`` is set if its address is read at run time."""
        key: Hashable = layout if reach is None and dtype is self._dtype else (layout, dtype, reach)
        footprint = self._known.get(key)
        if footprint is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            footprint = self._known[key] = self._made(layout, dtype, reach)
        return footprint

    def _made(self, layout: Layout, dtype: DType, reach: Reach | None) -> Footprint:
        width = (self._held_as if dtype == self._dtype else dtype.numpy).itemsize
        form = form_of(layout.shape, layout.strides, dtype, self.region)
        part = part_of(layout, width, reach, prod(self._shape) * self._held_as.itemsize // width)
        pitch = max(1, prod(self._shape[1:]) * self._held_as.itemsize // width)
        return Footprint(form, part, layout.offset, pitch)


_views_of = lru_cache(maxsize=256)(Views)


class Tracked:
    """The record that the model of time keeps of a storage.

    Attributes:
        uses: the accesses to it, by part.
        views: the footprints of its views.
        name: the name of a tensor in HBM, or its shape and type if it has no name; empty for a tensor on chip.
        nbytes: the bytes of the whole storage, on the device.
        contents: a note that a pass keeps about the values in it; None if there is none.
        has_place: whether it has its place in PSUM, or needs none.
    """

    __slots__ = ("contents", "has_place", "name", "nbytes", "uses", "views")

    def __init__(self, uses: TileUses | HbmUses, views: Views, name: str, nbytes: int) -> None:
        self.uses = uses
        self.views = views
        self.name = name
        self.nbytes = nbytes
        self.contents: object | None = None
        self.has_place = False

    def share(self, other: Tracked) -> None:
        """Share the memory of ``other`` on the device: an access to one of them also waits for those to the other."""
        self.uses = other.uses
        self.has_place = True


def tracked(storage: Storage) -> Tracked:
    """Return a new record for a storage."""
    views = _views_of(storage.shape, storage.dtype, storage.numpy_dtype, storage.region)
    nbytes = prod(storage.shape) * storage.dtype.itemsize
    if storage.region in ON_CHIP:
        known = Tracked(TileUses(storage.number), views, "", nbytes)
        known.has_place = storage.address is not None  # the kernel has placed it, and orders its uses itself
        return known
    name = storage.name or f"{list(storage.shape)} {storage.dtype}"
    known = Tracked(HbmUses(storage.number), views, name, nbytes)
    known.has_place = True
    return known
