# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments of a launch that share memory: views of one array, overlapping slices, tensors of one torch storage.

:func:`sharing` finds arrays that share memory. :func:`join_overlapping` handles arguments that share memory
(:class:`ArrayArgument`) in two ways:

- A launch uses contiguous arguments in place. A write to one of them is also a write to the others, so they get one
  allocation (``Storage.allocation``), in which races of two cores are found.
- A launch copies other arguments. A write to a copied argument does not reach the others, nor a write to them the copy.
  A watcher raises an error for an access that would return an outdated value; without writes, all may be read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..machine.observer import Observer, Observers, Watcher
from ..memory.storage import Storage, may_share
from ..tensors.view import View
from ..terms.errors import NkiValidationError
from ..terms.layout import has_repeats

# Of so few arrays each pair is compared at first: most share no memory.
_FEW = 8

Array = npt.NDArray[Any]


class ArrayArgument(NamedTuple):
    """An array argument of a launch, with the storage that represents the array in the kernel.

    Attributes:
        array: the caller's array.
        storage: the storage that represents the array.
        is_copy: whether the storage has memory of its own.
    """

    array: Array
    storage: Storage
    is_copy: bool


def _bounds(array: Array) -> tuple[int, int]:
    """Return the address of the first byte of an array, and the address of the byte after its last one."""
    low: int = array.__array_interface__["data"][0]
    high = low + array.itemsize
    for size, stride in zip(array.shape, array.strides, strict=True):
        reach = (size - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def sharing(arrays: Sequence[Array]) -> list[tuple[int, int]]:
    """Return the pairs of arrays that share memory, as pairs of indices.

    The first array of a pair begins at the lower address; the second arrays of the pairs are in the order of addresses.
    """
    if len(arrays) < 2 or all([array.flags.owndata for array in arrays]):
        return []
    if len(arrays) <= _FEW and not any([np.may_share_memory(*pair) for pair in combinations(arrays, 2)]):
        return []
    bounds = [_bounds(array) for array in arrays]
    pairs: list[tuple[int, int]] = []
    reaching: list[int] = []  # arrays that begin before the current one, and end after its start
    for index in sorted(range(len(arrays)), key=bounds.__getitem__):
        reaching = [other for other in reaching if bounds[other][1] > bounds[index][0]]
        pairs += [(other, index) for other in reaching if may_share(arrays[other], arrays[index])]
        reaching.append(index)
    return pairs


class _Shared:
    """An argument that shares memory with another one, with a record of the cores that have accessed it.

    Attributes:
        storage: the storage of the argument.
        partners: the numbers of the arguments that share memory in the caller with this one, but not in the launch,
            because one of the two was copied; its own number if several of its own elements share memory.
        users: the cores that have accessed the argument.
        is_written: whether a core has written it.
    """

    def __init__(self, storage: Storage, partners: Iterable[int]) -> None:
        self.storage = storage
        self.partners = sorted(partners)
        self.users: set[int] = set()
        self.is_written = False


class _CopyObserver(Observer):
    """The observer that reports the accesses of one core to a :class:`_CopyWatch`."""

    def __init__(self, watch: _CopyWatch, core: int) -> None:
        self._watch = watch
        self._core = core

    def moved(self, view: View, is_write: bool, rows: npt.NDArray[np.int64] | None, values: Array | None) -> None:
        self._watch.note(self._core, view, is_write)


def _refuse(one: Storage, other: Storage) -> None:
    if one is other:
        raise NkiValidationError(
            f"argument {one.name!r} holds an element of memory more than once, as an expanded tensor does, and cannot "
            f"be written: pass a contiguous copy"
        )
    names = sorted((one.name, other.name))
    raise NkiValidationError(
        f"arguments {names[0]!r} and {names[1]!r} share memory, one of them is written, and the launch holds a copy of "
        f"one, which misses that, because it is not contiguous or is kept in another type: pass contiguous arrays, or "
        f"arrays that share no memory"
    )


class _CopyWatch(Watcher):
    """The watcher for arguments that share memory in the caller but not in the launch, because at least one was copied.

    It reports an access that would miss a write, or a write that another argument would miss.
    """

    def __init__(self, shared: dict[int, _Shared]) -> None:
        self._shared = shared
        self._numbers = {item.storage.number: number for number, item in shared.items()}
        self._lock = threading.Lock()

    def watch(self, number: int, observers: Observers) -> Observer:
        return _CopyObserver(self, number)

    def conclude(self, has_ended: bool) -> None:
        return

    def note(self, core: int, view: View, is_write: bool) -> None:
        """Record that core number ``core`` reads or writes ``view``.

        Raises:
            NkiValidationError: the access would miss a write, or is a write that another argument would miss. The order
                of the two cores is ignored: a core may write an argument only if the other core does not access its
                partners.
        """
        number = self._numbers.get(view.storage.number)
        if number is None:
            return
        own = self._shared[number]
        with self._lock:
            own.users.add(core)
            own.is_written |= is_write
            for partner in own.partners:
                other = self._shared[partner]
                if other.is_written or (is_write and other.users - {core}):
                    _refuse(own.storage, other.storage)


def join_overlapping(arguments: Sequence[ArrayArgument]) -> Watcher | None:
    """Put arguments that share memory into one allocation.

    Returns:
        The watcher, if a copied argument shares memory with another one, or some of its own elements share memory; else
        None.
    """
    partners: dict[int, set[int]] = {}
    for first, second in sharing([argument.array for argument in arguments]):
        one, other = arguments[first], arguments[second]
        if one.is_copy or other.is_copy:
            partners.setdefault(first, set()).add(second)
            partners.setdefault(second, set()).add(first)
        else:
            other.storage.allocation = one.storage.allocation
            other.storage.start = one.storage.start + _bounds(other.array)[0] - _bounds(one.array)[0]
    for number, (array, _, is_copy) in enumerate(arguments):
        # Byte by byte: elements may overlap in part, too.
        if is_copy and has_repeats((*array.shape, array.itemsize), (*array.strides, 1)):
            partners.setdefault(number, set()).add(number)
    if not partners:
        return None
    return _CopyWatch({number: _Shared(arguments[number].storage, others) for number, others in partners.items()})
