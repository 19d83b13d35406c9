# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.loss_bench` runs, and says when the results differ. No time is asserted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nkilib.torch
from benchmarks import _losses, loss_bench
from benchmarks._losses import BACKWARD, LOSSES, PASSES, LossCase, LossInputs
from benchmarks._memory import MemoryUse
from nkilib.experimental.loss import l1, registry

SHAPE = (12, 70)


def test_it_runs_and_prints_every_pass(capsys: Any, monkeypatch: Any) -> None:
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
@pytest.mark.parametrize("name", PASSES)
def test_a_wrong_result_is_seen(case: LossCase, name: str) -> None:
    inputs = LossInputs.of(case)
    ours, theirs = PASSES[name](inputs, nkilib.torch), PASSES[name](inputs.in_float32(), F)
    assert loss_bench.difference(ours, theirs) <= loss_bench.LARGEST_DIFFERENCE
    for wrong in (torch.zeros_like(ours), -ours):
        assert loss_bench.difference(wrong, theirs) > loss_bench.LARGEST_DIFFERENCE


def test_a_process_measures_the_memory_of_a_pass() -> None:
    use = _losses.measure_loss_memory(LossCase("kl_div", SHAPE, "bf16"), BACKWARD)
    assert use.arrays == 3 * SHAPE[0] * SHAPE[1] * 2


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--tune"], ["no_loss"]], ids=str)
def test_a_wrong_command_line_ends(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        loss_bench.parse_arguments(arguments)
