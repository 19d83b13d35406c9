"""Index expressions: ``t[...]`` resolved to a start, a count and a step for each dimension."""

from __future__ import annotations

import builtins
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import NkiValidationError, OutOfRangeError

if TYPE_CHECKING:
    from .tensor import NkiTensor


class DynamicSlice(NamedTuple):
    """``nl.ds(start, size)``: the elements ``start`` to ``start + size`` (exclusive)."""

    start: int
    size: int


class Picked(NamedTuple):
    """What an index takes of one dimension."""

    start: int
    length: int
    step: int
    is_integer: bool


def resolve_key(tensor: NkiTensor, key: Any) -> list[Picked]:
    """What ``tensor[key]`` takes of each dimension of ``tensor``.

    Raises:
        OutOfRangeError: if an index leaves its dimension.
        NkiValidationError: if there are too many indices or one is of a kind that NKI does not document.
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


def _pick(tensor: NkiTensor, dim: int, item: Any) -> Picked:
    size = tensor.shape[dim]
    if isinstance(item, builtins.slice):
        return _pick_slice(tensor, dim, item)
    if isinstance(item, DynamicSlice):
        if not 0 <= item.start <= item.start + item.size <= size:
            raise OutOfRangeError(f"nl.ds({item.start}, {item.size}) leaves dimension {dim} of {tensor}")
        return Picked(item.start, item.size, 1, False)
    try:
        index = operator.index(item)
    except TypeError:
        raise NkiValidationError(
            f"{tensor} can be indexed with integers, slices, ... and nl.ds, got {item!r} for dimension {dim}"
        ) from None
    if not -size <= index < size:
        raise OutOfRangeError(f"index {index} is out of range for dimension {dim} of {tensor}")
    return Picked(index % size, 1, 1, True)


def _pick_slice(tensor: NkiTensor, dim: int, item: builtins.slice) -> Picked:
    """A slice. Unlike Python's, one that leaves the tensor is an error: the device would read a neighbour."""
    size = tensor.shape[dim]
    step = 1 if item.step is None else operator.index(item.step)
    start = 0 if item.start is None else operator.index(item.start)
    stop = size if item.stop is None else operator.index(item.stop)
    start += size if start < 0 else 0
    stop += size if stop < 0 else 0
    if step < 1:
        raise NkiValidationError(f"a slice needs a step >= 1, got {step} for dimension {dim} of {tensor}")
    if not (0 <= start <= size and stop <= size):
        raise OutOfRangeError(f"slice [{start}:{stop}:{step}] leaves dimension {dim} of {tensor}")
    return Picked(start, max(0, -(-(stop - start) // step)), step, False)
