# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The critical path is the whole time without a gap, and the recorded instructions are enough to time it again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nkilib.experimental.loss import Tiling
from nkilib.experimental.loss.profiling import profile_launch
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, ModelParameters, Profile, profile, spec, using
from nkilib.simulator.profiling.why import critical_path as cores
from nkilib.simulator.profiling.why.critical_path import LinkKind, critical_path
from nkilib.simulator.profiling.why.facts import Facts
from nkilib.simulator.profiling.why.retiming import retimed_ns
from tests.simulator.profiling.why import faulty


def exchange(x: Any) -> None:
    """The cores swap tiles; core 1 has more to do before."""
    mine, theirs = faulty.tile(512), faulty.tile(512)
    nisa.dma_copy(mine, x[0:128, 0:512])
    for _ in range(nl.program_id(0) * 4):
        nisa.tensor_scalar(mine, mine, nl.multiply, 2.0)
    nisa.sendrecv(mine, theirs, 1 - nl.program_id(0), 1 - nl.program_id(0), pipe_id=0)
    nisa.tensor_tensor(mine, mine, theirs, nl.add)


def gathering(x: Any) -> None:
    rows, some = nl.ndarray((128, 1), nl.int32), faulty.tile(512)
    nisa.iota(rows, [[1, 1]], channel_multiplier=2)
    for _ in range(3):
        nisa.dma_copy(some, x.ap([[faulty.WIDE, 128], [1, 512]], vector_offset=rows))


def device_loop(x: Any) -> None:
    """All engines meet at each iteration of a loop of the device."""
    loaded, scaled = faulty.tile(512), faulty.tile(512)

    def body(i: Any) -> None:
        nisa.dma_copy(loaded, x[nl.ds(i * 128, 128), 0:512])
        nisa.tensor_scalar(scaled, loaded, nl.multiply, 2.0)
        nisa.activation(scaled, nl.exp, scaled)

    nl.fori_loop(0, 4, body)
    nisa.dma_copy(x[0:128, 0:512], scaled)


def long_loop(x: Any) -> None:
    """Iterations that are alike need not run."""
    loaded = faulty.tile(512)

    def body(i: Any) -> None:
        nisa.dma_copy(loaded, x[0:128, 0:512])
        nisa.tensor_scalar(faulty.tile(512), loaded, nl.multiply, 2.0)

    nl.fori_loop(0, 500, body)


DRAINED = {"loops_drain": True, "iterations_drain": True, "loop_entry_us": 3.0, "loop_iteration_us": 1.0}


def of_a_kernel(kernel: Any, cores: int = 1, **assumptions: Any) -> Profile:
    inputs = spec((1024, faulty.WIDE), nl.float32)
    return profile(nki.jit(kernel)[cores], inputs, parameters=ModelParameters(**assumptions))


def of_the_library(direction: str, cores: int, target: str, tiling: Tiling, **options: Any) -> Profile:
    return profile_launch(300, 9000, "bfloat16", direction, tiling, target=target, cores=cores, **options)


PROFILES = {
    "forward": lambda: of_the_library("forward", 2, "trn2", Tiling(64, 1500)),
    "backward": lambda: of_the_library("backward", 1, "trn3", Tiling(8, 700)),
    "extended": lambda: of_the_library(
        "forward", 2, "trn2", Tiling(32, 1500), extended=True, logit_softcap=30.0, with_entropy=True
    ),
    "exchange": lambda: of_a_kernel(exchange, 2),
    "gathers": lambda: of_a_kernel(gathering),
    "one queue": lambda: of_a_kernel(faulty.one_buffer, queues_by_direction=False, trigger_us=0.85),
    "device loop": lambda: of_a_kernel(device_loop, **DRAINED),
    "long loop": lambda: of_a_kernel(long_loop),
    "long loop with pauses": lambda: of_a_kernel(long_loop, **DRAINED),
    "device loop without a cost": lambda: of_a_kernel(device_loop, loops_drain=False, iterations_drain=False),
    "barriers": lambda: of_a_kernel(faulty.barriers, 2),
}


@pytest.mark.parametrize("name", PROFILES)
def test_the_path_is_the_whole_time_without_a_gap(name: str) -> None:
    profiled = PROFILES[name]()
    links = critical_path(profiled.recorded.launch)
    assert links[0].start_ns == 0.0
    assert links[-1].end_ns / 1000 == pytest.approx(profiled.time_us, rel=1e-12)
    for before, after in itertools.pairwise(links):
        assert before.end_ns == after.start_ns
        assert after.duration_ns > 0.0
    assert sum(profiled.critical_path_us.values()) == pytest.approx(profiled.time_us)
    assert sum(profiled.critical_path_us_by_line.values()) == pytest.approx(profiled.time_us)


def retimed_us(profiled: Profile) -> float:
    launch = profiled.recorded.launch
    return retimed_ns([core.program for core in launch.cores], launch.model) / 1000


@pytest.mark.parametrize("name", PROFILES)
def test_the_recorded_instructions_take_the_same_time_again(name: str) -> None:
    profiled = PROFILES[name]()
    assert retimed_us(profiled) == pytest.approx(profiled.time_us, rel=1e-12)


def test_the_path_goes_through_the_core_that_comes_last() -> None:
    """Core 0 waits for core 1, whose four instructions are on the path."""
    links = critical_path(PROFILES["exchange"]().recorded.launch)
    assert sum(link.kind is LinkKind.work and link.core == 1 for link in links) >= 4
    assert [link.core for link in links if link.kind is LinkKind.work][:4] == [1, 1, 1, 1]


def test_loops_at_which_all_engines_synchronise_are_on_the_path() -> None:
    path = PROFILES["device loop"]().critical_path_us
    assert path["loops of the device"] >= 3.0 + 3 * 1.0


def test_a_path_by_hand() -> None:
    """A load of 4 MiB, the product on Vector, the store: times of the model's page."""

    def kernel(x: Any) -> None:
        loaded = faulty.tile()
        nisa.dma_copy(loaded, x[0:128])
        nisa.tensor_scalar(loaded, loaded, nl.multiply, 2.0)
        nisa.dma_copy(x[0:128], loaded)

    profiled = profile(nki.jit(kernel), spec((1024, faulty.WIDE), nl.float32), parameters=AS_ISSUED)
    rows = 8 * 4 * faulty.WIDE / 23 / 1000  # eight partitions an engine, 23 bytes a nanosecond
    expected = {
        "moving rows": 2 * rows,
        "vector": faulty.WIDE / 0.96 / 1000,
        "before the first row of a transfer": 2.0,
        "until another engine can use a result: dma": 0.6,
        "until another engine can use a result: vector": 0.21,
    }
    assert profiled.critical_path_us == pytest.approx(expected)


def test_a_gather_waits_longer_for_its_first_row() -> None:
    """Three gathers, one after the other into one tile."""
    path = of_a_kernel(gathering, indirect_base_us=5.0).critical_path_us
    assert path["before the first row of a transfer"] == pytest.approx(3 * 5.0)


def test_the_path_is_that_of_the_target() -> None:
    with using(target="trn3"):
        result = of_a_kernel(faulty.two_functions)
    assert result.generation == "trn3"
    assert retimed_us(result) == pytest.approx(result.time_us, rel=1e-12)


@pytest.mark.parametrize("name", ["forward", "exchange", "barriers", "device loop"])
def test_of_a_long_launch_the_end_is_looked_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = critical_path(PROFILES[name]().recorded.launch)
    profiled = PROFILES[name]()
    most = max(len(core.notes) for core in profiled.recorded.launch.cores) // 2
    monkeypatch.setattr(cores, "MOST_ANALYSED", most)
    links = critical_path(profiled.recorded.launch)
    assert 0 < len(links) < len(whole)
    assert links == whole[-len(links) :]
    assert f"critical path, last {sum(profiled.critical_path_us.values()):,.1f} us" in str(profiled)
    facts = Facts(profiled.recorded.launch, profiled.engine_busy_us)
    assert facts.time_ns == pytest.approx(sum(link.duration_ns for link in links))
    shares = facts.busy_shares
    assert shares == pytest.approx(profiled.engine_utilisation) and max(shares.values()) <= 1.0


def test_repeated_iterations_are_looked_at_like_others() -> None:
    profiled = PROFILES["long loop"]()
    assert profiled.recorded._cores[0][1].repeats
    (loops,) = [finding for finding in profiled.why if finding.about == "loops"]
    assert "500 times, first before test_critical_path.py:" in loops.text
