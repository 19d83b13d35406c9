# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.replay.launch``: which launches run as today, are recorded, and are replayed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextvars import copy_context
from threading import Event, Thread
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.nki import nisa, nki, nl, replayable
from nkilib.simulator import replay_counts
from nkilib.simulator.launch.kernel import Kernel
from nkilib.simulator.launch.settings import LaunchEnvironment
from nkilib.simulator.replay.counts import TALLIES, LaunchCounts
from nkilib.simulator.replay.entries import (
    MOST_COUNTED,
    MOST_KEYS,
    MOST_PLANS,
    MOST_VARIANTS,
    MOST_WAITING,
)
from nkilib.simulator.replay.key import Candidate
from nkilib.simulator.replay.launch import Launches
from tests.hangs import HANG_SECONDS
from tests.simulator.replay.planners import Planner

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def function_of(name: str) -> Callable[..., Any]:
    """A new function that says that it ran."""

    @replayable
    def kernel(x: Any, scale: int = 1) -> Any:
        return ["ran", x * 2]

    kernel.__name__ = name
    return kernel


class Bench:
    """Launches a kernel of a test."""

    def __init__(self, name: str, planner: Planner) -> None:
        self.planner = planner
        self.launches = Launches(planner)
        self.kernel: Kernel = nki.jit(function_of(name))
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """How a launch ran: ``today``, ``recorded`` or ``replayed``. Its result is right."""
        before = self.planner.recorded
        message, result = self.launches.run(self.kernel, args, kwargs, LaunchEnvironment.here(), run_unreplayed)
        assert np.array_equal(result, args[0] * 2)
        if message == "replayed":
            return message
        return "recorded" if self.planner.recorded > before else "today"

    @property
    def counts(self) -> LaunchCounts:
        return TALLIES.so_far().kernels[self.name]


def run_unreplayed(
    kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], environment: LaunchEnvironment
) -> Any:
    return kernel.func(*args, **kwargs)


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield Bench(request.node.name, Planner())


def first_value(candidate: Candidate) -> float:
    return float(candidate.arrays[0].flat[0])


def test_the_first_two_run_as_today_two_are_recorded_and_then_they_are_replayed(bench: Bench) -> None:
    assert [bench(X) for _ in range(6)] == ["today", "today", "recorded", "recorded", "replayed", "replayed"]
    assert bench.counts == LaunchCounts(as_today=2, recorded=2, replayed=2, planned=1)
    assert [bench(X, 2) for _ in range(3)] == ["today", "today", "recorded"]  # another key
    assert bench(X + 1) == "replayed"


def test_without_a_planner_all_run_as_today(bench: Bench) -> None:
    bench.launches = Launches(None)
    assert [bench(X) for _ in range(5)] == ["today"] * 5
    assert len(bench.launches.entries) == 0


def test_what_differs_three_times_is_given_up(bench: Bench) -> None:
    bench.planner.decides = first_value
    ways = [bench(X + number) for number in range(7)]
    assert ways == ["today", "today", "recorded", "recorded", "recorded", "today", "today"]
    assert bench.counts.reasons == {"what it does differs from launch to launch: 3.0 is not 4.0": 3}


def test_one_that_differs_once_is_planned_from_the_two_that_are_equal(bench: Bench) -> None:
    bench.planner.decides = first_value
    ways = [bench(X + number) for number in (0, 0, 0, 1, 0, 0)]
    assert ways == ["today", "today", "recorded", "recorded", "recorded", "replayed"]


def test_values_that_decide_have_a_plan_each_and_the_one_that_was_right_is_asked_first(bench: Bench) -> None:
    bench.planner.decides = first_value
    assert [bench(X) for _ in range(5)][-1] == "replayed"
    assert [bench(X + 1) for _ in range(4)] == ["today", "recorded", "recorded", "replayed"]
    assert [bench(X + number) for number in (0, 1, 0, 1, 1)] == ["replayed"] * 5
    one, other = bench.launches.entries.plans
    assert (one, other) == (bench.planner.built[1], bench.planner.built[0])
    assert bench.counts.failed == 3


def test_values_that_never_come_again_make_it_give_up_and_one_that_does_not(bench: Bench) -> None:
    bench.planner.decides = first_value
    for _ in range(5):
        bench(X)
    assert [bench(X + number) for number in (1, 0, 2, 0, 3, 0, 4, 0, 5, 0)][1::2] == ["replayed"] * 5
    assert [bench(X + number) for number in range(10, 14)] == ["today"] * 4
    assert bench(X) == "today"
    assert [*bench.counts.reasons] == ["values that decide what it does differ from launch to launch"]


def test_a_key_has_only_so_many_plans(bench: Bench) -> None:
    bench.planner.decides = first_value
    for value in range(MOST_VARIANTS):
        ways = [bench(X + value) for _ in range(6)]
        assert ways[-1] == "replayed", value
    ways = [bench(X + MOST_VARIANTS) for _ in range(6)]
    assert set(ways) == {"today"}
    assert len(bench.planner.built) == MOST_VARIANTS


def test_a_refusal_of_the_recorder_is_the_reason(bench: Bench) -> None:
    bench.planner.refusal = "it prints"
    assert [bench(X) for _ in range(5)] == ["today", "today", "recorded", "today", "today"]
    assert bench.counts.reasons == {"it prints": 3}
    bench.planner.refusal = ""


def test_launches_that_cannot_be_planned_are_reported(bench: Bench) -> None:
    bench.planner.decides = lambda argument: "unplannable"
    assert [bench(X) for _ in range(5)] == ["today", "today", "recorded", "recorded", "today"]
    assert bench.counts.reasons == {"it is not to be planned": 2}


def test_an_error_in_planning_is_a_reason_and_an_error_for_developers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.planner.error = KeyError("tile")
    monkeypatch.setenv("NKILIB_REPLAY", "1")
    assert [bench(X) for _ in range(5)] == ["today", "today", "recorded", "recorded", "today"]
    assert bench.counts.reasons == {"planning failed with KeyError: 'tile'": 2}
    monkeypatch.setenv("NKILIB_REPLAY", "strict")
    for _ in range(3):
        bench(X, 2)
    with pytest.raises(KeyError, match="tile"):
        bench(X, 2)


def test_errors_of_the_kernel_are_raised_and_count_for_nothing(bench: Bench) -> None:
    @replayable
    def failing(x: Any, is_wrong: Any) -> Any:
        if is_wrong[0]:
            raise ValueError("wrong")
        return ["ran", x * 2]

    bench.kernel = nki.jit(failing)
    wrong, right = np.ones(1, np.int32), np.zeros(1, np.int32)
    for _ in range(5):
        with pytest.raises(ValueError, match="wrong"):
            bench(X, wrong)
    assert [bench(X, right) for _ in range(2)] == ["today", "today"]
    with pytest.raises(ValueError, match="wrong"):
        bench(X, wrong)
    assert [bench(X, right) for _ in range(3)] == ["recorded", "recorded", "replayed"]


def test_an_error_of_a_plan_is_raised_and_the_plan_is_not_used_again(bench: Bench) -> None:
    for _ in range(5):
        bench(X)

    def decides(candidate: Candidate) -> Any:
        raise ZeroDivisionError

    bench.planner.built[0].decides = decides
    with pytest.raises(ZeroDivisionError):
        bench(X)
    assert bench(X) == "today"
    assert bench.counts.reasons == {"its plan failed with an error": 1}


def test_plans_that_take_too_much_memory_are_not_kept(bench: Bench) -> None:
    bench.planner.nbytes = 2**40
    assert [bench(X) for _ in range(5)][-1] == "today"
    assert [*bench.counts.reasons] == ["its plan would take 1,099,511,627,776 bytes, more than 268,435,456"]


def test_the_plan_used_longest_ago_goes_when_bytes_or_plans_are_too_many(bench: Bench) -> None:
    bench.planner.nbytes = 2**27
    for scale in (1, 2, 3):
        assert [bench(X, scale) for _ in range(5)][-1] == "replayed"
    assert (bench(X, 1), bench(X, 2), bench(X, 3)) == ("recorded", "replayed", "replayed")
    bench.planner.nbytes = 8
    for scale in range(10, 10 + MOST_PLANS):
        assert [bench(X, scale) for _ in range(5)][-1] == "replayed"
    assert len([*bench.launches.entries.plans]) == MOST_PLANS
    assert (bench(X, 3), bench(X, 10)) == ("recorded", "replayed")


def test_more_launches_than_plans_in_turn_are_given_up_and_not_recorded_for_ever(bench: Bench) -> None:
    for _ in range(30):
        for scale in range(MOST_PLANS + 8):
            bench(X, scale)
    recorded = bench.planner.recorded
    for _ in range(5):
        for scale in range(MOST_PLANS + 8):
            bench(X, scale)
    assert bench.planner.recorded <= recorded + 2


def test_ten_thousand_launches_of_changing_shapes_keep_a_bounded_number_of_keys(bench: Bench) -> None:
    entries = bench.launches.entries
    for number in range(10_000):
        bench(np.zeros(1 + number, np.float32))
        assert len(entries._ended) <= MOST_COUNTED
    assert len(entries) == bench.planner.recorded == 0
    for number in range(3 * 2000):
        bench(np.zeros(1 + number // 3, np.int32))
        assert len(entries) <= MOST_KEYS
        assert len(entries._ended) <= MOST_COUNTED + MOST_KEYS
    assert len(entries) > MOST_KEYS // 2
    assert sum(len(entry.waiting) for entry in entries._entries.values()) <= MOST_WAITING


def test_launches_of_more_keys_than_are_kept_are_not_recorded_for_ever(bench: Bench) -> None:
    for _ in range(20):
        for scale in range(2 * MOST_KEYS):
            bench(X, scale)
    assert bench.planner.recorded <= 4 * MOST_KEYS
    assert bench.counts.as_today >= 16 * MOST_KEYS


def test_a_kernel_that_is_gone_takes_its_plans_along(bench: Bench) -> None:
    for _ in range(5):
        bench(X)
    assert len([*bench.launches.entries.plans]) == 1
    bench.kernel = nki.jit(function_of("another"))
    bench(X)
    assert len([*bench.launches.entries.plans]) == 0
    assert len(bench.launches.entries) == 0


def test_a_launch_of_another_thread_that_runs_the_same_plan_runs_as_today(bench: Bench) -> None:
    for _ in range(5):
        bench(X)
    is_in, may_go = Event(), Event()

    def decides(candidate: Candidate) -> int:
        is_in.set()
        may_go.wait(HANG_SECONDS)
        return 0

    bench.planner.built[0].decides = decides
    ways: list[str] = []
    # With the options of this thread: they are in the key.
    thread = Thread(target=copy_context().run, args=(lambda: ways.append(bench(X)),))
    thread.start()
    assert is_in.wait(HANG_SECONDS)
    assert bench(X) == "today"
    may_go.set()
    thread.join()
    assert ways == ["replayed"]
    assert bench.counts.reasons == {"the same launch runs in another thread": 1}


def test_many_threads_get_right_results(bench: Bench) -> None:
    errors: list[BaseException] = []

    def launch(number: int) -> None:
        try:
            for step in range(200):
                bench(np.full(2 + step % 7, number + step, np.float32), step % 3)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=copy_context().run, args=(launch, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    counts = bench.counts
    assert counts.as_today + counts.recorded + counts.replayed == 1600
    assert counts.replayed > 100


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"replay": False}, "replay is off"),
        ({"races": "warn"}, 'a check is at level "warn"'),
        ({"frontend": "custom"}, "the front end is custom"),
    ],
)
def test_options_keep_launches_from_being_replayed(changes: dict[str, Any], reason: str, bench: Bench) -> None:
    for _ in range(5):
        bench(X)
    with nkilib.simulator.using(**changes):
        assert bench(X) == "today"
    assert bench.counts.reasons == {reason: 1}
    assert bench(X) == "replayed"


STATES_NOTHING = "it does not state that it may be replayed: nkilib.nki.replayable"


def test_a_kernel_that_states_nothing_is_not_even_looked_at(bench: Bench) -> None:
    bench.kernel = nki.jit(lambda x: ["ran", x * 2])
    assert [bench(X) for _ in range(6)] == ["today"] * 6
    assert len(bench.launches.entries) == len(bench.launches.entries._ended) == 0
    assert TALLIES.so_far().kernels["<lambda>"].reasons[STATES_NOTHING] >= 6
    with nkilib.simulator.using(replay="always"):
        assert [bench(X) for _ in range(5)][-1] == "replayed"
    assert bench(X) == "today"


class Reads:
    """The scale that a kernel reads, in one of the many places that nobody can watch."""

    scale = 2.0


def reads_a_class(x: Any) -> Any:
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, Reads.scale)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nl.store(result, tile)
    return result


def test_only_a_wrong_statement_makes_a_stale_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKILIB_REPLAY", "1")
    silent = nki.jit(reads_a_class)
    wrong = replayable(nki.jit(FunctionType(reads_a_class.__code__, globals(), "wrong")))
    for _ in range(5):
        assert (silent(X) == 2 * X).all() and (wrong(X) == 2 * X).all()
    monkeypatch.setattr(Reads, "scale", 3.0)
    assert (silent(X) == 3 * X).all()
    assert (wrong(X) == 2 * X).all()
    assert replay_counts().kernels["wrong"].replayed == 2


def test_under_smaller_limits_of_plans_no_launch_is_replayed(bench: Bench) -> None:
    for _ in range(5):
        bench(X)
    with shrunk(PlanLimits(parts=1)):
        assert bench(X) == "today"
    assert bench.counts.reasons == {"replay is off": 1}
    assert bench(X) == "replayed"


def test_an_observed_launch_is_not_replayed(bench: Bench) -> None:
    for _ in range(5):
        bench(X)
    with nkilib.simulator.recording():
        assert bench(X) == "today"
    assert bench.counts.reasons == {"the launch is observed": 1}


def test_a_traced_launch_is_not_replayed(bench: Bench) -> None:
    for _ in range(5):
        bench(X)
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        assert bench(X) == "today"
    finally:
        sys.settrace(before)
    assert bench.counts.reasons == {"a debugger or a tracer is active": 1}


def test_arguments_without_a_key_run_as_today_for_a_reason(bench: Bench) -> None:
    assert [bench(X[:, ::2]) for _ in range(5)] == ["today"] * 5
    assert bench.counts.reasons == {"argument 'x' is an array that is not C-contiguous": 5}
