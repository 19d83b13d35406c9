# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.loop_profiles` runs, and its kernels do the same. No time is asserted."""

from __future__ import annotations

import pytest

from benchmarks import loop_profiles
from benchmarks.loop_profiles import main, measure
from nkilib.simulator.machine import device_loop


def test_left_out_iterations_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_loop, "FEWEST_ITERATIONS", device_loop.FEWEST_ITERATIONS)  # undone behind the test
    short, python = measure("fori_loop", 600), measure("python", 600)
    every = measure("all", 600)
    assert short.instructions == every.instructions == python.instructions == 600
    assert short.modelled_us == pytest.approx(every.modelled_us, rel=1e-9)
    assert python.modelled_us < every.modelled_us


def test_it_prints_what_profiles_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "fori_loop", "--instructions", "400"]) == 0
    assert '"instructions": 400' in capsys.readouterr().out


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="invalid choice: 'nothing'"):
        loop_profiles.measure_apart("nothing", 10)
