# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.softmax_bench` runs, and says when the results differ. No time is asserted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import _softmax, softmax_bench
from benchmarks._memory import MemoryUse
from benchmarks._softmax import PASSES, SoftmaxCase, SoftmaxInputs

CASE = SoftmaxCase((40, 300), -1, "bf16")
MIDDLE = SoftmaxCase((2, 70, 40), 1, "fp32")


def test_it_runs_and_prints_every_pass(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(softmax_bench, "measure_softmax_memory", lambda *_: MemoryUse(growth=3 << 20, arrays=1 << 20))
    monkeypatch.setattr(softmax_bench, "cases", lambda quick: [CASE, MIDDLE])
    assert softmax_bench.main(["--quick", "--runs", "1", "--cpu"]) == 0
    printed = capsys.readouterr().out
    for name in PASSES:
        assert printed.count(name) >= 2  # in the table of seconds and in that of memory
    for case in (CASE, MIDDLE):
        assert printed.count(str(case)) == 2
    count = len(PASSES) + 4
    assert "CPU seconds" in printed and f"memory {count} of {count}" in printed


@pytest.mark.parametrize("name", PASSES)
def test_a_wrong_result_is_seen(name: str) -> None:
    inputs = SoftmaxInputs(CASE)
    ours, theirs = PASSES[name].ours(inputs), PASSES[name].torch(inputs)
    assert softmax_bench.difference(ours, theirs) <= softmax_bench.LARGEST_DIFFERENCE
    for wrong in (np.zeros_like(ours), np.negative(ours)):
        assert softmax_bench.difference(wrong, theirs) > softmax_bench.LARGEST_DIFFERENCE


def test_a_process_measures_the_memory_of_a_pass() -> None:
    use = _softmax.measure_softmax_memory(CASE, "log_softmax")
    assert use.arrays == 4 * 40 * 300 * 2


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--tune"]], ids=str)
def test_a_wrong_command_line_ends(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        softmax_bench.parse_arguments(arguments)
