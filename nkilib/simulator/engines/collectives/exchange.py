# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How the cores of the ranks come together: each brings what it has, gets what all brought, and stores its share.

Tensors in SBUF and in private HBM belong to a core: with two cores a rank, core 0 meets the cores 0 of the other ranks
and core 1 the cores 1. Where all tensors are in shared HBM, the operation is one of the whole rank: both its cores come
to it, core 0 does it for both, and it orders the accesses to its tensors like a ``core_barrier`` on each of them.
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
from ...machine.partial_writes import PartialWrites
from ...machine.world import Comer, Term
from ...tensors.tensor import NkiTensor
from ...terms.errors import BarrierError, kernel_location
from ...terms.regions import MemoryRegion
from ..dma.rows import read
from ..sync.barrier import meet_on
from .groups import rank_of

Arrays = Sequence[npt.NDArray[Any]]
_CORE_BARRIER = "core_barrier"


@dataclass(frozen=True)
class Operation:
    """One operation as a core comes to it.

    Attributes:
        what: its name, with which the ranks must agree.
        members: the ranks among which it runs.
        srcs, dsts: the tensors that are read, and those that are written.
        terms: what else the ranks must agree on.
        bring: what this rank has for the others; not called where tensors have no data.
        store: puts its share of what all brought, by rank, into the results; not called either.
        besides: further tensors in shared HBM that it reads or writes.
        of_cores: what the two cores of a rank must agree on besides the terms.
    """

    what: str
    members: tuple[int, ...]
    srcs: tuple[NkiTensor, ...]
    dsts: tuple[NkiTensor, ...]
    terms: tuple[Term, ...]
    bring: Callable[[], Any]
    store: Callable[[Mapping[int, Any]], None]
    besides: tuple[NkiTensor, ...] = ()
    of_cores: tuple[object, ...] = ()

    @property
    def tensors(self) -> tuple[NkiTensor, ...]:
        return *self.srcs, *self.dsts


def is_of_rank(core: Core, tensors: Sequence[NkiTensor]) -> bool:
    """Whether an operation on ``tensors`` is one of the two cores of a rank together."""
    return core.launch.cores > 1 and all(tensor.buffer is MemoryRegion.shared_hbm for tensor in tensors)


def perform(call: Call, operation: Operation) -> None:
    """Run an operation on this core.

    Raises:
        BarrierError: if the other ranks come to another one or do not come, or the other core of this one does not.
    """
    core = call.core
    if not is_of_rank(core, operation.tensors):
        core.loads.settle()
        _exchange(core, operation, core.number)
        return
    ordered = list({tensor.storage: tensor for tensor in (*operation.tensors, *operation.besides)}.values())
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
        brought = seat.world.meet(Comer(seat.rank, number, operation.members, operation.what, place, terms, item))
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
    """Require that both cores of a rank come to the same operation.

    Raises:
        BarrierError: naming what each comes to.
    """
    own = [*(term.value for term in operation.terms), *operation.of_cores]
    (others,) = core.launch.barrier.meet(operation.what, own)
    if own != others:
        raise BarrierError(
            f"both cores of a rank must come to the same {operation.what}, got {own} on core {core.number} and "
            f"{others} on core {1 - core.number}"
        )


def _order(core: Core, tensors: Sequence[NkiTensor]) -> None:
    definition = REGISTRY[_CORE_BARRIER]
    for tensor in tensors:
        meet_on(Call(core, definition, definition.bind((tensor, (0, 1)), {})), tensor)


def contents(core: Core, name: str, tensors: Sequence[NkiTensor]) -> list[npt.NDArray[Any]]:
    """Copies of what tensors hold: other ranks read them while this one may go on.

    Raises:
        UninitializedReadError: for elements never written, with ``uninitialized="error"``.
    """
    return [np.array(read(core, f"{name}[{number}]", tensor)) for number, tensor in enumerate(tensors)]


def described(name: str, tensors: Sequence[NkiTensor]) -> tuple[Term, ...]:
    """Shapes and types on which ranks must agree."""
    return tuple(
        Term(f"{name}[{number}]", f"{list(tensor.shape)} {tensor.dtype}") for number, tensor in enumerate(tensors)
    )


def shown(lists: Sequence[Sequence[int]]) -> Term:
    """The group on which ranks must agree."""
    return Term("the replica group", [list(ranks) for ranks in lists])
