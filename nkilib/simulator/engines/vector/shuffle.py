# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nc_stream_shuffle``: the instruction of the Vector engine that moves data between the partitions of a quadrant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.checks import same_elements
from ...isa.definition import Operand, output
from ...machine.issue import Call, check_written, instruction
from ...tensors.tensor import NkiTensor
from ...tensors.view import allowed_starts, possible_starts
from ...terms.dtypes import MOVABLE
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError, OutOfRangeError
from ...timing import costs
from ..actions import act

_QUADRANT = 32
# The element of a mask that leaves its partition of dst as it is.
_UNCHANGED = 255


def _check_starts(dst: NkiTensor, src: NkiTensor) -> None:
    """Check the partitions at which both tensors start.

    The number of partitions of the larger tensor is rounded up to a multiple of 32. An access to that number of
    partitions must be allowed to start there.
    """
    active = -(-max(dst.shape[0], src.shape[0]) // _QUADRANT) * _QUADRANT
    allowed = allowed_starts(active)
    for name, tensor in (("dst", dst), ("src", src)):
        starts = possible_starts(tensor)
        if set(starts).isdisjoint(allowed):
            raise NkiValidationError(
                f"operand {name!r}: {active} partitions are active, and an access to as many must start at partition "
                f"{' or '.join(map(str, allowed))}, got a start at {' or '.join(map(str, starts))} of {tensor}"
            )


def _checked_mask(shuffle_mask: Any) -> npt.NDArray[np.int64]:
    is_list = isinstance(shuffle_mask, list | tuple) and len(shuffle_mask) == _QUADRANT
    if not is_list or not all(isinstance(item, int | np.integer) for item in shuffle_mask):
        raise NkiValidationError(f"shuffle_mask must be a list of {_QUADRANT} integers, got {shuffle_mask!r}")
    for position, item in enumerate(shuffle_mask):
        if item != _UNCHANGED and not 0 <= item < _QUADRANT:
            raise NkiValidationError(
                f"shuffle_mask[{position}] must be a partition of the quadrant, 0 to {_QUADRANT - 1}, or {_UNCHANGED} "
                f"to leave partition {position} as it is, got {item}"
            )
    return np.array(shuffle_mask, np.int64)


def _mark_received(dst: NkiTensor, received: npt.NDArray[np.int64]) -> None:
    for run in np.split(received, np.flatnonzero(np.diff(received) > 1) + 1):
        if run.size:
            dst[int(run[0]) : int(run[-1]) + 1].mark_written()


@instruction(
    operands=(
        output("dst", dtypes=MOVABLE, marks_itself=True),
        Operand("src", dtypes=MOVABLE, is_accessed=False),
    ),
    on=(Engine.vector,),
    cost=costs.assumed("dst"),
)
def nc_stream_shuffle(call: Call, dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int]) -> None:
    """Copy ``dst[32 * q + i] = src[32 * q + shuffle_mask[i]]`` for every partition of ``dst``, in quadrants q of 32.

    A mask element of 255 leaves its partitions unchanged. ``src`` and ``dst`` may overlap, and may have different
    numbers of partitions if ``src`` has every partition that is copied. Bits are moved, nothing is cast.

    Raises:
        OutOfRangeError: ``src`` lacks a partition that is to be copied.
    """
    if dst.dtype != src.dtype:
        raise NkiValidationError(f"operand 'dst' must have the type of 'src': nothing is cast; got {dst} and {src}")
    same_elements({"dst": dst, "src": src}, "dst", "src")
    _check_starts(dst, src)
    mask = _checked_mask(shuffle_mask)
    partitions = np.arange(dst.shape[0])
    chosen = mask[partitions % _QUADRANT]
    received = partitions[chosen != _UNCHANGED]
    sources = received // _QUADRANT * _QUADRANT + chosen[received]
    if (sources >= src.shape[0]).any():
        partition = received[sources >= src.shape[0]][0]
        raise OutOfRangeError(
            f"shuffle_mask[{partition % _QUADRANT}] is {chosen[partition]}: partition {partition} of 'dst' would "
            f"receive partition {sources[received == partition][0]} of {src}"
        )
    if received.size < partitions.size:
        call.keep(dst)
    is_read = np.zeros(src.shape, np.bool_)
    is_read[sources] = True
    check_written(call.core, "src", src, is_read)
    shape = (received.size, *dst.shape[1:])

    def shuffle(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        into[received] = elements[sources].reshape(shape)

    is_whole = received.size == partitions.size
    act(call.core, shuffle, writes=(dst,) if is_whole else (), updates=() if is_whole else (dst,), reads=(src,))
    _mark_received(dst, received)
