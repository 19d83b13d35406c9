# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What ``sendrecv`` and ``sendrecv_compute`` have in common: the two cores of a launch hand each other data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ...machine.call import Call
from ...tensors.tensor import NkiTensor
from ...terms.errors import NkiValidationError
from ...terms.integers import is_integer

_CORES = 2


@dataclass(frozen=True)
class Parcel:
    """What a core hands to the other one.

    Attributes:
        core: its number.
        src: the tensor that is sent.
        how: the parameter on which both must agree besides, as its name and its value.
        values: those of ``src`` as they were; None where there are none.
        arrived: what its observers bring.
    """

    core: int
    src: NkiTensor
    how: tuple[str, str]
    values: npt.NDArray[Any] | None
    arrived: list[Any]


def check_ranks(call: Call, send_to_rank: Any, recv_from_rank: Any) -> None:
    """Require a launch on two cores, of which the other one is named twice.

    Raises:
        NkiValidationError: naming the parameter.
    """
    other = 1 - call.core.number
    if call.core.launch.cores != _CORES:
        raise NkiValidationError("needs a launch on two cores: kernel[2](...)")
    for name, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if not is_integer(rank) or rank != other:
            raise NkiValidationError(f"{name} must be the other core, {other} on core {1 - other}, got {rank!r}")


def check_alike(src: NkiTensor, dst: NkiTensor) -> None:
    """Require one shape and type of what a core sends and of where it receives.

    Raises:
        NkiValidationError: naming both.
    """
    if (src.shape, src.dtype) != (dst.shape, dst.dtype):
        raise NkiValidationError(f"operands 'src' and 'dst' must have one shape and type, got {src} and {dst}")


def exchange(call: Call, place: str, src: NkiTensor, how: tuple[str, str]) -> Parcel:
    """Meet the other core at ``place`` and give it the values of ``src``; what it brought.

    Raises:
        BarrierError: if the other core ends without coming, or waits elsewhere.
        NkiValidationError: if the two sides do not fit; the message is the same on both cores.
    """
    call.core.meetings += 1
    arrived = call.core.observers.arrive(call)
    values = None if src.storage.is_abstract else src.array.copy()
    call.core.loads.settle()  # what they come from may be the other core's to change from here on
    own = Parcel(call.core.number, src, how, values, arrived)
    received: Parcel
    (received,) = call.core.launch.barrier.meet(place, own)
    _check_agreement(*sorted((own, received), key=lambda parcel: parcel.core))
    call.core.observers.meet(call, received.arrived)
    return received


def arrived_values(received: Parcel) -> npt.NDArray[Any]:
    """What the other core has sent.

    Raises:
        ValuesWanted: if that was left out there.
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
