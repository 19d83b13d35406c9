# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operations with shares whose sizes are read at run time: all-gather-v and all-to-all-v, at once or in two steps.

Source: ``nki/api/nki/collectives/__init__.py``; for the two steps the later pages of ``all_gather_v_prepare``,
``all_to_all_v_prepare`` and ``all_to_all_v_trigger``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from ...isa.handle import NkiInstruction
from ...machine.call import Call
from ...machine.core import current_core
from ...machine.issue import instruction
from ...tensors.tensor import NkiTensor
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError, kernel_location
from .groups import ReplicaGroup
from .shares import GATHER, TO_ALL, Prepared, UncheckedTensors, prepare, run


class _Slot:
    """The operation of a core that is prepared and not triggered yet, of which there can be one at a time."""

    def __init__(self) -> None:
        self.prepared: Prepared | None = None
        self.handle: NkiInstruction | None = None
        self.place = ""
        self.is_checked_at_end = False


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_gather_v(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
) -> None:
    """Copy ``src[start:start + count]`` of each rank s to slot s of ``dst`` on every rank; ``dst`` has equal slots.

    The only tensors of ``srcs`` and ``dsts`` are flat buffers here. The operation needs ranks of two cores, in lists of
    four ranks. In the metadata, the first column of row 0 is the count and that of row 1 the start; row 2 receives the
    numbers of elements received unless ``recv_counts_known``.

    Raises:
        BarrierError: if another rank of the group reaches a different operation, or none.
    """
    unchecked = UncheckedTensors(srcs, dsts, metadata_tensor)
    run(call, prepare(call, GATHER, unchecked, replica_group, recv_counts_known, has_rdispls, priority))


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_to_all_v(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
) -> None:
    """Copy ``src[start[q]:start[q] + count[q]]`` of each rank to the q-th rank of the list, for every q.

    The elements from the s-th rank (a rank's own included) go to slot s of ``dst``, which has equal slots; with
    ``has_rdispls`` they start at the element that row 3 of the receiver's metadata gives for s. Row 0 of the metadata
    has the counts and row 1 the starts; row 2 receives the numbers of elements received unless ``recv_counts_known``.

    Raises:
        BarrierError: if another rank of the group reaches a different operation, or none.
    """
    unchecked = UncheckedTensors(srcs, dsts, metadata_tensor)
    run(call, prepare(call, TO_ALL, unchecked, replica_group, recv_counts_known, has_rdispls, priority))


def _with_handle(public: Callable[..., NkiInstruction]) -> Callable[..., NkiInstruction]:
    """Wrap the prepare of an operation so that its slot remembers the instruction that the trigger must be given."""

    def kept(*args: Any, **kwargs: Any) -> NkiInstruction:
        handle = public(*args, **kwargs)
        current_core(public.__name__).state(_Slot).handle = handle
        return handle

    update_wrapper(kept, public)
    return kept


@_with_handle
@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_gather_v_prepare(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
) -> None:
    """Read the metadata of an :func:`all_gather_v` that :func:`all_gather_v_trigger` then runs.

    Raises:
        NkiValidationError: if a prepared operation has not been triggered yet.
    """
    unchecked = UncheckedTensors(srcs, dsts, metadata_tensor)
    _keep(call, prepare(call, GATHER, unchecked, replica_group, recv_counts_known, has_rdispls, priority))


@_with_handle
@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_to_all_v_prepare(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
) -> None:
    """Read the metadata of an :func:`all_to_all_v` that :func:`all_to_all_v_trigger` then runs.

    Raises:
        NkiValidationError: if a prepared operation has not been triggered yet.
    """
    unchecked = UncheckedTensors(srcs, dsts, metadata_tensor)
    _keep(call, prepare(call, TO_ALL, unchecked, replica_group, recv_counts_known, has_rdispls, priority))


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_gather_v_trigger(call: Call, prepare_instr: NkiInstruction) -> None:
    """Run the :func:`all_gather_v` that ``prepare_instr`` prepared; it reads the source and writes the result.

    Raises:
        NkiValidationError: if ``prepare_instr`` did not prepare the waiting operation.
        BarrierError: if another rank of the group reaches a different operation, or none.
    """
    run(call, _take(call, GATHER, prepare_instr))


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_to_all_v_trigger(call: Call, prepare_instr: NkiInstruction) -> None:
    """Run the :func:`all_to_all_v` that ``prepare_instr`` prepared; it reads the source and writes the result.

    Raises:
        NkiValidationError: if ``prepare_instr`` did not prepare the waiting operation.
        BarrierError: if another rank of the group reaches a different operation, or none.
    """
    run(call, _take(call, TO_ALL, prepare_instr))


def _keep(call: Call, prepared: Prepared) -> None:
    slot = call.core.state(_Slot)
    if slot.prepared is not None:
        raise NkiValidationError(
            f"{slot.prepared.what} is prepared, at {slot.place}, and not triggered yet, and there is one slot; call "
            f"nki.collectives.{slot.prepared.what}_trigger first"
        )
    slot.prepared, slot.place = prepared, kernel_location()
    if not slot.is_checked_at_end:
        slot.is_checked_at_end = True
        call.core.at_end.append(lambda: _check_triggered(slot))


def _check_triggered(slot: _Slot) -> None:
    if slot.prepared is not None:
        what = slot.prepared.what
        raise NkiValidationError(
            f"{what}_prepare at {slot.place} needs one {what}_trigger; the kernel ended without it"
        )


def _take(call: Call, what: str, handle: Any) -> Prepared:
    slot = call.core.state(_Slot)
    prepared = slot.prepared
    if prepared is None or prepared.what != what or slot.handle is not handle:
        waiting = "nothing is prepared" if prepared is None else f"{slot.handle!r} is what is prepared"
        raise NkiValidationError(
            f"prepare_instr must be what nki.collectives.{what}_prepare returned, for one trigger each; got "
            f"{handle!r}, and {waiting}"
        )
    slot.prepared = slot.handle = None
    call.reads.append(prepared.src)
    call.keep(prepared.dst)
    return prepared
