# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``ReplicaGroup``, ``rank_id``, a kernel that runs by itself, and the tensors and parameters that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, per_rank, ranks, using
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


# What is refused is refused before anything is written.

GROUP = all_of(2)
H, S, B = nl.private_hbm, nl.shared_hbm, nl.sbuf


def t(*shape: int, memory: Any = H, dtype: Any = nl.float32) -> Any:
    """Make a tensor of zeros, in a kernel."""
    return nl.zeros(shape, dtype, memory)


REFUSED: dict[str, tuple[Callable[[], object], str, str]] = {
    "no list": (
        lambda: ncc.all_reduce(t(2, 3), [t(2, 3)], GROUP, nl.add),
        "all_reduce",
        "srcs must be a list of tensors, got tensor [2, 3] float32 in private_hbm",
    ),
    "lists of unlike lengths": (
        lambda: ncc.all_reduce([t(2, 3)], [t(2, 3), t(2, 3)], GROUP, nl.add),
        "all_reduce",
        "srcs and dsts must be lists of one length, got 1 and 2 tensors",
    ),
    "HBM and SBUF": (
        lambda: ncc.all_reduce([t(2, 3)], [t(2, 3, memory=B)], GROUP, nl.add),
        "all_reduce",
        "srcs and dsts must all be in HBM or all in sbuf, got tensor [2, 3] float32 in private_hbm and tensor [2, 3] "
        "float32 in sbuf; nisa.dma_copy one of them",
    ),
    "PSUM": (
        lambda: ncc.all_reduce([t(2, 3, memory=nl.psum)], [t(2, 3, memory=B)], GROUP, nl.add),
        "all_reduce",
        "operand 'srcs[0]' must be in private_hbm or sbuf or shared_hbm, got tensor [2, 3] float32 in psum; copy it to "
        "sbuf first, with nisa.tensor_copy",
    ),
    "several tensors in SBUF": (
        lambda: ncc.all_reduce([t(2, 3, memory=B)] * 2, [t(2, 3, memory=B), t(2, 3, memory=B)], GROUP, nl.add),
        "all_reduce",
        "srcs and dsts in sbuf must be lists of one tensor, got 2",
    ),
    "three dimensions in SBUF": (
        lambda: ncc.all_gather([t(2, 3, 2, memory=B)], [t(4, 3, 2, memory=B)], GROUP, 0),
        "all_gather",
        "a tensor in sbuf must have two dimensions here, got tensor [2, 3, 2] float32 in sbuf",
    ),
    "unlike types": (
        lambda: ncc.all_gather([t(2, 3)], [t(4, 3, dtype=nl.int32)], GROUP, 0),
        "all_gather",
        "srcs[0] and dsts[0] must have one type, got tensor [2, 3] float32 in private_hbm and tensor [4, 3] int32 in "
        "private_hbm; cast with nisa.tensor_copy or nisa.dma_copy",
    ),
    "the shape of a sum": (
        lambda: ncc.all_reduce([t(2, 3)], [t(3, 2)], GROUP, nl.add),
        "all_reduce",
        "dsts[0] must have shape [2, 3], that of srcs[0]; got tensor [3, 2] float32 in private_hbm",
    ),
    "the shape of what is gathered": (
        lambda: ncc.all_gather([t(2, 3)], [t(2, 6)], GROUP, 0),
        "all_gather",
        "dsts[0] must have shape [4, 3], srcs[0] of 2 ranks along dimension 0; got tensor [2, 6] float32 in "
        "private_hbm",
    ),
    "a dimension in HBM": (
        lambda: ncc.all_gather([t(2, 3)], [t(2, 6)], GROUP, 1),
        "all_gather",
        "collective_dim must be 0 in HBM, got 1",
    ),
    "parts of unlike sizes": (
        lambda: ncc.reduce_scatter([t(3, 3)], [t(1, 3)], GROUP, 0, nl.add),
        "reduce_scatter",
        "srcs[0]: dimension 0 must be a multiple of the 2 ranks in this rank's list, got tensor [3, 3] float32 in "
        "private_hbm",
    ),
    "an operator": (
        lambda: ncc.reduce_scatter([t(4, 3)], [t(2, 3)], GROUP, 0, nl.multiply),
        "reduce_scatter",
        "op must be nl.add, nl.minimum or nl.maximum, got nl.multiply",
    ),
    "truth values": (
        lambda: ncc.all_reduce([t(2, 3, dtype=nl.bool_)], [t(2, 3, dtype=nl.bool_)], GROUP, nl.maximum),
        "all_reduce",
        "operand 'srcs[0]' must have one of the types ",
    ),
    "SBUF in an all-to-all": (
        lambda: ncc.all_to_all([t(2, 3, memory=B)], [t(2, 3, memory=B)], GROUP, 0),
        "all_to_all",
        "operand 'srcs[0]' must be in private_hbm or shared_hbm, got tensor [2, 3] float32 in sbuf",
    ),
    "no group": (
        lambda: ncc.all_reduce([t(2, 3)], [t(2, 3)], [[0, 1]], nl.add),
        "all_reduce",
        "replica_group must be an nki.collectives.ReplicaGroup, as ReplicaGroup([[0, 1]]), got [[0, 1]]",
    ),
    "a priority on trn2": (
        lambda: ncc.all_reduce([t(2, 3)], [t(2, 3)], GROUP, nl.add, priority=1),
        "all_reduce",
        "priority is 0 to 3 and needs trn3, got 1 on trn2",
    ),
    "a dynamic address": (
        lambda: ncc.all_reduce([t(2, 2, 3).select(0, nisa.register_alloc(1))], [t(2, 3)], GROUP, nl.add),
        "all_reduce",
        "operand 'srcs[0]': the ranks must know its address when they start, got a dynamic index in tensor [2, 3] "
        "float32 in private_hbm; nisa.dma_copy it to a tensor of its own",
    ),
    "pairs with one source twice": (
        lambda: ncc.collective_permute([t(2, 3)], [t(2, 3)], [(0, 0), (0, 1)]),
        "collective_permute",
        "source_target_pairs: rank 0 is the source of more than one pair",
    ),
    "channels that do not begin at 0": (
        lambda: ncc.collective_permute_implicit([[t(2, 3)]], [[t(2, 3)]], GROUP, channel_ids=[1]),
        "collective_permute_implicit",
        "channel_ids must be consecutive integers from 0, at most 4 of them, got [1]",
    ),
    "a channel too many": (
        lambda: ncc.collective_permute_implicit([[t(2, 3)]] * 2, [[t(2, 3)]], GROUP, channel_ids=[0, 1]),
        "collective_permute_implicit",
        "dsts_by_channel must be a list of lists of tensors, one for each of the 2 channels, got ",
    ),
}


@pytest.mark.parametrize(("body", "function", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(body: Callable[[], object], function: str, message: str) -> None:
    error = refused(NkiValidationError, lambda: ranks(2)(nki.jit(body))())
    rank = 0 if " on rank 0" in error else 1  # both refuse the same, and either may be first
    rest = without_place(error, f"nki.collectives.{function} on rank {rank}")
    assert rest.startswith(message) and (message.endswith(" ") or rest == message)


def reduce_in(src: Any, dst: Any) -> Any:
    """A kernel: an all-reduce from one kind of HBM to another."""

    def kernel(x: Any) -> Any:
        first, second = nl.ndarray(x.shape, x.dtype, src), nl.ndarray(x.shape, x.dtype, dst)
        result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(first, x)
        ncc.all_reduce([first], [second], GROUP, nl.add)
        nisa.dma_copy(result, second)
        return result

    return nki.jit(kernel)


@pytest.mark.parametrize(
    ("src", "dst", "cores", "variables"),
    [
        (H, H, 1, {}),
        (H, S, 1, {"NKI_LNC1_SHARED_HBM": "1"}),
        (S, S, 1, {"NKI_COMPILER_FRONTEND": "custom"}),
        (S, S, 2, {}),
        (S, H, 2, {}),
        (H, S, 2, {}),
    ],
)
def test_which_hbm_is_allowed(
    src: Any, dst: Any, cores: int, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    x = integers(0, 2, 3, 4)
    for result in ranks(2)(reduce_in(src, dst)[cores])(per_rank(x)):
        assert np.array_equal(result, x.astype(np.float64).sum(axis=0))


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        (S, H, "srcs must be in private_hbm where a rank is one core, got tensor [3, 4] float32 in shared_hbm"),
        (H, S, "dsts must be in private_hbm where a rank is one core, unless NKI_LNC1_SHARED_HBM=1 is set, got tensor"),
    ],
)
def test_which_hbm_is_not(src: Any, dst: Any, message: str) -> None:
    error = refused(NkiValidationError, lambda: ranks(2)(reduce_in(src, dst))(per_rank(integers(0, 2, 3, 4))))
    assert f": {message}" in error and error.endswith("run with NKI_COMPILER_FRONTEND=custom")


def test_both_kinds_of_hbm_in_one_list() -> None:
    def kernel() -> None:
        ncc.all_gather([t(2, 3), t(2, 3, memory=S)], [t(4, 3), t(4, 3)], GROUP, 0)

    message = refused(NkiValidationError, lambda: ranks(2)(nki.jit(kernel)[2])())
    assert "srcs must be all in private_hbm or all in shared_hbm, got " in message


def test_what_was_never_written_is_not_sent() -> None:
    kernel = around(lambda src, dst: ncc.all_reduce([dst], [src], GROUP, nl.add), (3, 4), H)
    with using(uninitialized="error"), pytest.raises(NkiValidationError, match=r"operand 'srcs\[0\]': 12 of the 12"):
        ranks(2)(kernel)(per_rank(integers(0, 2, 3, 4)))
