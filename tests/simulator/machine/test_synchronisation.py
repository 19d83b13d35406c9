# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cores and ranks that wait for each other: they meet, and find out when nobody can go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import BarrierError, NkiValidationError
from nkilib.simulator.machine.synchronisation import ALLOWANCE, AgreedProperty, CoreBarrier, Participant, Waits, World
from nkilib.simulator.terms.errors import CoreAbortedError
from tests.hangs import HANG_SECONDS
from tests.simulator.frame import refused, run, without_place

NOT_REACHED = "core_barrier: the other core ended without reaching this barrier"


class Waiter(threading.Thread):
    """A core that waits at a barrier `times` times, and what came of it."""

    def __init__(self, barrier: CoreBarrier, times: int = 1) -> None:
        super().__init__(daemon=True)
        self.passed = 0
        self.error: BaseException | None = None
        self._barrier = barrier
        self._times = times
        self.start()

    def run(self) -> None:
        try:
            for _ in range(self._times):
                self._barrier.wait()
                self.passed += 1
        except BaseException as error:
            self.error = error

    def ended(self) -> Waiter:
        self.join(HANG_SECONDS)
        assert not self.is_alive(), "the core hangs"
        return self


def test_cores_pass_together() -> None:
    barrier = CoreBarrier(2)
    first = Waiter(barrier)
    first.join(0.05)
    assert first.is_alive() and first.passed == 0
    barrier.wait()
    assert first.ended().passed == 1 and first.error is None


def test_the_barrier_can_be_used_again() -> None:
    barrier = CoreBarrier(2)
    cores = [Waiter(barrier, 500), Waiter(barrier, 500)]
    assert [(core.ended().passed, core.error) for core in cores] == [(500, None)] * 2


def test_one_core_alone_does_not_wait() -> None:
    core = Waiter(CoreBarrier(1)).ended()
    assert core.passed == 1 and core.error is None


@pytest.mark.parametrize(
    ("release", "error"),
    [
        (lambda barrier: barrier.finish(1), BarrierError),
        (lambda barrier: barrier.fail(1, 0), CoreAbortedError),
        (CoreBarrier.abort, CoreAbortedError),
    ],
    ids=["ends", "fails", "is interrupted"],
)
@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_core_that_ended_or_failed_releases_the_other(
    release: Callable[[CoreBarrier], None], error: type[BaseException], is_waiting: bool
) -> None:
    barrier = CoreBarrier(2)
    if is_waiting:
        core = Waiter(barrier)
        core.join(0.05)
        release(barrier)
    else:
        release(barrier)
        core = Waiter(barrier)
    assert type(core.ended().error) is error and core.passed == 0
    assert barrier.is_aborted == (error is CoreAbortedError)


def test_a_core_may_end_after_the_last_barrier() -> None:
    barrier = CoreBarrier(2)
    first = Waiter(barrier)
    barrier.wait()
    barrier.finish(1)
    assert first.ended().passed == 1 and first.error is None


def test_cores_that_synchronise_receive_the_tensors_of_the_others() -> None:
    barrier = CoreBarrier(3)
    received: dict[int, list[Any]] = {}

    def core(number: int) -> None:
        received[number] = barrier.meet("here", number)

    threads = [threading.Thread(target=core, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert {number: sorted(others) for number, others in received.items()} == {0: [1, 2], 1: [0, 2], 2: [0, 1]}


def test_cores_at_unlike_places_are_both_named() -> None:
    barrier = CoreBarrier(2)
    first = Waiter(barrier)
    first.join(0.05)
    with pytest.raises(BarrierError, match=r"^there: the other core waits in core_barrier instead; "):
        barrier.meet("there")
    assert str(first.ended().error).startswith("core_barrier: the other core waits in there instead; ")


def test_a_core_that_left_with_an_error_does_not_count() -> None:
    """Whoever comes next waits, or is told that nobody comes; it does not pass alone."""
    barrier = CoreBarrier(2)
    barrier.finish(1)
    for _ in range(3):
        with pytest.raises(BarrierError):
            barrier.wait()


# -- in kernels ------------------------------------------------------------------------------------------------


def exchange(x: Any, barriers: tuple[int, int]) -> Any:
    """A kernel: each core stores a row, waits as often as `barriers` says, and copies the other core's row."""
    core = nl.program_id()
    shared = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(shared[core], x[core])
    for _ in range(barriers[core]):
        nisa.core_barrier(shared, (0, 1))
    nisa.dma_copy(result[core], shared[1 - core])
    return result


def test_what_a_core_stored_before_the_barrier_the_other_reads_after_it() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for _ in range(20):
        np.testing.assert_array_equal(run(exchange, x, (1, 1), cores=2), x[::-1])


@pytest.mark.parametrize(("barriers", "core"), [((1, 0), 0), ((0, 1), 1), ((3, 2), 0)])
def test_a_barrier_that_the_other_core_cannot_reach_is_an_error(barriers: tuple[int, int], core: int) -> None:
    def kernel(x: Any) -> None:
        for _ in range(barriers[nl.program_id()]):
            nisa.core_barrier(nl.ndarray(x.shape, x.dtype, nl.shared_hbm), (0, 1))

    x = np.zeros((2, 4), np.float32)
    message = refused(BarrierError, lambda: run(kernel, x, cores=2))
    assert without_place(message, f"nisa.core_barrier on core {core}") == NOT_REACHED


@pytest.mark.parametrize(
    ("cores", "launched", "message"),
    [
        ((0,), 2, "cores must be (0, 1), got (0,)"),
        ((1, 0), 2, "cores must be (0, 1), got (1, 0)"),
        (2, 2, "cores must be (0, 1), got 2"),
        ((1, 0), 1, "cores must be (0, 1), got (1, 0)"),
    ],
)
def test_what_is_no_barrier_of_two_cores_is_refused(cores: Any, launched: int, message: str) -> None:
    def kernel() -> None:
        nisa.core_barrier(nl.ndarray((1,), nl.int32, nl.shared_hbm), cores)

    error = refused(NkiValidationError, lambda: run(kernel, cores=launched))
    assert error.partition(": nisa.core_barrier")[2].partition(": ")[2] == message


def test_a_barrier_is_of_a_tensor_in_shared_memory() -> None:
    def kernel(buffer: Any) -> None:
        nisa.core_barrier(nl.ndarray((2, 2), nl.int32, buffer), [0, 1], nisa.engine.vector)

    run(kernel, nl.shared_hbm, cores=2)
    message = refused(NkiValidationError, lambda: run(kernel, nl.private_hbm, cores=2))
    expected = "operand 'data' must be in shared_hbm, got tensor [2, 2] int32 in private_hbm"
    assert message.endswith(expected)


def comer(rank: int, *members: int, core: int | None = 0, item: object = None, op: str = "add") -> Participant:
    return Participant(rank, core, members, "sum", f"kernel.py:{rank}", (AgreedProperty("op", op),), item)


class Thread(threading.Thread):
    """A core of a world, and what came of it."""

    def __init__(self, world: World, *comers: Participant) -> None:
        super().__init__(daemon=True, name=f"rank {comers[0].rank}")
        self.met: list[Mapping[int, Any]] = []
        self.error: BaseException | None = None
        self._world = world
        self._comers = comers
        self.start()

    def run(self) -> None:
        try:
            for item in self._comers:
                self.met.append(self._world.meet(item))
        except BaseException as error:
            self.error = error

    def ended(self) -> Thread:
        self.join(HANG_SECONDS)
        assert not self.is_alive(), "the core hangs"
        return self


def test_members_get_what_all_brought() -> None:
    world = World(3, 1, None)
    threads = [Thread(world, comer(rank, 0, 1, 2, item=rank * 10)) for rank in range(3)]
    assert [thread.ended().met for thread in threads] == [[{0: 0, 1: 10, 2: 20}]] * 3


def test_cores_of_unlike_numbers_do_not_synchronise() -> None:
    world = World(2, 2, None)
    threads = [Thread(world, comer(rank, 0, 1, core=core, item=core)) for rank in range(2) for core in range(2)]
    assert [thread.ended().met for thread in threads] == [[{0: core, 1: core}] for _ in range(2) for core in range(2)]


def test_who_comes_again_waits_for_the_next_meeting() -> None:
    world = World(2, 1, None)
    threads = [Thread(world, *(comer(rank, 0, 1, item=(rank, turn)) for turn in range(50))) for rank in range(2)]
    expected = [{0: (0, turn), 1: (1, turn)} for turn in range(50)]
    assert [thread.ended().met for thread in threads] == [expected] * 2


@pytest.mark.parametrize("core", [0, None])
def test_unlike_terms(core: int | None) -> None:
    """Also where one comes for its whole rank."""
    world = World(2, 1, None)
    first = Thread(world, comer(0, 0, 1))
    first.join(0.05)
    message = refused(BarrierError, lambda: world.meet(comer(1, 0, 1, core=core, op="max")))
    shown = " (core 0)" if core == 0 else ""
    assert message == (
        "ranks must come to the same collective, and differ in op: rank 0 (core 0) calls sum at kernel.py:0 with add, "
        f"and rank 1{shown} calls sum at kernel.py:1 with max"
    )
    error = first.ended().error
    assert type(error) is BarrierError and str(error) == message


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_with_unlike_terms_the_lowest_rank_fails_in_whatever_order_they_come(order: tuple[int, ...]) -> None:
    world, threads = World(3, 1, None), {}
    for rank in order:
        threads[rank] = Thread(world, comer(rank, 0, 1, 2, op="max" if rank == 2 else "add"))
        threads[rank].join(0.01)
    text = str(threads[0].ended().error)
    assert text.startswith("ranks must come to the same collective, and differ in op: rank 0 ")
    assert "rank 2 (core 0)" in text


def test_the_last_one_to_end_leaves_the_others_stuck() -> None:
    world = World(2, 1, None)
    barriers = [world.barrier() for _ in range(2)]
    first = Thread(world, comer(0, 0, 1))
    first.join(0.05)
    assert first.is_alive()
    barriers[1].finish(1)
    error = first.ended().error
    assert type(error) is BarrierError
    assert str(error).startswith(
        "deadlock: rank 1 cannot come to this sum any more; rank 0 waits in sum at kernel.py:0; "
    )


def test_a_failure_ends_those_that_wait() -> None:
    world = World(2, 1, None)
    barrier = world.barrier()
    first = Thread(world, comer(0, 0, 1))
    first.join(0.05)
    world.abort()
    assert type(first.ended().error) is CoreAbortedError and barrier.is_aborted
    with pytest.raises(CoreAbortedError):
        world.meet(comer(1, 0, 1))


def test_a_time_limit() -> None:
    world = World(3, 1, 0.05)
    error = Thread(world, comer(0, 0, 1, 2)).ended().error
    assert type(error) is BarrierError
    assert str(error) == (
        "ranks 1, 2 did not come within 0.05 seconds; rank 0 waits in sum at kernel.py:0; if the rank only takes "
        "longer, give nkilib.simulator.ranks a longer timeout="
    )


def test_who_is_released_does_not_count_as_waiting() -> None:
    """Though it may not have woken yet: else the one that released it and waits next would be taken for stuck."""
    waits = Waits(2)
    with waits.changed:
        first = waits.begin("one place")
        waits.release([first])
        waits.begin("another")
        assert not waits.is_stuck
        waits.begin("a third")
        assert waits.is_stuck
        assert waits.describe() == "MainThread waits in another; MainThread waits in a third"


def test_beside_a_failed_core_another_one_may_run_to_an_error_of_its_own() -> None:
    """Cores run much the same program, so that it takes about as many instructions."""
    waits = Waits(2)
    with waits.changed:
        assert waits.may_go_on(10**9)
        waits.finish(1, failed_after=10)
        assert waits.may_go_on(11) and waits.may_go_on(10 + ALLOWANCE)
        assert not waits.may_go_on(11 + ALLOWANCE)
        waits.finish(0)
        assert not waits.may_go_on(11)
