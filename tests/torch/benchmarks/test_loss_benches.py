# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.loss_bench`, `linear_bench` and `softmax_bench` run, and say when results differ. No time is asserted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nkilib.torch
from benchmarks import _linear, _losses, _softmax, linear_bench, loss_bench, softmax_bench
from benchmarks._linear import FORWARD, FORWARD_BACKWARD, LinearCase, LinearInputs
from benchmarks._losses import BACKWARD, LOSSES, LossCase, LossInputs
from benchmarks._memory import MemoryUse
from benchmarks._softmax import SoftmaxCase, SoftmaxInputs
from nkilib.experimental.loss import registry
from nkilib.experimental.loss.elementwise import l1

SHAPE = (12, 70)


def test_the_loss_bench_prints_every_pass(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(loss_bench, "measure_loss_memory", lambda *_: MemoryUse(growth=3 << 20, arrays=1 << 20))
    assert loss_bench.main(["--quick", "--runs", "1", "--cpu", "kl_div"]) == 0
    printed = capsys.readouterr().out
    for dtype_name in ("fp32", "bf16"):
        assert (
            printed.count(str(LossCase("kl_div", LOSSES["kl_div"].quick_shape, dtype_name))) == 2
        )  # in seconds and in memory
    assert "CPU seconds" in printed and "memory 4 of 4" in printed


def test_every_loss_is_measured() -> None:
    """Cross-entropies have benchmarks of their own, and losses that PyTorch does not have are not compared with it."""
    of_torch = {loss.name for loss in registry.LOSSES if hasattr(F, loss.name)}
    assert of_torch == {*LOSSES, "cross_entropy", "linear_cross_entropy"}


def test_a_loss_that_pytorch_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LOSSES", (l1.L1_LOSS, replace(l1.L1_LOSS, name="log_cosh")))
    assert [loss.name for loss in _losses._measured()] == ["l1_loss"]


def test_what_torch_has_not_in_bfloat16_is_left_out() -> None:
    assert [case.dtype_name for case in loss_bench.cases(True, ["ctc_loss", "mse_loss"])] == ["fp32", "fp32", "bf16"]


@pytest.mark.parametrize("case", loss_bench.cases(True, list(LOSSES)), ids=str)
@pytest.mark.parametrize("name", _losses.PASSES)
def test_a_wrong_result_of_a_loss_is_seen(case: LossCase, name: str) -> None:
    inputs = LossInputs.of(case)
    ours, theirs = _losses.PASSES[name](inputs, nkilib.torch), _losses.PASSES[name](inputs.in_float32(), F)
    assert loss_bench.difference(ours, theirs) <= loss_bench.LARGEST_DIFFERENCE
    for wrong in (torch.zeros_like(ours), -ours):
        assert loss_bench.difference(wrong, theirs) > loss_bench.LARGEST_DIFFERENCE


def test_a_process_measures_the_memory_of_a_loss_pass() -> None:
    use = _losses.measure_loss_memory(LossCase("kl_div", SHAPE, "bf16"), BACKWARD)
    assert use.arrays == 3 * SHAPE[0] * SHAPE[1] * 2


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--tune"], ["no_loss"]], ids=str)
def test_a_wrong_command_line_of_the_loss_bench_ends(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        loss_bench.parse_arguments(arguments)


LINEAR_CASE = LinearCase(40, 64, 300)


@pytest.fixture
def _no_other_process(monkeypatch: Any) -> None:
    """Each of them takes seconds to import torch."""
    monkeypatch.setattr(linear_bench, "measure_linear_memory", lambda *_: MemoryUse(growth=3 << 20, arrays=1 << 20))


@pytest.mark.usefixtures("_no_other_process")
def test_the_linear_bench_prints_every_pass(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(linear_bench, "QUICK_CASE", LINEAR_CASE)
    assert linear_bench.main(["--quick", "--runs", "1", "--cpu"]) == 0
    printed = capsys.readouterr().out
    for name in _linear.PASSES:
        assert printed.count(name) >= 2  # in the table of seconds and in that of memory
    assert "CPU seconds" in printed
    assert "(40, 64, 300)" in printed
    assert f"memory {len(_linear.PASSES)} of {len(_linear.PASSES)}" in printed


@pytest.mark.usefixtures("_no_other_process")
@pytest.mark.parametrize(
    "change", [np.zeros_like, np.negative, lambda array: array[::-1]], ids=["zeros", "sign", "order"]
)
def test_a_wrong_gradient_is_seen(change: Any) -> None:
    inputs = LinearInputs(LINEAR_CASE)
    expected = linear_bench.TorchLoss(inputs).forward_backward()
    loss, lse, grad_input, grad_weight = _linear.PASSES[FORWARD_BACKWARD](inputs)
    right = linear_bench.difference((loss, lse, grad_input, grad_weight), expected)
    assert right <= linear_bench.LARGEST_DIFFERENCE
    for wrong in ((change(grad_input), grad_weight), (grad_input, change(grad_weight))):
        assert linear_bench.difference((loss, lse, *wrong), expected) > linear_bench.LARGEST_DIFFERENCE


def test_a_process_measures_the_memory_of_a_linear_pass() -> None:
    use = _linear.measure_linear_memory(LINEAR_CASE, FORWARD)
    inputs = LinearInputs(LINEAR_CASE)
    assert use.arrays == sum(array.nbytes for array in inputs.arrays) + 2 * 4 * LINEAR_CASE.positions


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'sideways'"):
        _linear.measure_linear_memory(LINEAR_CASE, "sideways")


@pytest.mark.usefixtures("_no_other_process")
@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--tune"]], ids=str)
def test_a_wrong_command_line_of_the_linear_bench_ends(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        linear_bench.parse_arguments(arguments)


SOFTMAX_CASE = SoftmaxCase((40, 300), -1, "bf16")
MIDDLE = SoftmaxCase((2, 70, 40), 1, "fp32")


def test_the_softmax_bench_prints_every_pass(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(softmax_bench, "measure_softmax_memory", lambda *_: MemoryUse(growth=3 << 20, arrays=1 << 20))
    monkeypatch.setattr(softmax_bench, "cases", lambda quick: [SOFTMAX_CASE, MIDDLE])
    assert softmax_bench.main(["--quick", "--runs", "1", "--cpu"]) == 0
    printed = capsys.readouterr().out
    for name in _softmax.PASSES:
        assert printed.count(name) >= 2  # in the table of seconds and in that of memory
    for case in (SOFTMAX_CASE, MIDDLE):
        assert printed.count(str(case)) == 2
    count = len(_softmax.PASSES) + 4
    assert "CPU seconds" in printed and f"memory {count} of {count}" in printed


@pytest.mark.parametrize("name", _softmax.PASSES)
def test_a_wrong_result_of_a_softmax_is_seen(name: str) -> None:
    inputs = SoftmaxInputs(SOFTMAX_CASE)
    ours, theirs = _softmax.PASSES[name].ours(inputs), _softmax.PASSES[name].torch(inputs)
    assert softmax_bench.difference(ours, theirs) <= softmax_bench.LARGEST_DIFFERENCE
    for wrong in (np.zeros_like(ours), np.negative(ours)):
        assert softmax_bench.difference(wrong, theirs) > softmax_bench.LARGEST_DIFFERENCE


def test_a_process_measures_the_memory_of_a_softmax_pass() -> None:
    use = _softmax.measure_softmax_memory(SOFTMAX_CASE, "log_softmax")
    assert use.arrays == 4 * 40 * 300 * 2


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--tune"]], ids=str)
def test_a_wrong_command_line_of_the_softmax_bench_ends(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        softmax_bench.parse_arguments(arguments)
