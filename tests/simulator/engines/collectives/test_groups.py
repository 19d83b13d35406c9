# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``ReplicaGroup``, ``rank_id``, and what a kernel that runs by itself can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, per_rank, ranks
from tests.simulator.frame import refused, run, without_place
from tests.simulator.ranked import all_of, around, integers, ncc

PARTITIONS = [
    (ncc.rg_partition_op.bitwise_and, 0, [[0, 1, 2, 3, 4, 5, 6, 7]]),
    (ncc.rg_partition_op.bitwise_and, 3, [[0, 4], [1, 5], [2, 6], [3, 7]]),
    (ncc.rg_partition_op.div, 4, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    (ncc.rg_partition_op.mod, 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
    (ncc.rg_partition_op.div, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
]


@pytest.mark.parametrize(("op", "operand", "lists"), PARTITIONS)
def test_a_group_by_an_operator(op: Any, operand: int, lists: list[list[int]]) -> None:
    group = ncc.ReplicaGroup.from_partition_op(8, op, operand)
    assert repr(group) == f"ReplicaGroup({lists})" and group == ncc.ReplicaGroup(lists)


LISTS = "must be a list of lists of ranks such as [[0, 1], [2, 3]], got"
MOD, partition = ncc.rg_partition_op.mod, ncc.ReplicaGroup.from_partition_op


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ncc.ReplicaGroup([0, 1]), f"{LISTS} [0, 1]"),
        (lambda: ncc.ReplicaGroup([]), f"{LISTS} []"),
        (lambda: ncc.ReplicaGroup([[0], []]), f"{LISTS} [[0], []]"),
        (lambda: ncc.ReplicaGroup([[-1]]), f"{LISTS} [[-1]]"),
        (lambda: ncc.ReplicaGroup([[0, 1], [1]]), "a rank is in one list only, and once; got rank 1 again"),
        (lambda: partition(8, MOD, 0), "operand of mod must be an integer >= 1, got 0"),
        (lambda: partition(8, "mod", 2), "op must be a member of rg_partition_op, got 'mod'"),
        (lambda: partition(0, MOD, 2), "world_size must be a positive integer, got 0"),
    ],
)
def test_what_is_no_group(make: Callable[[], object], message: str) -> None:
    assert refused(NkiValidationError, make) == f"ReplicaGroup: {message}"


def row_of_rank(table: Any) -> Any:
    """A kernel: the row of a table that the rank's number names."""
    result = nl.ndarray((1, table.shape[1]), table.dtype, nl.shared_hbm)
    number = ncc.rank_id(name="which")
    nisa.dma_copy(result, table.ap([[table.shape[1], 1], [1, table.shape[1]]], scalar_offset=number, indirect_dim=0))
    return result


@pytest.mark.parametrize("cores", [1, 2])
def test_rank_id_is_a_register_with_the_number_of_the_rank(cores: int) -> None:
    table = integers(0, 4, 3)
    results = ranks(4)(nki.jit(row_of_rank)[cores])(table)
    assert np.array_equal(np.concatenate(results), table)
    kinds: list[type] = []
    run(lambda: kinds.append(type(ncc.rank_id())))
    assert kinds == [nisa.VirtualRegister]


def test_by_itself_a_kernel_is_rank_0_of_one() -> None:
    x = integers(0, 1, 2, 3)[0]
    assert np.array_equal(run(row_of_rank, x), x[:1])
    gather = around(lambda src, dst: ncc.all_gather([src], [dst], all_of(1), 0), (2, 3), nl.private_hbm)
    assert np.array_equal(gather(x), x)
    both = around(lambda src, dst: ncc.all_reduce([src], [dst], all_of(1), nl.add), (2, 3), nl.shared_hbm)
    assert np.array_equal(both[2](x), x)


def test_a_kernel_on_one_core_waits_for_nobody() -> None:
    kernel = around(lambda src, dst: ncc.all_reduce([src], [dst], all_of(4), nl.add), (2, 3), nl.private_hbm)
    message = refused(NkiValidationError, lambda: kernel(integers(0, 2, 3)))
    assert without_place(message, "nki.collectives.all_reduce") == (
        "replica_group has rank 1, and this kernel runs as rank 0 alone; launch it with "
        "nkilib.simulator.ranks(4)(kernel)(...)"
    )


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0, 1], [2, 3]], "replica_group has rank 2, and nkilib.simulator.ranks launched ranks 0 to 1"),
        ([[1]], "rank 0 is in no list of ReplicaGroup([[1]]), and would get no result"),
    ],
)
def test_a_group_that_does_not_fit_the_launch(lists: list[list[int]], message: str) -> None:
    group = ncc.ReplicaGroup(lists)
    kernel = around(lambda src, dst: ncc.all_reduce([src], [dst], group, nl.add), (2, 3), nl.private_hbm)
    error = refused(NkiValidationError, lambda: ranks(2)(kernel)(per_rank(integers(0, 2, 2, 3))))
    assert without_place(error, "nki.collectives.all_reduce on rank 0") == message


def test_outside_a_kernel() -> None:
    message = refused(NkiValidationError, ncc.rank_id)
    assert message.startswith("nki.collectives.rank_id works inside a kernel only")
