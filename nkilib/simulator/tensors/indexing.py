# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Index expressions: ``t[...]`` resolved to a start, a count and a step for each dimension."""

from __future__ import annotations

import builtins
import operator
from typing import Any, NamedTuple

from ..terms.errors import NkiValidationError, OutOfRangeError
from .scalars import DeviceInteger
from .view import View


class DynamicSlice(NamedTuple):
    """``nl.ds(start, size)``: the elements ``start`` to ``start + size`` (exclusive).

    ``start`` may be a register or an ``NkiScalar``.
    """

    start: int | DeviceInteger
    size: int


class Picked(NamedTuple):
    """The part of one dimension that an index selects; a register or a scalar is added to ``start``."""

    start: int
    length: int
    step: int = 1
    is_integer: bool = False
    register: DeviceInteger | None = None


def resolve_key(tensor: View, key: Any) -> list[Picked]:
    """Return the part of each dimension of ``tensor`` that ``tensor[key]`` selects.

    Raises:
        OutOfRangeError: if an index leaves its dimension.
        NkiValidationError: if there are too many indices or one has a type that NKI does not document.
    """
    keys = list(key) if isinstance(key, tuple) and not isinstance(key, DynamicSlice) else [key]
    ellipses = sum(item is Ellipsis for item in keys)
    if ellipses > 1 or len(keys) - ellipses > tensor.ndim:
        raise NkiValidationError(f"{tensor} has {tensor.ndim} dimensions, got the index {key!r}")
    everything = slice(None)
    at = next((position for position, item in enumerate(keys) if item is Ellipsis), len(keys))
    fill = [everything] * (tensor.ndim - len(keys) + ellipses)
    keys[at : at + ellipses] = fill
    return [_pick(tensor, dim, item) for dim, item in enumerate(keys)]


def _pick(tensor: View, dim: int, item: Any) -> Picked:
    size = tensor.shape[dim]
    if isinstance(item, builtins.slice):
        return _pick_slice(tensor, dim, item)
    if isinstance(item, DeviceInteger):
        return Picked(0, 1, is_integer=True, register=item)
    if isinstance(item, DynamicSlice):
        if isinstance(item.start, DeviceInteger):
            return _pick_from_register(tensor, dim, item.start, _integer(tensor, dim, item.size, item))
        start, length = (_integer(tensor, dim, bound, item) for bound in item)
        if not 0 <= start <= start + length <= size:
            raise OutOfRangeError(f"nl.ds({start}, {length}) leaves dimension {dim} of {tensor}")
        return Picked(start, length)
    index = _integer(tensor, dim, item, item)
    if not -size <= index < size:
        raise OutOfRangeError(f"index {index} is out of range for dimension {dim} of {tensor}")
    return Picked(index % size, 1, is_integer=True)


def _pick_from_register(tensor: View, dim: int, start: DeviceInteger, length: int) -> Picked:
    if not 0 < length <= tensor.shape[dim]:
        raise OutOfRangeError(f"nl.ds({start}, {length}) does not fit dimension {dim} of {tensor}")
    return Picked(0, length, register=start)


def _integer(tensor: View, dim: int, value: Any, item: Any) -> int:
    """Return ``value``, a part of the index ``item``, as an int.

    A boolean is an error, because numpy would take it for a mask.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        if isinstance(value, DeviceInteger):
            remedy = "; use nl.ds(register, size)"
        else:
            remedy = f"; use select({dim}, tensor)" if hasattr(value, "buffer") else ""
        raise NkiValidationError(
            f"{tensor} can be indexed with integers, slices, ... and nl.ds, got {item!r} for dimension {dim}{remedy}"
        ) from None


def _pick_slice(tensor: View, dim: int, item: builtins.slice) -> Picked:
    """Resolve a slice. Unlike in Python, one that leaves the tensor is an error: the device would read a neighbour."""
    size = tensor.shape[dim]
    step = 1 if item.step is None else _integer(tensor, dim, item.step, item)
    start = 0 if item.start is None else _integer(tensor, dim, item.start, item)
    stop = size if item.stop is None else _integer(tensor, dim, item.stop, item)
    start += size if start < 0 else 0
    stop += size if stop < 0 else 0
    if step < 1:
        raise NkiValidationError(f"a slice needs a step >= 1, got {step} for dimension {dim} of {tensor}")
    if not (0 <= start <= size and 0 <= stop <= size):
        parts = (item.start, item.stop) if item.step is None else (item.start, item.stop, item.step)
        text = ":".join("" if part is None else str(part) for part in parts)
        raise OutOfRangeError(f"slice [{text}] leaves dimension {dim} of {tensor}")
    return Picked(start, max(0, -(-(stop - start) // step)), step)
