# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.ranks``: one kernel on several ranks, each with memory of its own; what goes wrong among them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import (
    ArgumentTypeError,
    BarrierError,
    NkiValidationError,
    OutOfRangeError,
    Spec,
    UninitializedReadError,
    per_rank,
    ranks,
    recording,
    spec,
    using,
)
from tests.hangs import HANG_SECONDS
from tests.simulator.frame import in_time, refused
from tests.simulator.ranked import all_of, around, integers, ncc

GROUP = all_of(2)


def add_one(x: Any, y: Any = None) -> Any:
    """A kernel: x + 1, beside what else it was given."""
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, tile)
    return result, y


def fill(x: Any, value: float) -> Any:
    """A kernel: writes a number into its argument, and returns that."""
    nisa.dma_copy(x, nl.full(x.shape, value, x.dtype, nl.private_hbm))
    return x


def meet(x: Any, dst: Any = None, group: Any = GROUP) -> None:
    """Run an all-reduce of a tensor in private HBM, in a kernel."""
    ncc.all_reduce([x], [nl.ndarray(x.shape, x.dtype, nl.private_hbm) if dst is None else dst], group, nl.add)


def zeros(*shape: int, dtype: Any = nl.float32) -> Any:
    return nl.zeros(shape, dtype, nl.private_hbm)


def by_rank(*bodies: Callable[[], object]) -> Callable[..., None]:
    """A kernel that does `bodies[n]` on rank n."""

    def kernel(number: int) -> None:
        bodies[number]()

    return nki.jit(kernel)


def error_of(*bodies: Callable[[], object], cores: int = 1, timeout: float | None = HANG_SECONDS) -> BaseException:
    """Return what a launch raises on as many ranks as there are bodies; fail if it hangs or raises nothing."""
    kernel = by_rank(*bodies)
    numbers = per_rank(range(len(bodies)))
    error = in_time(lambda: ranks(len(bodies), timeout=timeout)(kernel[cores])(numbers))
    assert error is not None
    return error


# -- arguments and results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_a_list_of_what_each_rank_returns(count: int, cores: int) -> None:
    x = integers(0, count, 2, 3)
    results = ranks(count)(nki.jit(add_one)[cores])(per_rank(list(x)), y="the same on all")
    assert [word for _, word in results] == ["the same on all"] * count
    assert np.array_equal([result for result, _ in results], x + 1)


def test_cores_of_a_rank_as_the_environment_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert ranks(3)(lambda: nl.num_programs(0))() == [2, 2, 2]


def test_keywords_defaults_and_plain_functions() -> None:
    x = integers(0, 2, 2, 3)
    results = ranks(2)(add_one)(y=per_rank("ab"), x=per_rank(x))
    assert [word for _, word in results] == ["a", "b"] and np.array_equal([result for result, _ in results], x + 1)
    assert repr(ranks(2)(nki.jit(add_one)[2])) == "<<simulated NKI kernel add_one[2]> on 2 ranks>"


def test_torch_tensors_come_back_in_kind() -> None:
    import torch

    results = ranks(2)(add_one)(per_rank([torch.ones(2, 2), torch.zeros(2, 2)]))
    assert [result.tolist() for result, _ in results] == [[[2.0, 2.0]] * 2, [[1.0, 1.0]] * 2]


def test_each_rank_writes_its_own_argument() -> None:
    x = [np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)]
    results = ranks(2)(fill)(per_rank(x), per_rank([3.0, 4.0]))
    assert results[0] is x[0] and results[1] is x[1]
    assert [array.tolist() for array in x] == [[[3.0] * 2] * 2, [[4.0] * 2] * 2]


@pytest.mark.parametrize("shares", ["one array", "overlapping parts"])
def test_an_array_of_several_ranks_can_only_be_read(shares: str) -> None:
    x = np.zeros((3, 2), np.float32)
    inputs = x if shares == "one array" else per_rank([x[:2], x[1:]])
    message = refused(NkiValidationError, lambda: ranks(2)(fill)(inputs, 3.0))
    assert " is a read-only input and cannot be written: " in message
    assert message.endswith("; an array of several ranks is one, give each rank its own")
    assert not x.any() and x.flags.writeable
    results = ranks(2)(add_one)(inputs)
    assert all((result == 1).all() for result, _ in results)


def test_a_part_of_an_array_that_others_have_can_only_be_read() -> None:
    whole = np.zeros((4, 2), np.float32)
    apart = np.zeros((2, 2), np.float32)
    results = ranks(3)(add_one)(per_rank([whole[1:3], apart, whole]))
    assert all((result == 1).all() for result, _ in results)
    assert " is a read-only input " in refused(
        NkiValidationError, lambda: ranks(3)(fill)(per_rank([whole[1:3], apart, whole]), 3.0)
    )


def test_parts_that_do_not_overlap_can_be_written() -> None:
    x = np.zeros((2, 2, 2), np.float32)
    ranks(2)(fill)(per_rank([x[:, 0], x[:, 1]]), per_rank([1.0, 2.0]))
    assert x.tolist() == [[[1.0] * 2, [2.0] * 2]] * 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ranks(0), ValueError, "ranks(n): n must be a positive integer, got 0"),
        (
            lambda: ranks(2, timeout=0),
            ValueError,
            "ranks(timeout=...): must be a positive number of seconds or None, got 0",
        ),
        (lambda: per_rank(iter([1])), TypeError, "per_rank takes a sequence with one value a rank, got list_iterator"),
        (lambda: per_rank({1, 2}), TypeError, "per_rank takes a sequence with one value a rank, got set"),
        (
            lambda: ranks(3)(add_one)(per_rank([1, 2])),
            ValueError,
            "add_one: argument 0: per_rank needs one value for each of the 3 ranks, got 2",
        ),
        (
            lambda: ranks(2)(add_one)(),
            ArgumentTypeError,
            "rank 0: add_one: missing a required argument: 'x'",
        ),
        (
            lambda: ranks(2)(add_one)(per_rank([np.ones((2, 2), np.float32), np.ones((2, 2))])),
            ArgumentTypeError,
            "rank 1: add_one: argument 'x': NKI has no type float64; cast it to float32 or bfloat16",
        ),
        (
            lambda: ranks(2)(add_one)(per_rank([np.ones((2, 2), np.float32), spec((2, 2), nl.float32)])),
            ArgumentTypeError,
            "add_one: give a spec to every rank or to none, some have none",
        ),
    ],
)
def test_a_wrong_call(call: Callable[[], object], error: type[Exception], message: str) -> None:
    assert refused(error, call) == message


def test_not_inside_a_kernel() -> None:
    message = refused(NkiValidationError, lambda: nki.jit(lambda: ranks(2)(add_one)(1))())
    assert message.endswith("nkilib.simulator.ranks launches kernels; it does not work inside one")


def test_shapes_without_data() -> None:
    """Collectives are checked and met too."""
    kernel = around(lambda src, dst: ncc.all_gather([src], [dst], GROUP, 0), (4, 3), nl.sbuf)
    assert ranks(2)(kernel)(spec((2, 3), nl.bfloat16)) == [Spec((4, 3), nl.bfloat16)] * 2


def test_a_record_counts_all_ranks() -> None:
    kernel = around(lambda src, dst: ncc.all_reduce([src], [dst], GROUP, nl.add), (2, 3), nl.private_hbm)
    with recording() as record:
        ranks(2)(kernel)(per_rank(integers(0, 2, 2, 3)))
    assert record.instruction_counts == {"dma_copy": 4, "all_reduce": 2}


def test_random_numbers_differ_from_rank_to_rank() -> None:
    def kernel() -> Any:
        made = nl.ndarray((4, 4), nl.float32, nl.shared_hbm)
        nisa.dma_copy(made, nl.rand((4, 4), nl.float32))
        return made

    first, second = ranks(2)(kernel)()
    assert not np.array_equal(first, second)


# -- what does not come together -------------------------------------------------------------------------------


def test_another_operation_names_both_ranks_and_their_lines() -> None:
    def reduces() -> None:
        meet(zeros(2, 3))

    def gathers() -> None:
        ncc.all_gather([zeros(2, 3)], [zeros(4, 3)], GROUP, 0)

    error = error_of(reduces, gathers)
    assert type(error) is BarrierError
    lines = [body.__code__.co_firstlineno + 1 for body in (gathers,)]
    message = str(error)
    assert "ranks must come to the same collective, and differ in the collective: " in message
    assert "rank 0 (core 0) calls all_reduce at " in message and "rank 1 (core 0) calls all_gather at " in message
    assert f"{__file__}:{lines[0]} with all_gather" in message


@pytest.mark.parametrize(
    ("second", "difference"),
    [
        (lambda: meet(zeros(3, 2)), "srcs[0]: "),
        (lambda: meet(zeros(2, 3, dtype=nl.bfloat16)), "srcs[0]: "),
        (lambda: meet(zeros(2, 3), group=ncc.ReplicaGroup([[1, 0]])), "the replica group: "),
        (lambda: ncc.all_reduce([zeros(2, 3)], [zeros(2, 3)], GROUP, nl.maximum), "op: "),
        (
            lambda: ncc.all_reduce(*([nl.zeros((2, 3), nl.float32, nl.sbuf)] for _ in range(2)), GROUP, nl.add),
            "the memory of the tensors: ",
        ),
    ],
    ids=["shape", "type", "order of the group", "operator", "memory"],
)
def test_other_terms(second: Callable[[], None], difference: str) -> None:
    error = error_of(lambda: meet(zeros(2, 3)), second)
    assert type(error) is BarrierError
    assert f"ranks must come to the same collective, and differ in {difference}" in str(error)


def test_lists_that_do_not_fit_each_other() -> None:
    """Rank 1 waits for rank 0, which waits for it elsewhere."""
    groups = [ncc.ReplicaGroup([[0, 1], [2]]), ncc.ReplicaGroup([[0, 1, 2]]), ncc.ReplicaGroup([[0, 1, 2]])]
    error = error_of(*(lambda group=group: meet(zeros(2, 2), group=group) for group in groups))
    assert "and differ in the replica group: " in str(error)
    assert "[[0, 1], [2]]" in str(error) and "[[0, 1, 2]]" in str(error)


def test_groups_that_overlap_one_after_the_other_are_no_deadlock() -> None:
    """1 meets 2 first while 0 waits for 1."""
    first, second = ncc.ReplicaGroup([[0, 1], [2]]), ncc.ReplicaGroup([[0], [1, 2]])

    def both(*groups: Any) -> Callable[[], None]:
        def body() -> None:
            for group in groups:
                meet(zeros(2, 2), group=group)

        return body

    kernel = by_rank(both(first), both(second, first), both(second))
    assert ranks(3, timeout=HANG_SECONDS)(kernel)(per_rank(range(3))) == [None] * 3


def test_a_rank_that_ends_without_coming() -> None:
    error = error_of(lambda: meet(zeros(2, 2)), lambda: None)
    assert type(error) is BarrierError
    message = str(error)
    assert "nki.collectives.all_reduce on rank 0: deadlock: rank 1 cannot come to this all_reduce any more; " in message
    assert (
        f"rank 0 waits in all_reduce at {__file__}:" in message and "; ended: rank 1; every rank must come" in message
    )


def test_ranks_that_wait_for_each_other_in_a_circle() -> None:
    groups = [ncc.ReplicaGroup([list(pair), [other]]) for *pair, other in ([0, 1, 2], [1, 2, 0], [2, 0, 1])]

    def after(first: Any, second: Any) -> Callable[[], None]:
        def body() -> None:
            for group in (first, second):
                meet(zeros(2, 2), group=group)

        return body

    started = time.monotonic()
    error = error_of(after(groups[0], groups[2]), after(groups[1], groups[0]), after(groups[2], groups[1]))
    assert "deadlock: " in str(error) and "; rank 0, rank 1, rank 2 wait in all_reduce at " in str(error)
    assert time.monotonic() - started < 10  # found at once, not by the time limit


@pytest.mark.parametrize("is_core_0", [True, False])
def test_two_cores_of_a_rank_that_wait_apart(is_core_0: bool) -> None:
    """One core of rank 1 waits at a barrier for the other, which waits for rank 0, which has ended."""

    def waits() -> None:
        shared = nl.ndarray((2, 2), nl.float32, nl.shared_hbm)
        if (nl.program_id(0) == 0) is is_core_0:
            meet(zeros(2, 2))
        else:
            nisa.core_barrier(shared, (0, 1))

    error = error_of(lambda: None, waits, cores=2)
    assert type(error) is BarrierError and "deadlock: " in str(error)
    assert "rank 1 core 0 waits in " in str(error) and "rank 1 core 1 waits in " in str(error)
    assert "ended: rank 0 core 0, rank 0 core 1" in str(error)


def test_only_one_core_comes_to_an_operation_of_the_rank() -> None:
    def comes() -> None:
        src, dst = (nl.zeros((2, 2), nl.float32, nl.shared_hbm) for _ in range(2))
        if nl.program_id(0) == 0:
            ncc.all_reduce([src], [dst], GROUP, nl.add)

    error = error_of(comes, comes, cores=2)
    assert type(error) is BarrierError
    assert "all_reduce: the other core ended without reaching this barrier" in str(error)


def test_a_time_limit_for_a_rank_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nkilib.simulator.launch.ranks._GRACE_S", 0.1)  # for a thread that cannot be ended
    is_over = threading.Event()
    try:
        started = time.monotonic()
        kernel = by_rank(lambda: meet(zeros(2, 2)), lambda: is_over.wait(HANG_SECONDS))
        message = refused(BarrierError, lambda: ranks(2, timeout=0.2)(kernel)(per_rank(range(2))))
        assert "rank 1 did not come within 0.2 seconds; rank 0 waits in all_reduce at " in message
        assert message.endswith("give nkilib.simulator.ranks a longer timeout=")
        assert time.monotonic() - started < 10
    finally:
        is_over.set()


def test_without_a_limit() -> None:
    def is_late() -> None:
        time.sleep(0.05)
        meet(zeros(2, 2))

    kernel = by_rank(lambda: meet(zeros(2, 2)), is_late)
    assert ranks(2, timeout=None)(kernel)(per_rank(range(2))) == [None, None]


# -- errors of a rank ------------------------------------------------------------------------------------------


def test_an_error_names_rank_and_core_and_ends_the_others() -> None:
    def reads() -> None:
        unwritten = nl.ndarray((2, 2), nl.float32, nl.sbuf)
        if nl.program_id(0) == 1:
            nisa.tensor_copy(unwritten, unwritten)
        nisa.core_barrier(nl.ndarray((2, 2), nl.float32, nl.shared_hbm), (0, 1))

    with using(uninitialized="error"):
        kernel = by_rank(lambda: meet(zeros(2, 2)), reads)
        message = refused(UninitializedReadError, lambda: ranks(2)(kernel[2])(per_rank(range(2))))
    assert ": nisa.tensor_copy on rank 1, core 1: operand 'src': 4 of the 4 elements" in message


def test_an_error_of_a_view_names_the_rank() -> None:
    error = error_of(lambda: meet(zeros(2, 2)), lambda: zeros(2, 2)[5])
    assert type(error) is OutOfRangeError and ": rank 1: " in str(error)


def test_an_error_of_python_surfaces() -> None:
    error = error_of(lambda: meet(zeros(2, 2)), lambda: 1 // 0, lambda: meet(zeros(2, 2), group=all_of(3)))
    assert type(error) is ZeroDivisionError
    assert f"(on rank 1, {__file__}:" in str(error)


def test_results_are_checked_by_rank() -> None:
    def kernel(number: int) -> Any:
        made = nl.ndarray((2, 2), nl.float32, nl.shared_hbm)
        if number == 0:
            nisa.dma_copy(made, zeros(2, 2))
        return made

    with using(uninitialized="error"):
        message = refused(UninitializedReadError, lambda: ranks(2)(kernel)(per_rank(range(2))))
    assert message.startswith("rank 1: kernel: the kernel returns ")


def test_a_race_names_the_rank() -> None:
    def kernel(number: int) -> None:
        shared = nl.ndarray((2, 2), nl.float32, nl.shared_hbm)
        nisa.dma_copy(shared, nl.full((2, 2), nl.program_id(0) * number, nl.float32, nl.private_hbm))

    with pytest.raises(NkiValidationError, match=r"^rank 1: race on tensor"):
        ranks(2)(nki.jit(kernel)[2])(per_rank(range(2)))
