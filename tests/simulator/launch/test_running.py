# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The threads of a launch: none goes on after an interrupt, wherever it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ranks

_MOST_S = 10


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
    thread.join(_MOST_S)
    assert not thread.is_alive()
