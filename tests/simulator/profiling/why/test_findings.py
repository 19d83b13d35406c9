# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Each sentence is said of a kernel that has the fault, with its line and its figures, and of no sound kernel.

Under the readings whose times are frozen.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, Profile, profile, spec
from nkilib.simulator.timing import parts
from nkilib.simulator.timing.footprints import Views
from tests.simulator.profiling.why import faulty

ON_TWO_CORES = {"barriers", "undivided", "divided", "summed_by_halves", "scattered", "looped"}


@functools.cache
def profile_of(name: str) -> Profile:
    kernel = nki.jit(getattr(faulty, name))[2 if name in ON_TWO_CORES else 1]
    return profile(kernel, spec((1024, faulty.WIDE), nl.float32), parameters=AS_ISSUED)


def line(text: str) -> str:
    """``faulty.py:line`` of the only line that holds a text, or of the first one that does after the text ``a|b``."""
    kernel, _, statement = text.partition("|")
    lines = Path(faulty.__file__).read_text().splitlines()
    first = next(number for number, code in enumerate(lines) if code.startswith(f"def {kernel}("))
    return f"faulty.py:{next(number + 1 for number in range(first, len(lines)) if statement in lines[number])}"


FAULTS = [
    (
        "many_triggers",
        "triggers",
        "many_triggers|dma_copy",
        ["every 0.6 us", "63 of them", "37.8 us", "(85%)", "128.0 KiB"],
    ),
    (
        "short_rows",
        "small rows",
        "short_rows|dma_copy",
        ["rows of 256 B", "16.0 MiB", "100% of the bytes", "19% of the"],
    ),
    ("one_after_the_other", "first byte", "one_after_the_other|dma_copy(x", ["16 times", "20.8 us", "(65%)"]),
    (
        "one_buffer",
        "buffers",
        "one_buffer|only",
        ["'only' [128, 8192] float32", "7 times", "tensor_scalar has read it"],
    ),
    ("in_turns", "waits", "in_turns|tensor_scalar", ["Vector", "waits 59.5 us", "for the result of", "activation"]),
    (
        "all_on_vector",
        "idle engine",
        "all_on_vector|tensor_tensor",
        ["Vector is busy 99%", "gpsimd 0%", "136.5 us", "about 75.9 us"],
    ),
    ("tiny", "small instructions", "tiny|tensor_scalar", ["255 instructions", "26.6 us", "(61%)"]),
    ("chain", "latency", "chain|tensor_scalar", ["64 times", "9.6 us", "(36%)"]),
    ("two_functions", "activation tables", "two_functions|nl.tanh", ["16 times", "20.5 us", "exp at", "tanh at"]),
    ("barriers", "meetings", "barriers|core_barrier", ["The cores synchronise 4 times", "8.0 us", "(34%)"]),
    ("undivided", "same work", "_blocks|dma_copy", ["store the same parts of [1024, 8192]", "96.9 us of 193.7 us"]),
]


@pytest.mark.parametrize(("kernel", "about", "where", "figures"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_reported_with_its_line_and_its_figures(
    kernel: str, about: str, where: str, figures: list[str]
) -> None:
    (result,) = [finding for finding in profile_of(kernel).why if finding.about == about]
    place = line(where)
    assert place in result.text or place == result.place
    assert re.fullmatch(r"faulty\.py:\d+", result.place)
    for figure in figures:
        assert figure in result.text, result.text
    assert 0.0 < result.time_us <= profile_of(kernel).time_us


def test_a_sound_kernel_has_no_findings() -> None:
    assert profile_of("sound").why == ()
    assert "why:" not in str(profile_of("sound"))


ALSO = {
    ("many_triggers", "waits"),  # for what comes so slowly
    ("one_buffer", "waits"),
    ("barriers", "first byte"),  # no transfer starts before the barrier
}


@pytest.mark.parametrize("kernel", [fault[0] for fault in FAULTS])
def test_a_fault_is_not_reported_for_a_kernel_that_has_another(kernel: str) -> None:
    own = {about for name, about, *_ in FAULTS if name == kernel}
    more = {about for name, about in ALSO if name == kernel}
    assert {finding.about for finding in profile_of(kernel).why} == own | more


@pytest.mark.parametrize("kernel", ["divided", "summed_by_halves", "scattered", "barriers"])
def test_cores_that_do_different_work_are_not_reported_as_doing_the_same(kernel: str) -> None:
    """One half each; loads of their own and one result; rows that an index chooses; nothing that is stored."""
    assert "same work" not in {finding.about for finding in profile_of(kernel).why}


def test_cores_that_meet_a_part_at_one_moment_do_the_same_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each core then has an object of its own for the part; here every view has one."""
    monkeypatch.setattr(Views, "footprint", Views._made)
    monkeypatch.setattr(parts, "_part", parts._part.__wrapped__)
    profiled = profile(nki.jit(faulty.undivided)[2], spec((1024, faulty.WIDE), nl.float32), parameters=AS_ISSUED)
    assert "same work" in {finding.about for finding in profiled.why}


def test_iterations_that_are_alike_are_the_same_work_too() -> None:
    (result,) = [finding for finding in profile_of("looped").why if finding.about == "same work"]
    assert profile_of("looped").recorded._cores[0][1].repeats
    assert result.time_us == pytest.approx(profile_of("looped").time_us / 2)


SUMS = 36


def sums(count: int, moved: int = 0) -> Profile:
    """The profile of ``count`` sums on Vector, and of ``moved`` more on GpSimd."""

    @nki.jit
    def kernel(_: Any) -> None:
        values = faulty.tile()
        for number in range(count + moved):
            chosen = nisa.engine.vector if number < count else nisa.engine.gpsimd
            nisa.tensor_tensor(faulty.tile(), values, values, nl.add, engine=chosen)

    return profile(kernel, spec((128, 1), nl.float32), parameters=AS_ISSUED)


def test_moving_the_stated_time_balances_two_engines_of_which_one_is_faster() -> None:
    (result,) = [finding for finding in sums(SUMS).why if finding.about == "idle engine"]
    stated = re.search(r"Moving about ([\d.]+) us of it there, with engine=nisa.gpsimd_engine,", result.text)
    assert stated is not None, result.text
    one = sums(SUMS).engine_busy_us["vector"] / SUMS
    moved = round(float(stated[1]) / one)
    assert moved == 20  # of 36: GpSimd takes 0.8 of the time
    busy = sums(SUMS - moved, moved).engine_busy_us
    assert busy["vector"] == pytest.approx(busy["gpsimd"], rel=0.01)


def test_where_all_that_can_move_does_not_balance_the_engines_the_finding_says_so() -> None:
    @nki.jit
    def kernel(_: Any) -> None:
        values, total = faulty.tile(), faulty.tile(1)
        for _ in range(8):
            nisa.tensor_reduce(total, nl.add, values, axis=1)
        for _ in range(2):
            nisa.tensor_scalar(faulty.tile(), values, nl.multiply, 2.0)

    (result,) = [
        finding
        for finding in profile(kernel, spec((128, 1), nl.float32), parameters=AS_ISSUED).why
        if finding.about == "idle engine"
    ]
    message = re.search(
        r"Move all of it there, with engine=nisa.(\w+)_engine: vector would still have more", result.text
    )
    assert message is not None, result.text


def test_half_of_the_work_on_each_core_takes_the_stated_time() -> None:
    (result,) = [finding for finding in profile_of("undivided").why if finding.about == "same work"]
    saved = profile_of("undivided").time_us - profile_of("divided").time_us
    assert 0.8 * result.time_us <= saved <= result.time_us


def test_a_second_buffer_saves_the_stated_time() -> None:
    (result,) = [finding for finding in profile_of("one_buffer").why if finding.about == "buffers"]
    taken = profile_of("sound").time_us  # the same kernel with a new tile in each step
    assert f"about {taken:,.1f} us instead of {profile_of('one_buffer').time_us:,.1f} us" in result.text
    assert result.time_us == pytest.approx(profile_of("one_buffer").time_us - taken)


def test_of_several_tiles_of_a_line_the_one_that_is_waited_for_is_named() -> None:
    (result,) = [finding for finding in profile_of("second_of_two").why if finding.about == "buffers"]
    assert "'again' [128, 8192] float32" in result.text and "7 times" in result.text


def test_the_table_has_path_waits_and_findings() -> None:
    profiled = profile_of("in_turns")
    table = str(profiled)
    assert re.search(r"^critical path +us +share$", table, re.MULTILINE)
    assert re.search(rf"^{line('in_turns|tensor_scalar')} tensor_scalar +[\d.]+ +[\d.]+%$", table, re.MULTILINE)
    assert re.search(r"^vector +59\.5 +0\.0 +0\.0 +0\.0$", table, re.MULTILINE)
    words = " ".join(table.split())
    assert all(f" - {finding}" in words for finding in profiled.why)
    assert max(map(len, table[table.index("why:") :].splitlines())) <= 118


def test_findings_that_state_a_saving_come_first_and_then_the_one_that_takes_most() -> None:
    findings = profile_of("looped").why
    assert [finding.about for finding in findings] == ["same work", "buffers", "first byte"]
    same_work, buffers, first_byte = findings
    assert same_work.saved_us > buffers.saved_us > first_byte.saved_us == 0.0
    assert first_byte.time_us > same_work.time_us
    times = [finding.time_us for finding in profile_of("many_triggers").why]
    assert len(times) == 2 and times == sorted(times, reverse=True)


def test_an_empty_kernel_has_no_findings() -> None:
    def nothing(_: Any) -> None:
        return

    profiled = profile(nki.jit(nothing), spec((1,), nl.float32))
    assert (profiled.why, profiled.critical_path_us, profiled.waits_us) == ((), {}, {})
