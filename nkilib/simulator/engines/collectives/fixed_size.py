# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operations in which all ranks send equal amounts of data.

They are :func:`all_reduce`, :func:`all_gather`, :func:`reduce_scatter` and :func:`all_to_all`.

Source: ``nki/api/nki/collectives/__init__.py``; for the destination of the data
``neuron-runtime/about/collectives.rst``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...isa.operators import Operator
from ...machine.issue import Call, instruction
from ...machine.synchronisation import AgreedProperty
from ...tensors.tensor import NkiTensor
from ...terms.enums import HBM, Engine
from ...terms.errors import NkiValidationError
from ..dma_endpoints import write
from ..dma_instructions import check_priority
from .exchange import (
    REDUCIBLE,
    Arrays,
    Operation,
    check_dimension,
    check_memory,
    check_pairs,
    check_same_types,
    check_shape,
    checked_tensors,
    contents,
    perform,
    reduction_key,
    shape_terms,
    store_reduced,
)
from .groups import RankPosition, ReplicaGroup, group_term, place_in


def _perform(
    call: Call,
    what: str,
    place: RankPosition,
    srcs: tuple[NkiTensor, ...],
    dsts: tuple[NkiTensor, ...],
    terms: tuple[AgreedProperty, ...],
    store: Callable[[Mapping[int, Arrays]], None],
) -> None:
    perform(
        call,
        Operation(
            what,
            place.members,
            srcs,
            dsts,
            (group_term(place.lists), *terms, *shape_terms("srcs", srcs), *shape_terms("dsts", dsts)),
            lambda: contents(call.core, "srcs", srcs),
            store,
        ),
    )


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_reduce(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    op: Operator,
    priority: int | None = None,
) -> None:
    """Reduce the ranks' ``srcs[k]`` with ``op``, element by element, into ``dsts[k]`` on every rank, for every k.

    ``srcs[k]`` and ``dsts[k]`` have one shape and type. Floats are reduced in float32 in the order of the group and
    rounded once. 32-bit integers are reduced exactly and wrap; smaller integers saturate.

    Raises:
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    place, key = place_in(call.core, replica_group), reduction_key(op)
    check_priority(call.core, priority)
    inputs = checked_tensors(call, "srcs", srcs, dtypes=REDUCIBLE)
    outputs = checked_tensors(call, "dsts", dsts, dtypes=REDUCIBLE, is_output=True)
    check_pairs(inputs, outputs)
    check_memory(call, inputs, outputs)
    check_same_types(inputs, outputs)
    for number, (src, dst) in enumerate(zip(inputs, outputs, strict=True)):
        check_shape(f"dsts[{number}]", dst, src.shape, f"that of srcs[{number}]")

    def store(brought: Mapping[int, Arrays]) -> None:
        for number, dst in enumerate(outputs):
            store_reduced(call.core, dst, key, [brought[rank][number] for rank in place.members])

    _perform(call, "all_reduce", place, inputs, outputs, (AgreedProperty("op", key),), store)


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_gather(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
) -> None:
    """Concatenate the ranks' ``srcs[k]`` along ``collective_dim`` into ``dsts[k]`` on every rank.

    ``collective_dim`` is 0 in HBM, 0 or 1 in SBUF.

    Raises:
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    place = place_in(call.core, replica_group)
    check_priority(call.core, priority)
    inputs, outputs = checked_tensors(call, "srcs", srcs), checked_tensors(call, "dsts", dsts, is_output=True)
    check_pairs(inputs, outputs)
    check_memory(call, inputs, outputs)
    check_same_types(inputs, outputs)
    is_hbm = inputs[0].buffer in HBM
    dim = check_dimension(collective_dim, (0,) if is_hbm else (0, 1), "in HBM" if is_hbm else "in sbuf")
    for number, (src, dst) in enumerate(zip(inputs, outputs, strict=True)):
        expected = (*src.shape[:dim], src.shape[dim] * place.size, *src.shape[dim + 1 :])
        check_shape(f"dsts[{number}]", dst, expected, f"srcs[{number}] of {place.size} ranks along dimension {dim}")

    def store(brought: Mapping[int, Arrays]) -> None:
        for number, dst in enumerate(outputs):
            parts = [brought[rank][number] for rank in place.members]
            write(call.core, dst, np.concatenate(parts, axis=dim), dst.dtype)

    _perform(call, "all_gather", place, inputs, outputs, (AgreedProperty("collective_dim", dim),), store)


def _part(name: str, tensor: NkiTensor, place: RankPosition) -> int:
    """Return the number of rows (indices of dimension 0) of a tensor that each rank gets.

    Raises:
        NkiValidationError: the number of ranks does not divide the number of rows.
    """
    rows, rest = divmod(tensor.shape[0], place.size)
    if rest:
        raise NkiValidationError(
            f"{name}: dimension 0 must be a multiple of the {place.size} ranks in this rank's list, got {tensor}"
        )
    return rows


def _rows(tensor: NkiTensor, position: int, place: RankPosition) -> slice:
    rows = tensor.shape[0] // place.size
    return slice(position * rows, (position + 1) * rows)


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def reduce_scatter(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Operator,
    priority: int | None = None,
) -> None:
    """Reduce the ranks' ``srcs[k]`` with ``op``, and store one part of the result in each rank's ``dsts[k]``.

    Dimension 0 of the result is divided into as many equal parts as there are ranks; the p-th rank gets the p-th part.
    The arithmetic is that of :func:`all_reduce`.

    Raises:
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    place, key = place_in(call.core, replica_group), reduction_key(op)
    check_priority(call.core, priority)
    inputs = checked_tensors(call, "srcs", srcs, dtypes=REDUCIBLE)
    outputs = checked_tensors(call, "dsts", dsts, dtypes=REDUCIBLE, is_output=True)
    check_pairs(inputs, outputs)
    check_same_types(inputs, outputs)
    check_dimension(collective_dim, (0,), "for every tensor")
    for number, (src, dst) in enumerate(zip(inputs, outputs, strict=True)):
        expected = (_part(f"srcs[{number}]", src, place), *src.shape[1:])
        check_shape(f"dsts[{number}]", dst, expected, f"one of {place.size} parts of srcs[{number}]")

    def store(brought: Mapping[int, Arrays]) -> None:
        for number, dst in enumerate(outputs):
            own = _rows(inputs[number], place.position, place)
            store_reduced(call.core, dst, key, [brought[rank][number][own] for rank in place.members])

    _perform(call, "reduce_scatter", place, inputs, outputs, (AgreedProperty("op", key),), store)


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def all_to_all(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
) -> None:
    """Copy part p of ``srcs[k]`` on the q-th rank to part q of ``dsts[k]`` on the p-th rank, for all p, q and k.

    Dimension 0 of every tensor is divided into as many equal parts as there are ranks. All tensors are in HBM.

    Raises:
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    place = place_in(call.core, replica_group)
    check_priority(call.core, priority)
    inputs = checked_tensors(call, "srcs", srcs, regions=HBM)
    outputs = checked_tensors(call, "dsts", dsts, regions=HBM, is_output=True)
    check_pairs(inputs, outputs)
    check_same_types(inputs, outputs)
    check_dimension(collective_dim, (0,), "for every tensor")
    for number, (src, dst) in enumerate(zip(inputs, outputs, strict=True)):
        _part(f"srcs[{number}]", src, place)
        check_shape(f"dsts[{number}]", dst, src.shape, f"that of srcs[{number}]")

    def store(brought: Mapping[int, Arrays]) -> None:
        for number, dst in enumerate(outputs):
            own = _rows(inputs[number], place.position, place)
            parts = [brought[rank][number][own] for rank in place.members]
            write(call.core, dst, np.concatenate(parts, axis=0), dst.dtype)

    _perform(call, "all_to_all", place, inputs, outputs, (), store)
