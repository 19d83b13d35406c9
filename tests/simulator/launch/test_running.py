# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The threads of a launch: none goes on after an interrupt, and the lowest core that fails is named."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError, per_rank, ranks
from nkilib.simulator.machine import issue
from tests.hangs import HANG_SECONDS


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
