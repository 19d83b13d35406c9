# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Each sentence is said of a kernel that has the fault, with its line and its figures, and of no sound kernel.

Under the readings whose times are frozen. Where the descriptors of transfers are the compiler's choice, a finding gives
both times. The engines that a finding names can run the instruction.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, ModelParameters, NkiValidationError, Profile, profile, spec, using
from nkilib.simulator.machine.issue import REGISTRY
from nkilib.simulator.profiling.why.facts import Finding
from nkilib.simulator.terms.enums import Engine, reduce_cmd
from nkilib.simulator.timing import footprints
from nkilib.simulator.timing.footprints import Views
from tests.simulator.profiling.why import faulty

ON_TWO_CORES = {
    "barriers",
    "undivided",
    "divided",
    "summed_by_halves",
    "scattered",
    "looped",
    "functions_between_barriers",
}


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
        "many_triggers",
        "transfers",
        "many_triggers|dma_copy",
        ["up to 8 transfers", "26.4 us instead of 44.2 us (40% less)"],
    ),
    ("many_triggers", "queues", "many_triggers|dma_copy", ["every second transfer", "engine=nisa.engine.sync"]),
    (
        "short_rows",
        "small rows",
        "short_rows|dma_copy",
        ["rows of 256 B", "16.0 MiB", "100% of the bytes", "19% of the"],
    ),
    (
        "short_rows",
        "busiest engine",
        "short_rows|dma_copy",
        ["The busiest DMA engine", "99% of 238.9 us", "5.2 times the bound"],
    ),
    ("one_after_the_other", "first byte", "one_after_the_other|dma_copy(x", ["16 times", "20.8 us", "(65%)"]),
    (
        "one_buffer",
        "buffers",
        "one_buffer|only",
        ["'only' [128, 8192] float32", "7 times", "tensor_scalar has read it", "more tiles, 2 at"],
    ),
    ("one_buffer", "order", "one_buffer|tensor_scalar", ["Load for the next iteration", "with 2 tiles of a kind"]),
    ("in_turns", "waits", "in_turns|tensor_scalar", ["Vector", "waits 59.5 us", "for the result of", "activation"]),
    (
        "all_on_vector",
        "engine",
        "all_on_vector|tensor_tensor",
        ["Vector is busy 99%", "gpsimd 0%", "every second call", "68.7 us instead of 137.4 us"],
    ),
    ("tiny", "small instructions", "tiny|tensor_scalar", ["255 instructions", "26.6 us", "(61%)"]),
    ("tiny", "larger instructions", "tiny|tensor_scalar", ["neighbouring columns", "1.2 us instead of 43.8 us"]),
    ("chain", "latency", "chain|tensor_scalar", ["64 times", "9.6 us", "(36%)"]),
    ("two_functions", "activation tables", "two_functions|nl.tanh", ["16 times", "20.5 us", "exp at", "tanh at"]),
    ("two_functions", "order", "two_functions|nl.exp", ["4 iterations at a time", "34.0 us instead of 49.3 us"]),
    ("groups", "order", "groups|tensor_scalar(squares", ["dma_copy to faulty.py", "54.4 us instead of 77.5 us"]),
    ("functions_between_barriers", "order", "functions_between_barriers|nl.exp", ["4 iterations at a time", "40.4 us"]),
    ("barriers", "meetings", "barriers|core_barrier", ["The cores synchronise 4 times", "8.0 us", "(34%)"]),
    (
        "undivided",
        "same work",
        "_blocks|dma_copy",
        ["store the same parts of [1024, 8192]", "102.5 us instead of 193.7 us"],
    ),
    ("reloading", "repeated load", "reloading|dma_copy(factors", ["the same data 8 times"]),
    ("squares", "fusion", "squares|tensor_tensor", ["write nisa.activation_reduce(squared, nl.square, loaded, "]),
]


@pytest.mark.parametrize(("kernel", "about", "where", "figures"), FAULTS, ids=["-".join(fault[:2]) for fault in FAULTS])
def test_a_fault_is_reported_with_its_line_and_its_figures(
    kernel: str, about: str, where: str, figures: list[str]
) -> None:
    result, *_ = [finding for finding in profile_of(kernel).why if finding.about == about]
    place = line(where)
    assert place in result.text or place == result.place
    assert re.fullmatch(r"faulty\.py:\d+", result.place)
    for figure in figures:
        assert figure in result.text, result.text
    assert 0.0 < result.time_us <= profile_of(kernel).time_us
    assert result.saved_us == (result.time_us if result.is_advice else 0.0)
    assert len(result.places) == len(set(result.places)) <= len(result.numbers)


def test_a_sound_kernel_has_no_findings() -> None:
    assert profile_of("sound").why == ()
    assert "why:" not in str(profile_of("sound"))


@pytest.mark.parametrize("kernel", sorted({fault[0] for fault in FAULTS}))
def test_an_advice_saves_at_least_two_percent_in_the_model_and_a_fact_advises_nothing(kernel: str) -> None:
    profiled = profile_of(kernel)
    for finding in profiled.why:
        after = re.search(r"The model then takes ([\d.,]+) us instead of ([\d.,]+) us", finding.text)
        assert (after is not None) == finding.is_advice
        if after is not None:
            shown = [float(figure.replace(",", "")) for figure in after.groups()]
            assert shown == [round(profiled.time_us - finding.saved_us, 1), round(profiled.time_us, 1)]
            assert finding.saved_us >= 0.02 * profiled.time_us


@pytest.mark.parametrize("kernel", ["divided", "summed_by_halves", "scattered", "barriers"])
def test_cores_that_do_different_work_are_not_reported_as_doing_the_same(kernel: str) -> None:
    """One half each; loads of their own and one result; rows that an index chooses; nothing that is stored."""
    assert "same work" not in {finding.about for finding in profile_of(kernel).why}


def test_cores_that_meet_a_part_at_one_moment_do_the_same_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each core then has an object of its own for the part; here every view has one."""
    monkeypatch.setattr(Views, "footprint", Views._made)
    monkeypatch.setattr(footprints, "_part", footprints._part.__wrapped__)
    profiled = profile(nki.jit(faulty.undivided)[2], spec((1024, faulty.WIDE), nl.float32), parameters=AS_ISSUED)
    assert "same work" in {finding.about for finding in profiled.why}


def test_iterations_that_are_alike_are_the_same_work_too() -> None:
    (result,) = [finding for finding in profile_of("looped").why if finding.about == "same work"]
    assert profile_of("looped").recorded._cores[0][1].repeats
    assert result.time_us == pytest.approx(profile_of("looped").time_us / 2, rel=0.01)


def sums(count: int, *, is_divided: bool) -> Profile:
    """The profile of a number of sums on Vector, or every second one on GpSimd."""

    @nki.jit
    def kernel(_: Any) -> None:
        values = faulty.tile()
        for number in range(count):
            chosen = nisa.engine.gpsimd if is_divided and number % 2 else nisa.engine.vector
            nisa.tensor_tensor(faulty.tile(), values, values, nl.add, engine=chosen)

    return profile(kernel, spec((128, 1), nl.float32), parameters=AS_ISSUED)


def test_every_second_call_on_another_engine_saves_the_stated_time() -> None:
    before, after = sums(36, is_divided=False), sums(36, is_divided=True)
    (result,) = [finding for finding in before.why if finding.about == "engine"]
    assert "Run every second call of " in result.text and "with engine=nisa.engine.gpsimd." in result.text
    assert result.saved_us == pytest.approx(before.time_us - after.time_us)


def test_half_of_the_work_on_each_core_takes_the_stated_time() -> None:
    (result,) = [finding for finding in profile_of("undivided").why if finding.about == "same work"]
    assert result.saved_us == pytest.approx(profile_of("undivided").time_us - profile_of("divided").time_us)


def test_a_second_buffer_saves_the_stated_time() -> None:
    (result,) = [finding for finding in profile_of("one_buffer").why if finding.about == "buffers"]
    taken = profile_of("sound").time_us  # the same kernel with a new tile in each step
    assert f"takes {taken:,.1f} us instead of {profile_of('one_buffer').time_us:,.1f} us" in result.text
    assert result.time_us == pytest.approx(profile_of("one_buffer").time_us - taken)


def test_of_several_tiles_of_a_line_the_one_that_is_waited_for_is_named() -> None:
    (result,) = [finding for finding in profile_of("second_of_two").why if finding.about == "buffers"]
    assert "'again' [128, 8192] float32" in result.text and "7 times" in result.text


def test_tiles_of_another_size_from_the_same_line_do_not_count() -> None:
    (result,) = [finding for finding in profile_of("tiles_of_a_function").why if finding.about == "buffers"]
    assert f"2 at {line('tile|nl.ndarray')} ([128, 8192] float32 in sbuf)" in result.text


def test_the_table_has_path_waits_and_findings() -> None:
    profiled = profile_of("in_turns")
    table = str(profiled)
    assert re.search(r"^critical path +us +share$", table, re.MULTILINE)
    assert re.search(rf"^{line('in_turns|tensor_scalar')} tensor_scalar +[\d.]+ +[\d.]+%$", table, re.MULTILINE)
    assert re.search(r"^vector +59\.5 +0\.0 +0\.0 +0\.0$", table, re.MULTILINE)
    words = " ".join(table.split())
    assert all(f" - {finding}" in words for finding in profiled.why)
    assert max(map(len, table.splitlines())) <= 88


def test_advice_comes_first_and_then_the_facts_about_most_of_the_time() -> None:
    findings = profile_of("looped").why
    advice = [finding for finding in findings if finding.is_advice]
    assert [finding.about for finding in advice] == ["same work", "buffers", "repeated load", "order"]
    assert [finding.saved_us for finding in advice] == sorted((one.saved_us for one in advice), reverse=True)
    facts = findings[len(advice) :]
    assert [finding.about for finding in facts] == ["first byte", "busiest engine"]
    assert facts[0].time_us > facts[1].time_us


def test_another_order_counts_less_than_a_change_that_saves_nearly_as_much() -> None:
    order, buffers = (
        next(finding for finding in profile_of("one_buffer").why if finding.about == about)
        for about in ("order", "buffers")
    )
    assert 0.8 * order.saved_us < buffers.saved_us < order.saved_us
    assert profile_of("one_buffer").why[:2] == (buffers, order)


def test_an_empty_kernel_has_no_findings() -> None:
    def nothing(_: Any) -> None:
        return

    profiled = profile(nki.jit(nothing), spec((1,), nl.float32))
    assert (profiled.why, profiled.critical_path_us, profiled.waits_us) == ((), {}, {})


ALWAYS = ModelParameters(software_descriptors="always")
ROWS, COLUMNS = 1024, faulty.WIDE


def _profile(kernel: Any, target: str = "trn2", parameters: ModelParameters | None = None, cores: int = 1) -> Profile:
    with using(target=target):
        return profile(nki.jit(kernel)[cores], spec((ROWS, COLUMNS), nl.float32), parameters=parameters)


def _said(result: Profile) -> list[Finding]:
    return [finding for finding in result.why if finding.about in ("descriptors", "choice of descriptors")]


def _load_line(function: str) -> str:
    lines = Path(faulty.__file__).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"def {function}("))
    return f"faulty.py:{next(number + 1 for number in range(first, len(lines)) if 'dma_copy' in lines[number])}"


@pytest.mark.parametrize(
    ("target", "kind", "pauses"),
    [("trn1", "descriptors that the host has written", (0.3, 1.4)), ("trn2", "hardware descriptors", (0.3, 0.6))],
)
def test_both_times_are_those_of_the_two_choices(target: str, kind: str, pauses: tuple[float, float]) -> None:
    few, many = _profile(faulty.many_triggers, target), _profile(faulty.many_triggers, target, ALWAYS)
    assert many.time_us > 1.3 * few.time_us
    software = "software descriptors, which GpSimd writes"
    in_words = [
        f"{what} (a trigger every {pause} us in each direction)"
        for what, pause in zip((kind, software), pauses, strict=True)
    ]
    (fact,), (advice,) = _said(few), _said(many)
    for finding in (fact, advice):
        assert f"of 64 transfers to it, most at {_load_line('many_triggers')} dma_copy (64 times)" in finding.text
        assert finding.time_us == pytest.approx(many.time_us - few.time_us)
        assert finding.place == _load_line("many_triggers")
    assert (
        f"With {in_words[0]}, as modelled here, the launch takes {few.time_us:.1f} us; with {in_words[1]}, it would "
        f"take {many.time_us:.1f} us ({many.time_us / few.time_us - 1:.0%} more)."
    ) in fact.text
    assert f"The model takes {in_words[1]}. Ask for {in_words[0]} with dma_copy(dge_mode=)." in advice.text
    assert f"takes {few.time_us:.1f} us instead of {many.time_us:.1f} us" in advice.text
    assert (fact.saved_us, advice.saved_us) == (0.0, advice.time_us)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("parameters", [None, ALWAYS], ids=["needed", "always"])
def test_faults_that_do_not_matter_are_not_reported(target: str, parameters: ModelParameters | None) -> None:
    """Transfers of 4 MiB: the engines move longer than any descriptors take."""
    profiled = _profile(faulty.sound, target, parameters)
    assert not _said(profiled)
    assert profiled.time_us == _profile(faulty.sound, target).time_us


def _with(**mode: Any) -> Any:
    def kernel(x: Any) -> None:
        for first in range(0, 4096, 64):
            nisa.dma_copy(nl.ndarray((128, 64), x.dtype), x[0:128, first : first + 64], **mode)

    return kernel


@pytest.mark.parametrize(
    "mode",
    [
        {"dge_mode": nisa.dge_mode.none},
        {"dge_mode": nisa.dge_mode.swdge},
        {"dge_mode": nisa.dge_mode.hwdge},
        {"dge_mode": nisa.dge_mode.hwdge, "engine": nisa.engine.sync},
    ],
    ids=["none", "swdge", "hwdge", "sync"],
)
def test_a_kernel_that_says_which_descriptors_it_wants_gets_these(mode: dict[str, Any]) -> None:
    result, always = _profile(_with(**mode)), _profile(_with(**mode), parameters=ALWAYS)
    assert not _said(result) and not _said(always)
    assert result.time_us == always.time_us
    assert _said(_profile(_with()))


def test_what_only_gpsimd_can_write_is_no_choice() -> None:
    """An address from a register is such a case on trn1; on trn2 the hardware may write its descriptors too."""

    def kernel(x: Any) -> None:
        at = nl.ndarray((1, 1), nl.int32)
        nisa.memset(at, 0)
        for first in range(0, 4096, 64):
            source = x.ap([[COLUMNS, 128], [1, 64]], offset=first, scalar_offset=at, indirect_dim=0)
            nisa.dma_copy(nl.ndarray((128, 64), x.dtype), source)

    assert not _said(_profile(kernel, "trn1")) and _said(_profile(kernel, "trn2"))


def test_transfers_of_both_cores_count() -> None:
    (finding,) = _said(_profile(faulty.many_triggers, cores=2))
    assert "of 128 transfers" in finding.text


def test_transfers_of_a_tile_from_anywhere_are_not_one() -> None:
    def kernel(x: Any) -> None:
        for _ in range(8):
            loaded, scaled = faulty.tile(2048), faulty.tile(2048)
            for row, source in zip(range(0, 128, 16), (0, 64, 16, 512, 48, 256, 96, 32), strict=True):
                nisa.dma_copy(loaded[row : row + 16], x[source : source + 16, 0:2048])
            nisa.tensor_scalar(scaled, loaded, nl.multiply, 2.0)

    about = {finding.about for finding in _profile(kernel, parameters=AS_ISSUED).why}
    assert "queues" in about and "transfers" not in about


def test_calls_that_one_core_makes_alone_have_their_lines() -> None:
    def kernel(x: Any) -> None:
        if nl.program_id(0):
            for first in range(0, 4096, 64):
                nisa.dma_copy(nl.ndarray((128, 64), x.dtype), x[0:128, first : first + 64])
        else:
            for first in range(0, 4096, 32):
                nisa.dma_copy(nl.ndarray((128, 32), x.dtype), x[0:128, first : first + 32])

    line = kernel.__code__.co_firstlineno
    (finding,) = _said(_profile(kernel, cores=2))
    for number, count in ((line + 3, 64), (line + 6, 128)):
        assert f"test_findings.py:{number} dma_copy ({count} times)" in finding.text
    assert {place.rpartition(":")[2] for place in finding.places} == {str(line + 3), str(line + 6)}


def test_the_model_without_kinds_of_descriptors_has_no_choice() -> None:
    assert not _said(_profile(faulty.many_triggers, parameters=AS_ISSUED))


TARGETS = ("trn1", "trn2", "trn3")
Issue = Callable[..., Any]


def tile(columns: int = 32, dtype: Any = nl.float32, buffer: Any = nl.sbuf, rows: int = 32) -> Any:
    """A tile of ones, in SBUF or PSUM."""
    result = nl.ndarray((rows, columns), dtype, buffer)
    nisa.memset(result, value=1, engine=nisa.engine.vector)
    return result


def indirect(buffer: Any) -> Any:
    """A view that an index chooses from a tile in a region."""
    return tile(64, buffer=buffer).indirect(tile(2, nl.int32))


def scalar_operators(op0: Any, op1: Any = None, dtype: Any = nl.float32) -> Issue:
    """A `tensor_scalar` with one or two operators; a unary one takes no operand."""
    operand0, operand1 = (None if op in (nl.rsqrt, None) else 1 for op in (op0, op1))
    return lambda **engine: nisa.tensor_scalar(
        tile(dtype=dtype), tile(dtype=dtype), op0, operand0, op1=op1, operand1=operand1, **engine
    )


def of_two(op: Any, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Issue:
    return lambda **engine: nisa.tensor_tensor(
        tile(dtype=dtype, buffer=buffer), tile(dtype=dtype), tile(dtype=dtype), op, **engine
    )


def copied(dst: Any, src: Any) -> Issue:
    return lambda **engine: nisa.tensor_copy(tile(buffer=dst), tile(buffer=src), **engine)


def transposed(rows: int, dst: Any, src: Any) -> Issue:
    return lambda **engine: nisa.nc_transpose(tile(rows, buffer=dst), tile(rows=rows, buffer=src), **engine)


def activated(**arguments: Any) -> Issue:
    return lambda **engine: nisa.activation(tile(), nl.exp, tile(), bias=tile(1), **arguments, **engine)


def reduced() -> Issue:
    command = reduce_cmd.reset_reduce
    return lambda **engine: nisa.activation(
        tile(), nl.exp, tile(), bias=tile(1), reduce_op=nl.add, reduce_res=tile(1), reduce_cmd=command, **engine
    )


CALLS: dict[str, Issue] = {
    "tensor_scalar: subtract, multiply": scalar_operators(nl.subtract, nl.multiply),
    "tensor_scalar: add, power": scalar_operators(nl.add, nl.power),
    "tensor_scalar: maximum, multiply": scalar_operators(nl.maximum, nl.multiply),
    "tensor_scalar: multiply, add": scalar_operators(nl.multiply, nl.add),
    "tensor_scalar: add, multiply": scalar_operators(nl.add, nl.multiply),
    "tensor_scalar: multiply": scalar_operators(nl.multiply),
    "tensor_scalar: add": scalar_operators(nl.add),
    "tensor_scalar: subtract": scalar_operators(nl.subtract),
    "tensor_scalar: rsqrt": scalar_operators(nl.rsqrt),
    "tensor_scalar: add, rsqrt": scalar_operators(nl.add, nl.rsqrt),
    "tensor_scalar: bitwise_and": scalar_operators(nl.bitwise_and, dtype=nl.int32),
    "tensor_scalar: indirect": lambda **engine: nisa.tensor_scalar(
        tile(64), indirect(nl.sbuf), nl.multiply, 2.0, **engine
    ),
    "tensor_tensor: add": of_two(nl.add),
    "tensor_tensor: power": of_two(nl.power),
    "tensor_tensor: bitwise_and": of_two(nl.bitwise_and, nl.int32),
    "tensor_tensor: integers": of_two(nl.multiply, nl.int32),
    "tensor_tensor: to PSUM": of_two(nl.add, buffer=nl.psum),
    "tensor_copy": copied(nl.sbuf, nl.sbuf),
    "tensor_copy: from PSUM": copied(nl.sbuf, nl.psum),
    "tensor_copy: to PSUM": copied(nl.psum, nl.sbuf),
    "tensor_copy: gathered": lambda **engine: nisa.tensor_copy(tile(64), indirect(nl.sbuf), **engine),
    "tensor_copy: scattered": lambda **engine: nisa.tensor_copy(indirect(nl.sbuf), tile(64), **engine),
    "tensor_copy: scattered to PSUM": lambda **engine: nisa.tensor_copy(indirect(nl.psum), tile(64), **engine),
    "memset": lambda **engine: nisa.memset(tile(), 0, **engine),
    "memset: of PSUM": lambda **engine: nisa.memset(tile(buffer=nl.psum), 0, **engine),
    "activation": activated(),
    "activation: reduced": reduced(),
    "activate2": lambda **engine: nisa.activate2(
        tile(), nl.exp, tile(), 1.0, 1.0, op0=nl.multiply, op1=nl.add, **engine
    ),
    "nc_transpose": transposed(32, nl.psum, nl.sbuf),
    "nc_transpose: larger": transposed(64, nl.psum, nl.sbuf),
    "nc_transpose: to SBUF": transposed(32, nl.sbuf, nl.sbuf),
    "nc_transpose: from PSUM": transposed(32, nl.psum, nl.psum),
    "rng": lambda **engine: nisa.rng(tile(dtype=nl.uint32), **engine),
    "rand_get_state": lambda **engine: nisa.rand_get_state(tile(6, nl.uint32), **engine),
    "rand_get_state: of Vector": lambda **engine: nisa.rand_get_state(tile(24, nl.uint32), **engine),
    "rand_set_state": lambda **engine: nisa.rand_set_state(tile(6, nl.uint32), **engine),
    "rand_set_state: of Vector": lambda **engine: nisa.rand_set_state(tile(24, nl.uint32), **engine),
}


def launched(issue: Issue, target: str, **engine: Any) -> Profile | None:
    """The profile of a launch of one call; None if it is an error."""

    @nki.jit
    def kernel(_: Any) -> None:
        issue(**engine)

    with nkilib.simulator.using(target=target):
        try:
            return profile(kernel, np.zeros((1, 1), np.float32), parameters=AS_ISSUED)
        except NkiValidationError:
            return None


def accepted(issue: Issue, name: str, target: str) -> dict[str, Profile]:
    """The profiles of the launches that ask for an engine, by its name, without those that are errors."""
    engines = REGISTRY[name].engines
    launches = {engine.name: launched(issue, target, engine=engine) for engine in engines}
    return {engine: launch for engine, launch in launches.items() if launch is not None}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("call", CALLS)
def test_the_other_engines_of_a_call_are_those_on_which_its_launch_is_no_error(call: str, target: str) -> None:
    name, issue = call.partition(":")[0], CALLS[call]
    launches = accepted(issue, name, target)
    default = launched(issue, target)
    for own, launch in launches.items():
        ((_, log, _),) = launch.recorded._cores
        kind = log[-1][1]
        assert (kind.name, kind.engine) == (name, own)
        assert set(kind.others) == launches.keys() - {own}
    assert default is None or launches.keys() >= {default.recorded.instructions[-1].engine}


def test_every_instruction_with_a_choice_of_engine_is_here() -> None:
    choosing = {
        name
        for name, definition in REGISTRY.items()
        if "engine" in definition.names and not definition.is_transfer and definition.cost is not None
    }
    assert choosing == {call.partition(":")[0] for call in CALLS}
    assert all("engine" in inspect.signature(getattr(nisa, name)).parameters for name in choosing)


def on_vector(operators: Callable[[Any], Any], **engine: Any) -> Profile:
    """The profile of a kernel whose work is one instruction, 8 times on large tiles."""

    @nki.jit
    def kernel(_: Any) -> None:
        values = faulty.tile()
        nisa.memset(values, 1.0, engine=nisa.engine.gpsimd)
        for _ in range(8):
            operators(functools.partial(nisa.tensor_scalar, faulty.tile(), values, **engine))

    return profile(kernel, np.zeros((128, 1), np.float32), parameters=AS_ISSUED)


@pytest.mark.parametrize(
    "operators",
    [
        lambda issue: issue(nl.subtract, 2.0, op1=nl.multiply, operand1=3.0),
        lambda issue: issue(nl.add, 2.0, op1=nl.power, operand1=0.5),
        lambda issue: issue(nl.maximum, 2.0, op1=nl.multiply, operand1=3.0),
        lambda issue: issue(nl.multiply, 2.0, op1=nl.add, operand1=3.0),
        lambda issue: issue(nl.add, 3.0),
    ],
    ids=["subtract, multiply", "add, power", "maximum, multiply", "multiply, add", "add"],
)
def test_why_names_an_engine_only_where_the_launch_on_it_is_no_error(operators: Callable[[Any], Any]) -> None:
    named = re.findall(r"engine=nisa\.engine\.(\w+)", "".join(found.text for found in on_vector(operators).why))
    engines = [engine for engine in REGISTRY["tensor_scalar"].engines if engine.name in named]
    assert len(engines) == len(set(named))
    for engine in engines:
        assert on_vector(operators, engine=engine).engine_busy_us[engine.name] > 0.0
    if not engines:
        with pytest.raises(NkiValidationError, match="the Scalar engine runs multiply then add"):
            on_vector(operators, engine=Engine.scalar)
