# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replay: a plan, together with the value that its launch returns to the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..launch.arguments import is_torch, note_written, to_torch
from ..launch.containers import map_leaves
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from .errors import Unplannable
from .ghosts import ghost_of
from .plan import Plan
from .stream import Stream, views_in

Arrays = list[npt.NDArray[Any]]


class _Left(NamedTuple):
    """The arrays after a replayed launch, of which the returned value is made.

    Attributes:
        arrays: the argument arrays, followed by the arrays of the tensors that the plan returns.
        originals: the arguments that are arrays, as the caller passed them.
    """

    arrays: Arrays
    originals: Sequence[Any]


_Result = Callable[[_Left], Any]


class Replay:
    """A plan, and the value that its launch returns.

    Args:
        stream: a recorded launch.
        originals: the arguments of that launch that are arrays, as the caller passed them.

    Raises:
        Unplannable: if no plan can be made.
    """

    def __init__(self, stream: Stream, originals: Sequence[Any]) -> None:
        if any(view.dtype.is_packed for view in views_in(stream.result)):
            raise Unplannable("it returns a tensor of a packed type")
        self.plan = Plan(stream, len(originals))
        as_torch = any(map(is_torch, originals))
        places = {ghost.number: len(originals) + place for place, ghost in enumerate(self.plan.returned)}
        self._result = _result_of(
            stream.result, lambda view: _tensor(view, places.get(view.storage.number), as_torch=as_torch)
        )

    def run(self, arrays: Arrays, originals: Sequence[Any], *, waits: bool = False) -> Any:
        """Run the plan on other arguments of the same shapes, and return what the kernel returns for them.

        Args:
            arrays: the argument arrays; those that the kernel writes are written.
            originals: the same arguments, as the caller passed them.
            waits: whether to wait for a launch that is replayed in another thread.

        Raises:
            ReplayFailed: if the launch has to run instruction by instruction.
        """
        fresh = self.plan.run(arrays, waits=waits)
        note_written(originals[number] for number in self.plan.written)
        return self._result(_Left([*arrays, *fresh], originals))


def _result_of(value: Any, tensor: Callable[[View], _Result]) -> _Result:
    """Return a function that makes the value that a launch returns; ``tensor`` gives such a function for a tensor."""
    if isinstance(value, NkiTensor):
        return tensor(value)
    if type(value) in (tuple, list):
        kind, items = type(value), [_result_of(item, tensor) for item in value]
        return lambda left: kind([item(left) for item in items])
    if not views_in(value):
        return lambda left: value
    return lambda left: map_leaves(value, "", lambda leaf, _: _result_of(leaf, tensor)(left))


def _tensor(view: View, place: int | None, *, as_torch: bool) -> _Result:
    """Return a function that makes a returned tensor: an array of the launch, its argument itself, or a view of one.

    Args:
        view: the tensor that the recorded launch returned.
        place: the number of the array that it is a view of; None for an argument.
        as_torch: whether to make a tensor of PyTorch.
    """
    ghost, dtype = ghost_of(view), view.dtype
    is_all = view.covers_storage() and view.shape == ghost.shape and dtype == ghost.dtype
    if place is None and is_all:
        argument = ghost.label[1]
        return lambda left: left.originals[argument]
    source = ghost.label[1] if place is None else place
    numpy_type = ghost.numpy_type_of(dtype)
    offset, strides = view.offset * numpy_type.itemsize, [stride * numpy_type.itemsize for stride in view.strides]

    def array_of(left: _Left) -> Any:
        array = left.arrays[source]
        if not is_all:
            array = np.ndarray(view.shape, numpy_type, array, offset, strides)
        return to_torch(array, dtype) if as_torch else array

    return array_of
