"""What the model of time needs to know of a tensor. Tensors that are alike to it share one description.

A kernel makes the same few views again and again: each is looked up by its layout, and worked out when it is new.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..memory import HBM, ON_CHIP, MemoryRegion
from ..storage import Storage
from ..tensor import NkiTensor
from .regions import Part, part_of
from .transfers import Side, side_of
from .uses import HbmUses, TileUses

# A kernel that makes more views of a storage than these is very long: it starts anew.
_KEPT = 16384


class Form:
    """Shape, strides, type and region of a tensor: what the cost of an instruction can depend on.

    Equal ones are one object: see :func:`form_of`.
    """

    __slots__ = ("dtype", "is_in_hbm", "nbytes", "region", "shape", "strides")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, region: MemoryRegion) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.region = region
        self.nbytes = prod(shape) * dtype.itemsize
        self.is_in_hbm = region in HBM


@lru_cache(maxsize=65536)
def form_of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, region: MemoryRegion) -> Form:
    """The one object for these."""
    return Form(shape, strides, dtype, region)


class Footprint:
    """A form at its place in a storage.

    Attributes:
        form: without the place.
        part: the elements; None if there are none.
    """

    __slots__ = ("_offset", "_pitch", "_side", "form", "part")

    def __init__(self, tensor: NkiTensor) -> None:
        self.form = form_of(tensor.shape, tensor.strides, tensor.dtype, tensor.buffer)
        self.part: Part | None = part_of(tensor)
        self._offset = tensor.offset
        self._pitch = max(1, tensor.storage.partition_bytes // tensor.storage.width_of(tensor.dtype))
        self._side: Side | None = None

    @property
    def side(self) -> Side:
        """What the time of a transfer depends on."""
        if self._side is None:
            form, first, step = self.form, 0, 0
            if form.region in ON_CHIP:
                first, step = self._offset // self._pitch, form.strides[0] // self._pitch
            self._side = side_of(form.shape, form.strides, form.dtype.itemsize, form.region, first, step)
        return self._side


class Views:
    """The footprints of the views of storages that are alike."""

    __slots__ = ("_dtype", "_known", "_whole")

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self._whole: Footprint | None = None
        self._known: dict[Hashable, Footprint] = {}

    def footprint(self, tensor: NkiTensor) -> Footprint:
        """What is known of a view of such a storage."""
        if tensor.is_whole:
            if self._whole is None:
                self._whole = Footprint(tensor)
            return self._whole
        key: Hashable = tensor.layout
        indirect = tensor._indirect
        if indirect is not None:
            key = tensor.layout, tensor.dtype, indirect.kind, indirect.stride, indirect.limit
        elif tensor.dtype is not self._dtype:
            key = tensor.layout, tensor.dtype
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[key] = Footprint(tensor)
        return found


@lru_cache(maxsize=256)
def _views_of(shape: tuple[int, ...], dtype: DType, held_as: np.dtype[Any], region: MemoryRegion) -> Views:
    return Views(dtype)


class Tracked(NamedTuple):
    """What the model knows of a storage.

    Attributes:
        uses: the accesses to it, by part.
        views: the footprints of its views.
        name: what it is called; after its shape and type if it has no name.
    """

    uses: TileUses | HbmUses
    views: Views
    name: str


def tracked(storage: Storage) -> Tracked:
    """A storage of which nothing was used yet."""
    views = _views_of(storage.shape, storage.dtype, storage.numpy_dtype, storage.region)
    uses = TileUses() if storage.region in ON_CHIP else HbmUses()
    return Tracked(uses, views, storage.name or f"{list(storage.shape)} {storage.dtype}")
