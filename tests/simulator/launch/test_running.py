# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The run of a launch: its threads, the agreement of its cores, and the line that says how far it is.

No thread goes on after an interrupt, and the lowest core that fails is named. Both cores make and return the same
tensors, else an error shows both. The line is on a terminal, of what takes long, and gone at the end.
"""

from __future__ import annotations

import io
import re
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, per_rank, profile, ranks, spec
from nkilib.simulator.launch import progress
from nkilib.simulator.launch.progress import displaying, doing, launching
from nkilib.simulator.machine import issue
from tests.hangs import HANG_SECONDS
from tests.terminals import run_on_terminal

from ..frame import refused, run
from ..kernels import tile


@nki.jit
def meets(x):
    tile = nl.ndarray((1, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.core_barrier(tile, (0, 1))
    return x


@pytest.mark.parametrize("launched", [meets[2], ranks(2)(meets[2])])
def test_an_interrupt_while_the_cores_start(monkeypatch: pytest.MonkeyPatch, launched: Callable[..., object]) -> None:
    """Ctrl-C after core 1 has begun, which would wait for core 0 for ever."""
    started: list[threading.Thread] = []

    def start(self: threading.Thread) -> None:
        begin(self)
        started.append(self)
        raise KeyboardInterrupt

    begin = threading.Thread.start
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", start)
        launched(np.zeros((1, 8), np.float32))
    (thread,) = started
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()


def _fails(is_late: bool) -> None:
    if is_late:
        time.sleep(0.02)
    nisa.memset(nl.ndarray((1, 8), nl.float32), value="one")


@pytest.mark.parametrize("late", [0, 1])
def test_both_cores_fail_on_one_line_and_core_0_is_named_whichever_is_first(late: int) -> None:
    @nki.jit
    def kernel():
        _fails(nl.program_id() == late)

    with pytest.raises(NkiValidationError, match=r"nisa\.memset on core 0: "):
        kernel[2]()


def test_the_error_of_core_1_is_raised_where_core_0_waits_for_it_or_ends() -> None:
    @nki.jit
    def kernel(waits):
        if nl.program_id() == 1:
            _fails(is_late=True)
        if waits:
            nisa.core_barrier(nl.ndarray((1, 8), nl.float32, nl.shared_hbm), (0, 1))

    for waits in (True, False):
        with pytest.raises(NkiValidationError, match=r"nisa\.memset on core 1: "):
            kernel[2](waits)


@pytest.mark.parametrize("late", range(3))
def test_of_several_ranks_the_lowest_that_fails_is_named(late: int) -> None:
    """Rank 0 does not fail, and waits for rank 1."""

    @nki.jit
    def kernel(rank, x):
        nisa.memset(nl.ndarray((1, 8), nl.float32), 0)
        if rank > 0:
            _fails(rank == late)
        total = nl.ndarray((1, 8), nl.float32, nl.private_hbm)
        nki.collectives.all_reduce([x], [total], nki.collectives.ReplicaGroup([[0, 1, 2]]), op=nl.add)

    data = per_rank([np.zeros((1, 8), np.float32) for _ in range(3)])
    with pytest.raises(NkiValidationError, match=r"nisa\.memset on rank 1: "):
        ranks(3)(kernel)(per_rank([0, 1, 2]), data)


@pytest.mark.parametrize("cause", [AssertionError, KeyError])
def test_a_fault_of_the_simulator_is_marked_and_shown_in_full(
    cause: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"cause": cause, "__name__": issue.__name__}
    exec(compile("def fill(*args):\n    raise cause('unexpected')\n", issue.__file__, "exec"), names)

    @nki.jit
    def kernel():
        nisa.memset(nl.ndarray((1, 8), nl.float32), 0)

    monkeypatch.setattr(issue, "_execute", names["fill"])
    with pytest.raises(cause) as caught:
        kernel()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-3:] == ["public", "issue", "fill"]
    if hasattr(caught.value, "__notes__"):
        assert "fault of nkilib's simulator" in caught.value.__notes__[-1]
        assert f"{__file__}:" in caught.value.__notes__[-1]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Results(nl.NKIObject):
    loss: Any
    other: Any = None


def two_tensors(x: Any) -> tuple[Any, Any]:
    """Two tensors of which each core writes its row."""
    made = tuple(nl.ndarray((2, 4), nl.float32, nl.shared_hbm, name=name) for name in "ab")
    row = nl.program_id(0)
    for tensor in made:
        part = tile(1, 4)
        nisa.dma_copy(part, x[row : row + 1])
        nisa.dma_copy(tensor[row : row + 1], part)
    return made[0], made[1]


X = np.arange(8, dtype=np.float32).reshape(2, 4)
Return = Callable[[Any, Any, int], Any]
A, B = (f"tensor '{name}' [2, 4] float32 in shared_hbm" for name in "ab")
PART = (
    "tensor 'a' [1, 4] float32 in shared_hbm (number 0 of those that the kernel makes, from element {} on, with "
    "strides "
)
# Of each: what a core returns of a, b and its number; where this differs; what core 0 and core 1 return there.
DIFFERENT: dict[str, tuple[Return, str, str, str]] = {
    "structure": (lambda a, b, core: (b, a) if core else a, "", A, f"({B}, {A})"),
    "tensor": (lambda a, b, core: (a, a if core else b), "[1]", B, A),
    "nothing on core 1": (lambda a, b, core: None if core else a, "", A, "None"),
    "nothing on core 0": (lambda a, b, core: a if core else None, "", "None", A),
    "length": (lambda a, b, core: [a, b][: 2 - core], "", f"[{A}, {B}]", f"[{A}]"),
    "list and tuple": (lambda a, b, core: [a] if core else (a,), "", f"({A},)", f"[{A}]"),
    "named tuple": (lambda a, b, core: Pair(a, b) if core else Pair(b, a), "[0]", B, A),
    "keys": (lambda a, b, core: {"ab"[core]: a}, "", f"{{'a': {A}}}", f"{{'b': {A}}}"),
    "an item": (lambda a, b, core: {"x": [a, (a, b)[core]]}, "['x'][1]", A, B),
    "a field": (lambda a, b, core: Results(a, b if core else None), ".other", "None", B),
    "part": (lambda a, b, core: a[core : core + 1], "", f"{PART.format(0)}[4, 1])", f"{PART.format(4)}[4, 1])"),
    "type": (lambda a, b, core: a.view(nl.int32) if core else a, "", A, A.replace("float32", "int32")),
    "a tile": (lambda a, b, core: tile(2, 4) if core else a, "", A, "tensor [2, 4] float32 in sbuf"),
    "a number": (lambda a, b, core: (a, 1 if core else None), "[1]", "None", "1"),
}


@pytest.mark.parametrize("way", DIFFERENT)
def test_cores_that_return_different_things_are_refused(way: str) -> None:
    choose, path, first, second = DIFFERENT[way]

    def kernel(x: Any, as_core_0: bool) -> Any:
        return choose(*two_tensors(x), 0 if as_core_0 else nl.program_id(0))

    run(kernel, X, True, cores=2)
    message = refused(NkiValidationError, lambda: run(kernel, X, False, cores=2))
    assert message == (
        f"kernel: both cores must return the same tensors in the same structure; result{path} is {first} on core 0 and "
        f"{second} on core 1"
    )


def test_long_results_are_cut_in_the_message() -> None:
    def kernel(x: Any) -> Any:
        a, _ = two_tensors(x)
        return [a] * (50 + nl.program_id(0))

    message = refused(NkiValidationError, lambda: run(kernel, X, cores=2))
    assert message.count(A) == 2 * (400 // (len(A) + 2)) and message.count("...") == 2


@pytest.mark.parametrize("core", [0, 1])
def test_a_shared_tensor_that_one_core_makes_alone_is_refused(core: int) -> None:
    def kernel(x: Any, on: tuple[int, ...]) -> Any:
        a, _ = two_tensors(x)
        if nl.program_id(0) in on:
            nl.ndarray((3, 5), nl.bfloat16, nl.shared_hbm, name="extra")
        return a

    for on in ((), (0, 1)):
        np.testing.assert_array_equal(run(kernel, X, on, cores=2), X)
    message = refused(NkiValidationError, lambda: run(kernel, X, (core,), cores=2))
    counts = [3 - core, 2 + core]
    assert message == (
        "kernel: both cores must make the same tensors in nl.shared_hbm, in the same order; core 0 makes "
        f"{counts[0]} and core 1 makes {counts[1]}: number 2, tensor 'extra' [3, 5] bfloat16 in shared_hbm, is made on "
        f"core {core} alone"
    )


def test_shared_tensors_at_different_addresses_are_refused() -> None:
    def kernel(offset: int) -> None:
        nl.ndarray((2, 4), nl.float32, nl.shared_hbm, address=(offset * nl.program_id(0),))

    run(kernel, 0, cores=2)
    message = refused(NkiValidationError, lambda: run(kernel, 64, cores=2))
    assert "number 0 is [2, 4] float32 at address (" in message
    assert "at address (0,)" in message and "at address (64,)" in message


def test_ranks_may_return_different_things_and_the_cores_of_a_rank_may_not() -> None:
    def kernel(x: Any, chooses: bool, rank: int) -> Any:
        a, b = two_tensors(x)
        return (a, b)[nl.program_id(0) if chooses else rank]

    group, shares = ranks(2, timeout=HANG_SECONDS)(nki.jit(kernel)[2]), per_rank([X, X + 1])
    first, second = group(shares, False, per_rank([0, 1]))
    np.testing.assert_array_equal(second, first + 1)
    message = refused(NkiValidationError, lambda: group(shares, per_rank([False, True]), 0))
    assert message.startswith("rank 1: kernel: both cores must return the same tensors")


def test_launches_without_values_compare_the_results_too() -> None:
    def kernel(x: Any) -> Any:
        a, b = two_tensors(x)
        return a if nl.program_id(0) else b

    skipping = nkilib.simulator.simulate(nki.jit(kernel)[2], skip_arithmetic=True)
    for launch, x in ((nki.jit(kernel)[2], nkilib.simulator.spec((2, 4), nl.float32)), (skipping, X)):
        assert "result is tensor 'b'" in refused(NkiValidationError, lambda launch=launch, x=x: launch(x))


SCRIPT = """
import sys
import time
import nki
import nki.isa as nisa
import nki.language as nl
import numpy


@nki.jit
def slow(x):
    for _ in range(3):
        nisa.memset(nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf), 0.0)
    time.sleep(2.8)
    return x


slow(numpy.zeros((1, 8), numpy.float32))
print("after", file=sys.stderr)
"""


class Terminal(io.StringIO):
    """A stream that counts as a terminal, where a rewritten line hides the previous one."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.getvalue().split("\r") if line]

    def shows(self, wanted: str) -> bool:
        """Whether a line with that comes within ten seconds; what has been shown counts too."""
        end = time.monotonic() + 10
        while not any(wanted in line for line in self.lines):
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Install a terminal at which everything takes long."""
    result = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=result))
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "_PERIOD_S", 0.001)
    return result


@nki.jit
def two_instructions(x, meanwhile):
    tile = nl.ndarray((1, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(tile, 0.0)
    nisa.memset(tile, 1.0)
    meanwhile()
    return x


def test_a_terminal_shows_how_far_a_slow_script_is(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = run_on_terminal("-m", "nkilib.simulator", "script.py", directory=tmp_path)
    assert ended.code == 0
    shown = [line.rstrip() for line in ended.shown.split("\r") if line.strip()]
    # Two seconds without an end are when a line is shown; a busy machine may take longer to show it.
    first = re.fullmatch(r"(\d+) s: slow, 3 instructions", shown[0])
    assert first and int(first[1]) >= 2 and shown[-1] == "after"
    assert re.search(r"\r +\rafter", ended.shown), "the line is wiped before something else is written"


def test_what_is_fast_shows_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 2.0)
    profile(two_instructions, spec((1, 8), nl.float32), lambda: time.sleep(0.02))
    assert terminal.lines == []


def test_a_profile_says_what_it_does(terminal: Terminal) -> None:
    profile(two_instructions, spec((1, 8), nl.float32), lambda: terminal.shows("2 instructions"))
    assert "0 s: profile: two_instructions, 2 instructions" in terminal.lines
    assert terminal.lines[-1] == ""


@pytest.mark.parametrize("stream", [io.StringIO(), None, SimpleNamespace()])
def test_where_nobody_looks_there_is_no_thread(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setattr(progress, "_Display", None)
    before = threading.active_count()
    with displaying(), doing("something"):
        assert threading.active_count() == before
    assert not isinstance(stream, io.StringIO) or stream.getvalue() == ""


def test_outside_of_a_display_nothing_is_shown(terminal: Terminal) -> None:
    with doing("something"):
        time.sleep(0.02)
    two_instructions(np.zeros((1, 8), np.float32), lambda: time.sleep(0.02))
    assert terminal.lines == []


def test_tasks_in_tasks(terminal: Terminal) -> None:
    with displaying(), doing("search"), displaying(), doing("one", lambda: "7 of 9"):
        assert terminal.shows("0 s: search: one, 7 of 9")
    assert terminal.lines[-1] == ""


def test_instructions_are_those_of_all_cores(terminal: Terminal) -> None:
    cores = [SimpleNamespace(issued=1234), SimpleNamespace(issued=1)]
    with displaying(), launching("kernel", cores):  # type: ignore[arg-type]
        assert terminal.shows("0 s: kernel, 1,235 instructions")
    assert terminal.lines[-1] == ""


def test_a_task_that_fails_is_wiped_too(terminal: Terminal) -> None:
    with pytest.raises(ValueError, match="a reason"), displaying(), doing("first"):
        assert terminal.shows("first")
        raise ValueError("a reason")
    assert terminal.lines[-1] == ""


def test_a_shorter_line_covers_a_longer_one_and_none_is_wider_than_the_terminal(terminal: Terminal) -> None:
    with displaying(), doing("a"):
        with doing("b" * 200):
            assert terminal.shows("b" * 60)
        time.sleep(0.02)
    lengths = [len(line) for line in terminal.getvalue().split("\r") if line]
    assert set(lengths) <= {6, 79}
    assert terminal.lines[-1] == ""


@pytest.mark.parametrize("failure", [OSError, ValueError])
def test_a_terminal_that_is_gone_stops_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, failure: Callable[[], Exception]
) -> None:
    tried = threading.Event()

    def write(_: str) -> int:
        tried.set()
        raise failure()

    monkeypatch.setattr(terminal, "write", write)
    with displaying(), doing("something"):
        assert tried.wait(HANG_SECONDS), "the display writes"
        result = two_instructions(np.ones((1, 8), np.float32), lambda: None)
    assert terminal.lines == [] and result.all()
    assert "progress" not in {thread.name for thread in threading.enumerate()}
