# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replica groups, the lists of ranks within which collective operations run, and the position of a rank in them.

- :class:`ReplicaGroup`, with :class:`rg_partition_op`: the lists of ranks;
- :func:`place_in`: the :class:`RankPosition` of a rank in a group; :func:`rank_of`, :func:`rank_id`: the number of a
  rank;
- :func:`check_ranks`: whether ranks run in this launch; :func:`group_term`: the group as a value on which ranks must
  agree.

Source: ``nki/api/nki/collectives/__init__.py``; the 2.33 page of ``ReplicaGroup``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...machine.core import Core, current_core
from ...machine.synchronisation import AgreedProperty
from ...tensors.device_integers import VirtualRegister
from ...terms.argument_checks import is_integer
from ...terms.errors import NkiValidationError
from ...terms.nki_object import NKIObject


class rg_partition_op(Enum):
    """The operator of :meth:`ReplicaGroup.from_partition_op`; ranks with equal results of the operator share a list."""

    bitwise_and = "bitwise_and"
    div = "div"
    mod = "mod"


def _list_of(rank: int, op: rg_partition_op, operand: int) -> int:
    if op is rg_partition_op.bitwise_and:
        return rank & operand
    return rank // operand if op is rg_partition_op.div else rank % operand


def _is_rank(value: Any) -> bool:
    return is_integer(value) and int(value) >= 0


def _checked_lists(groups: Any) -> tuple[tuple[int, ...], ...]:
    """Return the lists of ranks of a replica group as tuples.

    Raises:
        NkiValidationError: ``groups`` is no list of lists of ranks, or a rank is in two lists.
    """
    is_nested = isinstance(groups, list | tuple) and all(isinstance(ranks, list | tuple) for ranks in groups)
    if not is_nested or not groups or not all(ranks and all(map(_is_rank, ranks)) for ranks in groups):
        raise NkiValidationError(
            f"ReplicaGroup: must be a list of lists of ranks such as [[0, 1], [2, 3]], got {groups!r}"
        )
    ranks = [int(rank) for members in groups for rank in members]
    repeated = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if repeated:
        raise NkiValidationError(f"ReplicaGroup: a rank is in one list only, and once; got rank {repeated[0]} again")
    return tuple(tuple(int(rank) for rank in members) for members in groups)


@dataclass
class ReplicaGroup(NKIObject):
    """A replica group: lists of ranks. A collective operation runs within each list separately.

    Attributes:
        groups: the lists. No rank is in two lists; the order of ranks in a list is the order of their data in results.
    """

    groups: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        self.groups = _checked_lists(self.groups)

    @staticmethod
    def from_partition_op(world_size: int, op: rg_partition_op, operand: int) -> ReplicaGroup:
        """Divide the ranks 0 to ``world_size`` - 1 into lists: ranks with equal ``op(rank, operand)`` share a list.

        Raises:
            NkiValidationError: an argument has the wrong type, or ``operand`` is 0 with an operator that divides by it.
        """
        if not _is_rank(world_size) or world_size < 1:
            raise NkiValidationError(f"ReplicaGroup: world_size must be a positive integer, got {world_size!r}")
        if not isinstance(op, rg_partition_op):
            raise NkiValidationError(f"ReplicaGroup: op must be a member of rg_partition_op, got {op!r}")
        least = 0 if op is rg_partition_op.bitwise_and else 1
        if not _is_rank(operand) or operand < least:
            raise NkiValidationError(
                f"ReplicaGroup: operand of {op.name} must be an integer >= {least}, got {operand!r}"
            )
        lists: dict[int, list[int]] = {}
        for rank in range(world_size):
            lists.setdefault(_list_of(rank, op, operand), []).append(rank)
        return ReplicaGroup([lists[key] for key in sorted(lists)])

    def __repr__(self) -> str:
        return f"ReplicaGroup({[list(ranks) for ranks in self.groups]})"


@dataclass(frozen=True)
class RankPosition:
    """The position of a rank in its list of a replica group.

    Attributes:
        members: the ranks of the list, in order.
        position: the index of this rank among the members.
        lists: all lists of the group.
    """

    members: tuple[int, ...]
    position: int
    lists: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return len(self.members)


def rank_of(core: Core) -> int:
    """Return the rank of the launch that a core belongs to; 0 for a launch without other ranks."""
    return 0 if core.launch.seat is None else core.launch.seat.rank


def check_ranks(core: Core, ranks: Sequence[int], what: str) -> None:
    """Check that all of ``ranks`` run in this launch.

    Args:
        core: a core of the launch.
        ranks: the numbers of the ranks.
        what: the name of the argument that holds the ranks, for the message.

    Raises:
        NkiValidationError: a rank does not run; the message names the first such rank, and how to launch it.
    """
    seat = core.launch.seat
    count = 1 if seat is None else seat.world.ranks
    beyond = [rank for rank in ranks if rank >= count]
    if not beyond:
        return
    if seat is None:
        raise NkiValidationError(
            f"{what} has rank {beyond[0]}, and this kernel runs as rank 0 alone; launch it with "
            f"nkilib.simulator.ranks({max(ranks) + 1})(kernel)(...)"
        )
    raise NkiValidationError(f"{what} has rank {beyond[0]}, and nkilib.simulator.ranks launched ranks 0 to {count - 1}")


def place_in(core: Core, replica_group: Any) -> RankPosition:
    """Return the position of the rank of ``core`` in a group.

    Raises:
        NkiValidationError: ``replica_group`` is no :class:`ReplicaGroup`, has a rank that does not run, or lacks this
            rank.
    """
    if not isinstance(replica_group, ReplicaGroup):
        raise NkiValidationError(
            f"replica_group must be an nki.collectives.ReplicaGroup, as ReplicaGroup([[0, 1]]), got {replica_group!r}"
        )
    lists = _checked_lists(replica_group.groups)
    check_ranks(core, [rank for ranks in lists for rank in ranks], "replica_group")
    own = rank_of(core)
    for members in lists:
        if own in members:
            return RankPosition(members, members.index(own), lists)
    raise NkiValidationError(f"rank {own} is in no list of {replica_group!r}, and would get no result")


def rank_id(name: str | None = None) -> VirtualRegister:
    """Return the number of this rank in a register; it is 0 in a launch without other ranks."""
    core = current_core("nki.collectives.rank_id")
    if name:
        core.add_name(name)
    return VirtualRegister(rank_of(core))


def group_term(lists: Sequence[Sequence[int]]) -> AgreedProperty:
    """Return the lists of a replica group as a value on which all ranks must agree."""
    return AgreedProperty("the replica group", [list(ranks) for ranks in lists])
