# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.linear_bench` runs, and says when the results differ. No time is asserted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import _linear, linear_bench
from benchmarks._linear import FORWARD, FORWARD_BACKWARD, PASSES, LinearCase, LinearInputs
from benchmarks._memory import MemoryUse

CASE = LinearCase(40, 64, 300)


@pytest.fixture(autouse=True)
def no_other_process(monkeypatch: Any) -> None:
    """Each of them takes seconds to import torch."""
    monkeypatch.setattr(linear_bench, "measure_linear_memory", lambda *_: MemoryUse(growth=3 << 20, arrays=1 << 20))


def test_it_runs_and_prints_every_pass(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(linear_bench, "QUICK_CASE", CASE)
    assert linear_bench.main(["--quick", "--runs", "1", "--cpu"]) == 0
    printed = capsys.readouterr().out
    for name in PASSES:
        assert printed.count(name) >= 2  # in the table of seconds and in that of memory
    assert "CPU seconds" in printed
    assert "(40, 64, 300)" in printed
    assert f"memory {len(PASSES)} of {len(PASSES)}" in printed


@pytest.mark.parametrize(
    "change", [np.zeros_like, np.negative, lambda array: array[::-1]], ids=["zeros", "sign", "order"]
)
def test_a_wrong_gradient_is_seen(change: Any) -> None:
    inputs = LinearInputs(CASE)
    expected = linear_bench.TorchLoss(inputs).forward_backward()
    loss, lse, grad_input, grad_weight = PASSES[FORWARD_BACKWARD](inputs)
    right = linear_bench.difference((loss, lse, grad_input, grad_weight), expected)
    assert right <= linear_bench.LARGEST_DIFFERENCE
    for wrong in ((change(grad_input), grad_weight), (grad_input, change(grad_weight))):
        assert linear_bench.difference((loss, lse, *wrong), expected) > linear_bench.LARGEST_DIFFERENCE


def test_a_process_measures_the_memory_of_a_pass() -> None:
    use = _linear.measure_linear_memory(CASE, FORWARD)
    inputs = LinearInputs(CASE)
    assert use.arrays == sum(array.nbytes for array in inputs.arrays) + 2 * 4 * CASE.positions


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'sideways'"):
        _linear.measure_linear_memory(CASE, "sideways")


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--tune"]], ids=str)
def test_a_wrong_command_line_ends(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        linear_bench.parse_arguments(arguments)
