# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operations that read the sizes of the data at run time: all-gather-v and all-to-all-v, in one call or in two steps.

- :func:`all_gather_v`, :func:`all_to_all_v`: in one call.
- :func:`all_gather_v_prepare` with :func:`all_gather_v_trigger`, :func:`all_to_all_v_prepare` with
  :func:`all_to_all_v_trigger`: in two steps.
- :func:`prepare` and :func:`run`: the two steps of both operations, with a :class:`Prepared` in between.

Tensors are treated as flat buffers, in row-major order. The *metadata* are the contents of the metadata tensor on a
rank. Column q is for the q-th rank of the list. Row 0 has the number of elements to send to this rank, row 1 the index
in the source of the first of them, row 2 the number of elements received from this rank, and row 3 the index in the
result of the first of them. All-gather-v reads rows 0 and 1 in column 0 only.

Source: ``nki/api/nki/collectives/__init__.py``; for the two steps the later pages of ``all_gather_v_prepare``,
``all_to_all_v_prepare`` and ``all_to_all_v_trigger``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.definition import NkiInstruction
from ...machine.core import Core, current_core
from ...machine.issue import Call, instruction
from ...machine.synchronisation import AgreedProperty
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import uint32
from ...terms.enums import HBM, Engine, MemoryRegion
from ...terms.errors import NkiValidationError, kernel_location
from ...terms.spec import DataNeeded
from ..dma_endpoints import read, write
from ..dma_instructions import check_priority
from .exchange import (
    Operation,
    belongs_to_rank,
    check_same_types,
    checked_tensors,
    perform,
)
from .groups import RankPosition, ReplicaGroup, group_term, place_in

GATHER, TO_ALL = "all_gather_v", "all_to_all_v"
# Rows of the metadata.
_SEND_COUNT, _SEND_START, _RECEIVED, _RECEIVE_START = range(4)
# "Each rank-list must have exactly 4 ranks", "Only LNC=2 is supported" (all_gather_v).
_GATHER_RANKS, _GATHER_CORES = 4, 2


@dataclass(frozen=True)
class UncheckedTensors:
    """The tensor arguments of a call, before they are checked."""

    srcs: Any
    dsts: Any
    metadata_tensor: Any


@dataclass(frozen=True)
class _Parcel:
    """The data that a rank sends: a flat array for each rank of its list.

    Attributes:
        pieces: the arrays by the position of the receiving rank in the list; for all-gather-v a single array, which all
            ranks receive.
    """

    pieces: Sequence[npt.NDArray[Any]]

    def to(self, position: int) -> npt.NDArray[Any]:
        return self.pieces[position] if len(self.pieces) > 1 else self.pieces[0]


@dataclass(frozen=True)
class _Metadata:
    """The metadata of this rank.

    Attributes:
        send_counts: for each receiving rank, the number of elements to send; for all-gather-v one number for all.
        send_starts: for each receiving rank, the index in the source of the first element to send; for all-gather-v
            one index for all.
        receive_starts: for each sending rank, the index in the result of the first element from that rank; None if the
            result has equal slots.
    """

    send_counts: npt.NDArray[np.int64]
    send_starts: npt.NDArray[np.int64]
    receive_starts: npt.NDArray[np.int64] | None

    def compared_numbers(self) -> Sequence[object]:
        """Return all attributes as lists, to be compared: they must be equal on the two cores of a rank."""
        starts = None if self.receive_starts is None else self.receive_starts.tolist()
        return self.send_counts.tolist(), self.send_starts.tolist(), starts


@dataclass(frozen=True)
class Prepared:
    """A checked call whose metadata have been read.

    Attributes:
        what: the name of the operation.
        place: the position of this rank in its list.
        src: the tensor that is sent.
        dst: the tensor that receives.
        metadata: the metadata; None in a launch without data.
        metadata_tensor: the metadata tensor; its rows are the second last dimension.
        reports_counts: whether the counts of received elements are written to ``metadata_tensor``.
    """

    what: str
    place: RankPosition
    src: NkiTensor
    dst: NkiTensor
    metadata: _Metadata | None
    metadata_tensor: NkiTensor
    reports_counts: bool


def _check_gather(core: Core, place: RankPosition, has_rdispls: bool) -> None:
    """Check the limits of all-gather-v in the documentation: ranks of two cores, lists of four, no ``has_rdispls``."""
    if has_rdispls:
        raise NkiValidationError("has_rdispls=True is not supported by all_gather_v")
    if core.launch.cores != _GATHER_CORES:
        raise NkiValidationError("all_gather_v needs ranks of two cores: kernel[2]")
    if any(len(ranks) != _GATHER_RANKS for ranks in place.lists):
        raise NkiValidationError(
            f"all_gather_v needs lists of {_GATHER_RANKS} ranks, got {[list(ranks) for ranks in place.lists]}"
        )


def _rows_of(
    call: Call, metadata_tensor: Any, place: RankPosition, has_rdispls: bool, *, is_written: bool
) -> NkiTensor:
    """Return the metadata tensor after checking its shape and type; its rows are the second last dimension."""
    (tensor,) = checked_tensors(call, "metadata_tensor", [metadata_tensor], dtypes=frozenset({uint32}))
    if is_written:
        checked_tensors(call, "metadata_tensor", [metadata_tensor], dtypes=frozenset({uint32}), is_output=True)
    least = _RECEIVE_START + 1 if has_rdispls else _RECEIVED + 1
    rows = {least, _RECEIVE_START + 1}  # the last row may be there and not be used
    leading = (1,) if tensor.buffer is MemoryRegion.sbuf else ()
    if tensor.shape not in {(*leading, count, place.size) for count in rows} or not tensor.is_contiguous():
        raise NkiValidationError(
            f"metadata_tensor must be dense and have shape {[*leading, least, place.size]} in {tensor.buffer}, got "
            f"{tensor}"
        )
    return tensor


def _row(tensor: NkiTensor, row: int) -> NkiTensor:
    return tensor.slice(tensor.ndim - 2, row, row + 1)


def _read(core: Core, what: str, tensor: NkiTensor, has_rdispls: bool) -> _Metadata:
    def numbers(row: int) -> npt.NDArray[np.int64]:
        view = _row(tensor, row)
        if what == GATHER:
            view = view.slice(tensor.ndim - 1, 0, 1)
        return read(core, "metadata_tensor", view).reshape(-1).astype(np.int64)

    starts = numbers(_RECEIVE_START) if has_rdispls else None
    return _Metadata(numbers(_SEND_COUNT), numbers(_SEND_START), starts)


def prepare(
    call: Call,
    what: str,
    unchecked: UncheckedTensors,
    replica_group: Any,
    recv_counts_known: Any,
    has_rdispls: Any,
    priority: int | None,
) -> Prepared:
    """Check a call of the operation ``what`` and read its metadata; the data are not accessed yet.

    Raises:
        NkiValidationError: a parameter is wrong; the message names the parameter.
    """
    core, place = call.core, place_in(call.core, replica_group)
    check_priority(core, priority)
    for name, flag in (("recv_counts_known", recv_counts_known), ("has_rdispls", has_rdispls)):
        if not isinstance(flag, bool):
            raise NkiValidationError(f"{name} must be True or False, got {flag!r}")
    inputs = checked_tensors(call, "srcs", unchecked.srcs, regions=HBM)
    outputs = checked_tensors(call, "dsts", unchecked.dsts, regions=HBM, is_output=True)
    if len(inputs) != 1 or len(outputs) != 1:
        raise NkiValidationError(f"srcs and dsts must be lists of one tensor, got {len(inputs)} and {len(outputs)}")
    check_same_types(inputs, outputs)
    src, dst = inputs[0], outputs[0]
    for name, tensor in (("srcs[0]", src), ("dsts[0]", dst)):
        if not tensor.is_contiguous():
            raise NkiValidationError(f"{name} is taken as a flat buffer and must be dense, got {tensor}")
    if what == GATHER:
        _check_gather(core, place, has_rdispls)
    if not has_rdispls and dst.size % place.size:
        raise NkiValidationError(f"dsts[0] is cut into {place.size} equal slots, got {dst.size} elements in {dst}")
    by_row = _rows_of(call, unchecked.metadata_tensor, place, has_rdispls, is_written=not recv_counts_known)
    metadata = None if core.is_abstract else _read(core, what, by_row, has_rdispls)
    return Prepared(what, place, src, dst, metadata, by_row, not recv_counts_known)


def _operation(
    prepared: Prepared,
    numbers: tuple[object, ...],
    bring: Callable[[], Any],
    store: Callable[[Mapping[int, Any]], None],
) -> Operation:
    place = prepared.place
    terms = (group_term(place.lists), AgreedProperty("the type of the tensors", str(prepared.src.dtype)))
    besides = (prepared.metadata_tensor,) if prepared.metadata_tensor.buffer is MemoryRegion.shared_hbm else ()
    return Operation(
        prepared.what, place.members, (prepared.src,), (prepared.dst,), terms, bring, store, besides, numbers
    )


def _piece(core: Core, src: NkiTensor, count: int, start: int) -> npt.NDArray[Any]:
    if start + count > src.size:
        raise NkiValidationError(
            f"metadata_tensor: elements {start} to {start + count} are to be sent, and srcs[0] has {src.size}"
        )
    if not count:
        return np.empty(0, src.storage.numpy_type_of(src.dtype))
    flat = src.reshape((src.size,)).slice(0, start, start + count)
    return np.array(read(core, "srcs[0]", flat))


def _store_piece(core: Core, prepared: Prepared, metadata: _Metadata, position: int, piece: npt.NDArray[Any]) -> None:
    dst, place = prepared.dst, prepared.place
    slot = dst.size // place.size
    sender = place.members[position]
    if metadata.receive_starts is None:
        start, room = slot * position, slot
    else:
        start = int(metadata.receive_starts[position])
        room = max(0, dst.size - start)
    if piece.size > room:
        raise NkiValidationError(
            f"rank {sender} sends {piece.size} elements, and from element {start} on dsts[0] has room for {room}: {dst}"
        )
    if piece.size:
        write(core, dst.reshape((dst.size,)).slice(0, start, start + piece.size), piece, dst.dtype)


def run(call: Call, prepared: Prepared) -> None:
    """Exchange the data of a prepared call with the other ranks.

    If the call asks for the counts of received elements, they are written to the metadata tensor.

    Raises:
        NkiValidationError: the metadata select elements beyond the source, or a slot is too small for received
            elements.
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    core, place, metadata = call.core, prepared.place, prepared.metadata
    if metadata is None:
        perform(call, _operation(prepared, (), lambda: None, lambda brought: None))
        raise DataNeeded("the metadata")
    is_shared = prepared.metadata_tensor.buffer is MemoryRegion.shared_hbm
    does_for_both = belongs_to_rank(core, (prepared.src, prepared.dst))
    received = np.zeros(place.size, np.int64)

    def bring() -> _Parcel:
        spans = zip(metadata.send_counts.tolist(), metadata.send_starts.tolist(), strict=True)
        return _Parcel([_piece(core, prepared.src, count, start) for count, start in spans])

    def report(counts: npt.NDArray[np.int64]) -> None:
        if prepared.reports_counts:
            write(core, _row(prepared.metadata_tensor, _RECEIVED), counts.astype(np.uint32), uint32)

    def store(brought: Mapping[int, _Parcel]) -> None:
        for position, rank in enumerate(place.members):
            piece = brought[rank].to(place.position)
            received[position] = piece.size
            _store_piece(core, prepared, metadata, position, piece)
        if is_shared or not does_for_both:
            report(received)

    numbers = tuple(metadata.compared_numbers())
    perform(call, _operation(prepared, numbers, bring, store))
    if does_for_both and not is_shared:  # each core has a tensor of its own for the counts
        (others,) = core.launch.barrier.meet("the counts received", received)
        report(received if core.number == 0 else others)


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
    """Copy ``src[start:start + count]`` of each rank s to slot s of ``dst`` on every rank.

    ``src`` and ``dst`` are the only tensors of ``srcs`` and ``dsts``, as flat buffers; ``dst`` is divided into equal
    slots. The operation needs ranks of two cores, in lists of four ranks. In column 0 of the metadata, row 0 is
    ``count`` and row 1 is ``start``. Row 2 receives the numbers of received elements, unless ``recv_counts_known`` is
    set.

    Raises:
        BarrierError: another rank of the group reaches a different operation, or none.
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

    ``src`` and ``dst`` are the only tensors of ``srcs`` and ``dsts``, as flat buffers. Elements from the s-th rank are
    stored in slot s of ``dst``, which is divided into equal slots. With ``has_rdispls``, the index of their first
    element in ``dst`` is in row 3, column s of the metadata instead. Row 0 of the metadata is ``count`` and row 1 is
    ``start``. Row 2 receives the numbers of received elements, unless ``recv_counts_known`` is set.

    Raises:
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    unchecked = UncheckedTensors(srcs, dsts, metadata_tensor)
    run(call, prepare(call, TO_ALL, unchecked, replica_group, recv_counts_known, has_rdispls, priority))


class _Pending:
    """The operation that a core has prepared and not yet triggered; there is at most one."""

    def __init__(self) -> None:
        self.prepared: Prepared | None = None
        self.handle: NkiInstruction | None = None
        self.place = ""
        self.is_checked_at_end = False


def _with_handle(public: Callable[..., NkiInstruction]) -> Callable[..., NkiInstruction]:
    """Return a prepare function that also stores its handle in :class:`_Pending`; the trigger compares handles."""

    def kept(*args: Any, **kwargs: Any) -> NkiInstruction:
        handle = public(*args, **kwargs)
        current_core(public.__name__).state(_Pending).handle = handle
        return handle

    update_wrapper(kept, public)
    return kept


def _check_triggered(pending: _Pending) -> None:
    if pending.prepared is not None:
        what = pending.prepared.what
        raise NkiValidationError(
            f"{what}_prepare at {pending.place} needs one {what}_trigger; the kernel ended without it"
        )


def _keep(call: Call, prepared: Prepared) -> None:
    pending = call.core.state(_Pending)
    if pending.prepared is not None:
        raise NkiValidationError(
            f"{pending.prepared.what} is prepared, at {pending.place}, and not triggered yet, and there is one slot; "
            f"call nki.collectives.{pending.prepared.what}_trigger first"
        )
    pending.prepared, pending.place = prepared, kernel_location()
    if not pending.is_checked_at_end:
        pending.is_checked_at_end = True
        call.core.at_end.append(lambda: _check_triggered(pending))


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
    """Check an :func:`all_gather_v` and read its metadata; :func:`all_gather_v_trigger` then runs the operation.

    Raises:
        NkiValidationError: another prepared operation has not been triggered yet.
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
    """Check an :func:`all_to_all_v` and read its metadata; :func:`all_to_all_v_trigger` then runs the operation.

    Raises:
        NkiValidationError: another prepared operation has not been triggered yet.
    """
    unchecked = UncheckedTensors(srcs, dsts, metadata_tensor)
    _keep(call, prepare(call, TO_ALL, unchecked, replica_group, recv_counts_known, has_rdispls, priority))


def _take(call: Call, what: str, handle: Any) -> Prepared:
    pending = call.core.state(_Pending)
    prepared = pending.prepared
    if prepared is None or prepared.what != what or pending.handle is not handle:
        waiting = "nothing is prepared" if prepared is None else f"{pending.handle!r} is what is prepared"
        raise NkiValidationError(
            f"prepare_instr must be what nki.collectives.{what}_prepare returned, for one trigger each; got "
            f"{handle!r}, and {waiting}"
        )
    pending.prepared = pending.handle = None
    call.reads.append(prepared.src)
    call.keep(prepared.dst)
    return prepared


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_gather_v_trigger(call: Call, prepare_instr: NkiInstruction) -> None:
    """Run the :func:`all_gather_v` that ``prepare_instr`` prepared.

    Raises:
        NkiValidationError: ``prepare_instr`` is not the handle of the operation that waits for its trigger.
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    run(call, _take(call, GATHER, prepare_instr))


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_to_all_v_trigger(call: Call, prepare_instr: NkiInstruction) -> None:
    """Run the :func:`all_to_all_v` that ``prepare_instr`` prepared.

    Raises:
        NkiValidationError: ``prepare_instr`` is not the handle of the operation that waits for its trigger.
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    run(call, _take(call, TO_ALL, prepare_instr))
