# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The exchange among the cores of the ranks: each brings its data, receives the data of all, and stores its share.

Tensors in SBUF and in private HBM belong to a core: with two cores a rank, the cores 0 of all ranks exchange data among
themselves, and so do the cores 1. Where all tensors are in shared HBM, the operation belongs to the whole rank: both
its cores reach it, core 0 performs it for both, and it orders the accesses to its tensors like a ``core_barrier`` on
each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine.call import Call
from ...machine.core import Core
from ...machine.issue import REGISTRY
from ...machine.overlapping_copies import check_copy
from ...machine.partial_writes import PartialWrites
from ...machine.world import Participant, Term
from ...tensors.tensor import NkiTensor
from ...terms.errors import BarrierError, kernel_location
from ...terms.regions import MemoryRegion
from ..dma.rows import read
from ..sync.barrier import synchronise_on
from .groups import rank_of

Arrays = Sequence[npt.NDArray[Any]]
_CORE_BARRIER = "core_barrier"


@dataclass(frozen=True)
class Operation:
    """One collective operation as a core reaches it.

    Attributes:
        what: the name of the operation, on which the ranks must agree.
        members: the ranks among which it runs.
        srcs, dsts: the tensors that are read, and the tensors that are written.
        terms: the other values on which the ranks must agree.
        bring: the function that returns the data of this rank for the others; not called where tensors have no data.
        store: the function that gets the data of all, by rank, and stores this rank's share in the results; not called
            where tensors have no data either.
        other_tensors: further tensors in shared HBM that the operation reads or writes.
        core_terms: the values besides the terms on which the two cores of a rank must agree.
    """

    what: str
    members: tuple[int, ...]
    srcs: tuple[NkiTensor, ...]
    dsts: tuple[NkiTensor, ...]
    terms: tuple[Term, ...]
    bring: Callable[[], Any]
    store: Callable[[Mapping[int, Any]], None]
    other_tensors: tuple[NkiTensor, ...] = ()
    core_terms: tuple[object, ...] = ()

    @property
    def tensors(self) -> tuple[NkiTensor, ...]:
        return *self.srcs, *self.dsts


def belongs_to_rank(core: Core, tensors: Sequence[NkiTensor]) -> bool:
    """Return whether the two cores of a rank perform an operation on ``tensors`` together."""
    return core.launch.cores > 1 and all(tensor.buffer is MemoryRegion.shared_hbm for tensor in tensors)


def perform(call: Call, operation: Operation) -> None:
    """Run an operation on this core.

    Raises:
        BarrierError: if another rank, or the other core of this rank, reaches a different operation or none.
    """
    core = call.core
    others = {f"srcs[{number}]": src for number, src in enumerate(operation.srcs)}
    for number, dst in enumerate(operation.dsts):
        name = f"dsts[{number}]"
        check_copy(core, dst, others, None, name)
        others[name] = dst
    if not belongs_to_rank(core, operation.tensors):
        core.loads.settle()
        _exchange(core, operation, core.number)
        return
    ordered = list({tensor.storage: tensor for tensor in (*operation.tensors, *operation.other_tensors)}.values())
    _agree(core, operation)
    _order(core, ordered)
    if core.number == 0:
        _exchange(core, operation, None)
    _order(core, ordered)


def _exchange(core: Core, operation: Operation, number: int | None) -> None:
    item = None if core.is_abstract else operation.bring()
    seat = core.launch.seat
    if seat is None:  # a launch by itself: rank 0 of one
        brought: Mapping[int, Any] = {rank_of(core): item}
    else:
        what = Term("the collective", operation.what)
        terms = (what, *operation.terms, *_terms_of(operation.tensors))
        place = kernel_location()
        core.meetings += 1
        brought = seat.world.meet(Participant(seat.rank, number, operation.members, operation.what, place, terms, item))
    if core.is_abstract:
        return
    operation.store(brought)
    writes = core.observers.find(PartialWrites)
    for dst in operation.dsts:
        if writes is not None and not dst.storage.written.is_full:
            writes.note(dst)


def _terms_of(tensors: Sequence[NkiTensor]) -> tuple[Term, ...]:
    memories = sorted({str(tensor.buffer) for tensor in tensors})
    return (Term("the memory of the tensors", " and ".join(memories)),)


def _agree(core: Core, operation: Operation) -> None:
    """Check that both cores of a rank reach the same operation.

    Raises:
        BarrierError: naming the operation that each core reaches.
    """
    own = [*(term.value for term in operation.terms), *operation.core_terms]
    (others,) = core.launch.barrier.meet(operation.what, own)
    if own != others:
        raise BarrierError(
            f"both cores of a rank must come to the same {operation.what}, got {own} on core {core.number} and "
            f"{others} on core {1 - core.number}"
        )


def _order(core: Core, tensors: Sequence[NkiTensor]) -> None:
    definition = REGISTRY[_CORE_BARRIER]
    for tensor in tensors:
        synchronise_on(Call(core, definition, definition.bind((tensor, (0, 1)), {})), tensor)


def contents(core: Core, name: str, tensors: Sequence[NkiTensor]) -> list[npt.NDArray[Any]]:
    """Return copies of the contents of tensors: other ranks read them while this rank may already go on.

    Raises:
        UninitializedReadError: for elements never written, with ``uninitialized="error"``.
    """
    return [np.array(read(core, f"{name}[{number}]", tensor)) for number, tensor in enumerate(tensors)]


def shape_terms(name: str, tensors: Sequence[NkiTensor]) -> tuple[Term, ...]:
    """Return the shapes and types of tensors as terms on which the ranks must agree."""
    return tuple(
        Term(f"{name}[{number}]", f"{list(tensor.shape)} {tensor.dtype}") for number, tensor in enumerate(tensors)
    )


def group_term(lists: Sequence[Sequence[int]]) -> Term:
    """Return the lists of a replica group as a term on which the ranks must agree."""
    return Term("the replica group", [list(ranks) for ranks in lists])
