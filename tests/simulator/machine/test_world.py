# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.machine.world`` and ``waits``: threads that meet, and find that nobody can go on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest

from nkilib.simulator.machine.waits import ALLOWANCE, Waits
from nkilib.simulator.machine.world import Participant, Term, World
from nkilib.simulator.terms.errors import BarrierError, CoreAbortedError
from tests.hangs import HANG_SECONDS
from tests.simulator.frame import refused


def comer(rank: int, *members: int, core: int | None = 0, item: object = None, op: str = "add") -> Participant:
    return Participant(rank, core, members, "sum", f"kernel.py:{rank}", (Term("op", op),), item)


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
