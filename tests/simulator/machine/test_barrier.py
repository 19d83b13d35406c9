# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.machine.barrier`` and ``nisa.core_barrier``: two cores meet, and never hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import BarrierError, NkiValidationError
from nkilib.simulator.machine.barrier import CoreBarrier
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
