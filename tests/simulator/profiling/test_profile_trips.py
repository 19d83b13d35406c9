# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How often a profile from shapes runs loops whose bounds only the device knows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, Profile, profile, spec, states_trips, using

FP32, INT32 = nl.float32, nl.int32
ROWS, COLUMNS = 1024, 256


def exp_of_blocks(x: Any, count: Any) -> None:
    """``exp`` of the first ``count`` blocks of 128 rows, in place."""
    flag = nl.ndarray((1, 1), INT32)
    nisa.dma_copy(flag, count)

    def again(i: Any) -> None:
        tile = nl.ndarray((128, x.shape[1]), x.dtype)
        nisa.dma_copy(tile, x[nl.ds(i * 128, 128)])
        nisa.activation(tile, nl.exp, tile)
        nisa.dma_copy(x[nl.ds(i * 128, 128)], tile)

    nl.fori_loop(0, nisa.scalar_load(flag), again)


silent = nki.jit(exp_of_blocks)
LINE = f"test_profile_trips.py:{exp_of_blocks.__code__.co_firstlineno + 11}"


@nki.jit
@states_trips(lambda x, **_: {"again": x.shape[0] // 128})
def stating(x: Any, count: Any) -> None:
    exp_of_blocks(x, count)


def shapes() -> tuple[Any, Any]:
    return spec((ROWS, COLUMNS), FP32), spec((1, 1), INT32)


def arrays(count: int) -> tuple[Any, Any]:
    return np.ones((ROWS, COLUMNS), np.float32), np.array([[count]], np.int32)


def exps(result: Profile) -> int:
    return result.instruction_counts.get("activation", 0)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_shapes_with_stated_trips_take_what_arrays_take(count: int, cores: int) -> None:
    with using(races="ignore"):
        by_values = profile(silent[cores], *arrays(count))
    for trips in (count, {"again": count}, {LINE: count}):
        assert profile(silent[cores], *shapes(), trips=trips) == by_values
    assert by_values.trips == {f"again ({LINE})": count}
    assert exps(by_values) == cores * count


def test_a_kernel_that_states_its_most_is_profiled_with_none_and_with_all() -> None:
    profiled = profile(stating, *shapes())
    everything = profiled.with_all_trips
    assert everything is not None
    assert (exps(profiled), exps(everything)) == (0, 8)
    assert profiled.time_us < everything.time_us
    assert profile(stating, *shapes(), trips="all") == everything
    none = profile(stating, *shapes(), trips="none")
    assert (none.time_us, none.with_all_trips) == (profiled.time_us, None)
    assert profile(stating, *arrays(3)).with_all_trips is None
    assert pickle.loads(pickle.dumps(profiled)) == profiled


def test_the_table_says_how_often_loops_ran() -> None:
    profiled = profile(stating, *shapes())
    assert profiled.with_all_trips is not None
    words = " ".join(str(profiled).partition("\n\n")[0].split())
    assert (
        "loops: data on the device decide how often some loops run; this profile runs "
        f"again ({LINE}) 0 times; with the most that the kernel states (8) it takes "
        f"{profiled.with_all_trips.time_us:,.1f} us"
    ) in words
    assert f"this profile runs again ({LINE}) 1 time limit:" in " ".join(
        str(profile(silent, *shapes(), trips=1)).split()
    )


def test_without_a_word_the_loop_is_refused_with_what_to_say() -> None:
    with pytest.raises(NkiValidationError) as caught:
        profile(silent, *shapes())
    message = str(caught.value)
    assert message.startswith(f"{__file__.removesuffix('test_profile_trips.py')}{LINE}: nl.fori_loop: upper is a value")
    for words in ("pass arrays", "trips=n", "trips={'again': n}", "states_trips"):
        assert words in message
    with pytest.raises(NkiValidationError, match=r"nl\.fori_loop: upper is a value"):
        silent(*shapes())  # a launch that nobody profiles


def test_trips_that_mean_nothing_are_refused() -> None:
    with pytest.raises(NkiValidationError, match=f"trips names 'other', but not 'again' or '{LINE}'"):
        profile(silent, *shapes(), trips={"other": 1})
    with pytest.raises(ValueError, match=r"trips names 'other', and the kernel ran no such loop .* it ran: again"):
        profile(silent, *shapes(), trips={"again": 1, "other": 1})
    for wrong, error in ((-1, ValueError), ("some", ValueError), (1.5, TypeError), (True, TypeError), ([1], TypeError)):
        with pytest.raises(error, match=r"profile: trips must"):
            profile(silent, *shapes(), trips=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trips='all' asks for as many as the kernel states, and it states none"):
        profile(silent, *shapes(), trips="all")
    with pytest.raises(ValueError, match="trips is for a profile from shapes"):
        profile(silent, *arrays(1), trips=1)


def test_trips_behind_the_end_of_a_tensor_are_refused() -> None:
    with pytest.raises(NkiValidationError, match=r"index 1024 of .* is out of range"):
        profile(silent, *shapes(), trips=9)


def test_a_loop_without_iterations_hides_the_loops_in_its_body() -> None:
    @nki.jit
    def kernel(count: Any) -> None:
        flag = nl.ndarray((1, 1), INT32)
        nisa.dma_copy(flag, count)

        def inner(_: Any) -> None:
            nisa.memset(nl.ndarray((128, 64), FP32), 0.0)

        def outer(_: Any) -> None:
            nl.fori_loop(0, nisa.scalar_load(flag), inner)

        nl.fori_loop(nisa.scalar_load(flag), 8, outer)

    def memsets(**trips: int) -> int:
        return profile(kernel, spec((1, 1), INT32), trips=trips).instruction_counts.get("memset", 0)

    assert memsets(outer=3, inner=4) == 12
    assert memsets(outer=0, inner=4) == 0
    assert profile(kernel, spec((1, 1), INT32), trips={"outer": 3, "inner": 4}).trips == {
        name: count
        for name, count in zip(
            sorted(profile(kernel, np.array([[5]], np.int32)).trips, key=lambda name: "inner" in name),
            (3, 12),
            strict=True,
        )
    }


def test_a_while_loop_runs_as_often_as_stated() -> None:
    @nki.jit
    def kernel(count: Any) -> None:
        flag, register = nl.ndarray((1, 1), INT32), nisa.register_alloc()
        nisa.dma_copy(flag, count)
        nisa.register_load(register, flag)

        def body(_: Any) -> Any:
            nisa.dma_copy(flag, count)
            following = nisa.register_alloc()
            nisa.register_load(following, flag)
            return following

        nl.while_loop(register, body)

    for trips in (0, 1, 4):
        profiled = profile(kernel, spec((1, 1), INT32), trips={"body": trips})
        assert profiled.instruction_counts["dma_copy"] == 1 + trips
        assert list(profiled.trips.values()) == [trips]
    with pytest.raises(NkiValidationError, match=r"nl\.while_loop: the condition is a value"):
        profile(kernel, spec((1, 1), INT32))


def test_the_loops_of_0_6_take_trips_too() -> None:
    @nki.jit
    def kernel(count: Any) -> None:
        flag, register = nl.ndarray((1, 1), INT32), nisa.register_alloc()
        nisa.dma_copy(flag, count)
        nisa.register_load(register, flag)
        for _ in nl.dynamic_range(register):
            nisa.memset(nl.ndarray((128, 64), FP32), 0.0)

    with using(frontend="custom"):
        profiled = profile(kernel, spec((1, 1), INT32), trips=3)
    assert profiled.instruction_counts["memset"] == 3
    assert [name.partition(" ")[0] for name in profiled.trips] == ["nl.dynamic_range"]


def test_loops_with_known_bounds_need_no_trips() -> None:
    @nki.jit
    def kernel(x: Any) -> None:
        nl.fori_loop(0, nisa.register_alloc(3), lambda i: nisa.memset(nl.ndarray((128, 64), FP32), 0.0) and None)

    profiled = profile(kernel, spec((1,), FP32))
    assert profiled.instruction_counts["memset"] == 3
    assert [name.partition(" ")[0] for name in profiled.trips] == ["<lambda>"]
