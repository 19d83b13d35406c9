# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operations in which each rank sends to one other rank: by explicit pairs, or around the ring of a group.

- :func:`collective_permute`: by pairs;
- :func:`collective_permute_implicit`, :func:`collective_permute_implicit_reduce`: around the ring;
- :func:`collective_permute_implicit_current_processing_rank_id`: the rank whose data a rank has after some permutes.

Source: ``nki/api/nki/collectives/__init__.py``, ``neuron-runtime/about/collectives.rst`` (Permute Operation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from ...isa.operators import Operator
from ...machine.core import current_core
from ...machine.issue import Call, instruction
from ...machine.synchronisation import AgreedProperty
from ...tensors.device_integers import VirtualRegister
from ...tensors.tensor import NkiTensor
from ...terms.argument_checks import is_integer
from ...terms.dtypes import MOVABLE, DType
from ...terms.enums import HBM, Engine
from ...terms.errors import NkiValidationError, add_location
from ..dma_endpoints import write
from ..dma_instructions import check_priority
from .exchange import (
    REDUCIBLE,
    Arrays,
    Operation,
    check_pairs,
    check_same_types,
    check_shape,
    checked_tensors,
    computed_in,
    contents,
    perform,
    reduced,
    reduction_key,
    shape_terms,
)
from .groups import RankPosition, ReplicaGroup, check_ranks, group_term, place_in, rank_of

# "The maximum number of channels is 4 for replica groups containing all devices inside a node"; how many devices a node
# has is not known here.
_CHANNELS_MAX = 4
_ENDS_OF_A_PAIR = 2
_Channels = Sequence[Sequence[NkiTensor]]


def _checked_pairs(pairs: Any) -> list[tuple[int, int]]:
    is_list = isinstance(pairs, list | tuple) and bool(pairs)
    if not is_list or not all(isinstance(pair, list | tuple) and len(pair) == _ENDS_OF_A_PAIR for pair in pairs):
        raise NkiValidationError(f"source_target_pairs must be a list of (source, target), got {pairs!r}")
    for end, name in enumerate(("source", "target")):
        ranks = [pair[end] for pair in pairs]
        for rank in ranks:
            if not is_integer(rank) or rank < 0:
                raise NkiValidationError(f"source_target_pairs: a rank must be an integer >= 0, got {rank!r}")
            if ranks.count(rank) > 1:
                raise NkiValidationError(f"source_target_pairs: rank {rank} is the {name} of more than one pair")
    return [(int(source), int(target)) for source, target in pairs]


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def collective_permute(
    call: Call,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    source_target_pairs: Sequence[tuple[int, int]],
    priority: int | None = None,
) -> None:
    """Copy ``srcs[0]`` of the first rank of each pair to ``dsts[0]`` of the second rank.

    ``srcs`` and ``dsts`` each have one tensor, in HBM. On a rank that is no pair's second rank, ``dsts[0]`` stays
    unchanged. A rank that is in no pair does nothing.

    Raises:
        BarrierError: another rank of the pairs reaches a different operation, or none.
    """
    core = call.core
    pairs = _checked_pairs(source_target_pairs)
    check_ranks(core, [rank for pair in pairs for rank in pair], "source_target_pairs")
    check_priority(core, priority)
    inputs = checked_tensors(call, "srcs", srcs, regions=HBM)
    outputs = checked_tensors(call, "dsts", dsts, regions=HBM, is_output=True)
    if len(inputs) != 1:
        raise NkiValidationError(f"srcs and dsts must be lists of one tensor, got {len(inputs)}")
    check_pairs(inputs, outputs)
    check_same_types(inputs, outputs)
    check_shape("dsts[0]", outputs[0], inputs[0].shape, "that of srcs[0]")
    own = rank_of(core)
    members = tuple(sorted({rank for pair in pairs for rank in pair}))
    if own not in members:
        return
    sources = {target: source for source, target in pairs}

    def store(brought: Mapping[int, Arrays]) -> None:
        if own in sources:
            write(core, outputs[0], brought[sources[own]][0], outputs[0].dtype)

    terms = (AgreedProperty("source_target_pairs", pairs), *shape_terms("srcs", inputs), *shape_terms("dsts", outputs))
    bring = lambda: contents(core, "srcs", inputs)  # noqa: E731
    perform(call, Operation("collective_permute", members, inputs, outputs, terms, bring, store))


def _place(call: Call, replica_group: Any, channel_ids: Any, priority: int | None) -> RankPosition:
    check_priority(call.core, priority)
    is_list = isinstance(channel_ids, list | tuple) and bool(channel_ids)
    if not is_list or list(channel_ids) != list(range(len(channel_ids))) or len(channel_ids) > _CHANNELS_MAX:
        raise NkiValidationError(
            f"channel_ids must be consecutive integers from 0, at most {_CHANNELS_MAX} of them, got {channel_ids!r}"
        )
    return place_in(call.core, replica_group)


def _by_channel(
    call: Call,
    name: str,
    lists: Any,
    channel_ids: Sequence[int],
    *,
    dtypes: frozenset[DType] = MOVABLE,
    is_output: bool = False,
) -> tuple[NkiTensor, ...]:
    """Return the tensors of ``lists``, one for each channel, after checking them.

    Each list must have exactly one tensor, which the instruction may read, or write if ``is_output``.
    """
    if not isinstance(lists, list | tuple) or len(lists) != len(channel_ids):
        raise NkiValidationError(
            f"{name} must be a list of lists of tensors, one for each of the {len(channel_ids)} channels, got {lists!r}"
        )
    checked: list[NkiTensor] = []
    for channel, inner in enumerate(lists):
        of_channel = checked_tensors(call, f"{name}[{channel}]", inner, dtypes=dtypes, is_output=is_output)
        if len(of_channel) != 1:
            raise NkiValidationError(f"{name}[{channel}] must be a list of one tensor, got {len(of_channel)}")
        checked += of_channel
    return tuple(checked)


def _check_channels(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor]) -> None:
    for channel, (src, dst) in enumerate(zip(srcs, dsts, strict=True)):
        check_pairs([src], [dst])
        check_same_types([src], [dst])
        check_shape(f"the result of channel {channel}", dst, src.shape, "that of its source")


def _permute_in_ring(
    call: Call,
    what: str,
    place: RankPosition,
    srcs: tuple[NkiTensor, ...],
    dsts: tuple[NkiTensor, ...],
    terms: tuple[AgreedProperty, ...],
    bring: Callable[[], Arrays],
    brought_in: Callable[[DType], DType],
) -> None:
    """Run an operation in which each rank stores the arrays of its predecessor in the list.

    Args:
        call: the running instruction.
        what: the name of the operation.
        place: the position of this rank in its list.
        srcs: the tensors that are read.
        dsts: the tensors that are written.
        terms: further values on which the ranks must agree.
        bring: the function that returns the arrays to send, one for each channel.
        brought_in: a function that returns the type of the sent array for the type of the result that it is stored in.
            They differ for reductions, which are rounded only when they are stored.
    """
    predecessor = place.members[place.position - 1]

    def store(brought: Mapping[int, Arrays]) -> None:
        for channel, dst in enumerate(dsts):
            write(call.core, dst, brought[predecessor][channel], brought_in(dst.dtype))

    agreed = (group_term(place.lists), *terms, *shape_terms("sources", srcs), *shape_terms("results", dsts))
    perform(call, Operation(what, place.members, srcs, dsts, agreed, bring, store))


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def collective_permute_implicit(
    call: Call,
    srcs_by_channel: _Channels,
    dsts_by_channel: _Channels,
    replica_group: ReplicaGroup,
    channel_ids: Sequence[int] = [0],
    priority: int | None = None,
) -> None:
    """Send each rank's source to the next rank in its list of the group, and the source of the last rank to the first.

    Each channel has one source and one result, in HBM or SBUF.

    Raises:
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    place = _place(call, replica_group, channel_ids, priority)
    inputs = _by_channel(call, "srcs_by_channel", srcs_by_channel, channel_ids)
    outputs = _by_channel(call, "dsts_by_channel", dsts_by_channel, channel_ids, is_output=True)
    _check_channels(inputs, outputs)
    bring = lambda: contents(call.core, "srcs_by_channel", inputs)  # noqa: E731
    _permute_in_ring(call, "collective_permute_implicit", place, inputs, outputs, (), bring, lambda dtype: dtype)


@instruction(operands=(), on=(Engine.dma,), is_lane_bound=False, is_untimed=True, module="nki.collectives")
def collective_permute_implicit_reduce(
    call: Call,
    srcs0_by_channel: _Channels,
    srcs1_by_channel: _Channels,
    dsts_by_channel: _Channels,
    replica_group: ReplicaGroup,
    op: Operator,
    channel_ids: Sequence[int] = [0],
    priority: int | None = None,
) -> None:
    """Reduce two sources with ``op`` on each channel, and send the result like :func:`collective_permute_implicit`.

    The arithmetic is that of :func:`nkilib.simulator.engines.collectives.fixed_size.all_reduce`.

    Raises:
        BarrierError: another rank of the group reaches a different operation, or none.
    """
    core, key = call.core, reduction_key(op)
    place = _place(call, replica_group, channel_ids, priority)
    first = _by_channel(call, "srcs0_by_channel", srcs0_by_channel, channel_ids, dtypes=REDUCIBLE)
    second = _by_channel(call, "srcs1_by_channel", srcs1_by_channel, channel_ids, dtypes=REDUCIBLE)
    outputs = _by_channel(call, "dsts_by_channel", dsts_by_channel, channel_ids, dtypes=REDUCIBLE, is_output=True)
    _check_channels(first, outputs)
    _check_channels(second, outputs)

    def bring() -> list[npt.NDArray[Any]]:
        left, right = contents(core, "srcs0_by_channel", first), contents(core, "srcs1_by_channel", second)
        return [reduced(key, dst.dtype, parts) for dst, *parts in zip(outputs, left, right, strict=True)]

    terms = (AgreedProperty("op", key),)
    sources = (*first, *second)
    _permute_in_ring(call, "collective_permute_implicit_reduce", place, sources, outputs, terms, bring, computed_in)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int, replica_group: ReplicaGroup, channel_id: int = 0, name: str | None = None
) -> VirtualRegister:
    """Return, in a register, the rank whose data this rank has after ``iteration_id`` permutes around the group's ring.

    After 0 permutes this is the rank itself, after 1 permute the previous rank of the list, and so on.
    """
    function = "nki.collectives.collective_permute_implicit_current_processing_rank_id"
    core = current_core(function)
    try:
        for parameter, value in (("iteration_id", iteration_id), ("channel_id", channel_id)):
            if not is_integer(value) or value < 0:
                raise NkiValidationError(f"{parameter} must be an integer >= 0, got {value!r}")
        if channel_id >= _CHANNELS_MAX:
            raise NkiValidationError(f"channel_id must be below {_CHANNELS_MAX}, got {channel_id}")
        place = place_in(core, replica_group)
    except NkiValidationError as error:
        add_location(error, f"{function} on {core.name}" if core.name else function)
        raise
    if name:
        core.add_name(name)
    return VirtualRegister(place.members[(place.position - iteration_id) % place.size])
