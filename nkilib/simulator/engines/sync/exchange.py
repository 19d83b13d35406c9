# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The exchange of data between the two cores of a launch, common to ``sendrecv`` and ``sendrecv_compute``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ...machine.call import Call
from ...machine.overlapping_copies import check_copy
from ...tensors.tensor import NkiTensor
from ...terms.errors import NkiValidationError
from ...terms.integers import is_integer

_CORES = 2


@dataclass(frozen=True)
class Parcel:
    """The data that a core hands to the other core in an exchange.

    Attributes:
        core: the number of the sending core.
        src: the tensor that is sent.
        how: the name and value of a further parameter on which both cores must agree.
        values: a copy of the values of ``src``; None where there are none.
        arrived: the data that the observers of the sending core (such as the model of time) hand to those of the
            receiving core.
    """

    core: int
    src: NkiTensor
    how: tuple[str, str]
    values: npt.NDArray[Any] | None
    arrived: list[Any]


def check_ranks(call: Call, send_to_rank: Any, recv_from_rank: Any) -> None:
    """Check that the launch is on two cores, and that ``send_to_rank`` and ``recv_from_rank`` name the other core.

    Raises:
        NkiValidationError: naming the parameter.
    """
    other = 1 - call.core.number
    if call.core.launch.cores != _CORES:
        raise NkiValidationError("needs a launch on two cores: kernel[2](...)")
    for name, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if not is_integer(rank) or rank != other:
            raise NkiValidationError(f"{name} must be the other core, {other} on core {1 - other}, got {rank!r}")


def check_pair(call: Call, src: NkiTensor, dst: NkiTensor) -> None:
    """Check the tensor that is sent and the tensor that receives: they have one shape and type, and do not overlap.

    Raises:
        NkiValidationError: naming both.
        OverlappingCopyError: at the level ``"error"`` of ``overlapping_copies``, if they overlap.
    """
    if (src.shape, src.dtype) != (dst.shape, dst.dtype):
        raise NkiValidationError(f"operands 'src' and 'dst' must have one shape and type, got {src} and {dst}")
    check_copy(call.core, dst, {"src": src}, None)


def exchange(call: Call, place: str, src: NkiTensor, how: tuple[str, str]) -> Parcel:
    """Synchronise with the other core at ``place``, send it the values of ``src``, and return the parcel that it sent.

    Args:
        call: the running instruction.
        place: the barrier at which both cores must arrive.
        src: the tensor that is sent.
        how: the name and value of another parameter on which both cores must agree.

    Raises:
        BarrierError: if the other core ends without reaching ``place``, or waits elsewhere.
        NkiValidationError: if shapes, types or ``how`` of the two sides differ; the message is the same on both cores.
    """
    call.core.meetings += 1
    arrived = call.core.observers.arrive(call)
    values = None if src.storage.is_abstract else src.array.copy()
    call.core.loads.settle()  # from here on the other core may change the memory that they come from
    own = Parcel(call.core.number, src, how, values, arrived)
    received: Parcel
    (received,) = call.core.launch.barrier.meet(place, own)
    _check_agreement(*sorted((own, received), key=lambda parcel: parcel.core))
    call.core.observers.meet(call, received.arrived)
    return received


def received_values(received: Parcel) -> npt.NDArray[Any]:
    """Return the values that the other core has sent.

    Raises:
        ValuesWanted: if that core has none, because the launch left them out.
    """
    received.src.storage.need_values(received.src)
    assert received.values is not None
    return received.values


def _check_agreement(first: Parcel, second: Parcel) -> None:
    sides = f"core 0 sends {first.src} and core 1 sends {second.src}"
    if (first.src.shape, first.src.dtype) != (second.src.shape, second.src.dtype):
        raise NkiValidationError(f"the cores must swap tiles of one shape and type: {sides}")
    if first.how != second.how:
        name, value = first.how
        raise NkiValidationError(f"the cores must name one {name}: core 0 gives {value} and core 1 {second.how[1]}")
