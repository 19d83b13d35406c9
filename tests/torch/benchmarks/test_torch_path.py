# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The benchmark of nkilib.torch in its short form. Nothing here asserts a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import _against_torch as _torch_step
from benchmarks import torch_path
from benchmarks._cross_entropy import Case, Tuning
from benchmarks._launch_memory import TORCH_IN_PLACE, measure_memory
from benchmarks._memory import MemoryUse
from examples._display import make_console
from nkilib.torch import cross_entropy

CASE = Case(12, 400, "fp32")
MEASURED = TORCH_IN_PLACE, Tuning(0, 0)


@pytest.mark.parametrize("dtype_name", ["bf16", "fp32"])
def test_both_ways_do_the_same_work(dtype_name: str) -> None:
    compared = torch_path.compare(Case(12, 400, dtype_name), runs=1)
    assert [one.name for one in compared] == ["forward", "and backward", "in place"]
    for one in compared:
        assert one.is_equal and one.path > 0.0 and one.direct > 0.0


@pytest.mark.parametrize("way", ["direct", "path"])
def test_a_step_is_that_of_pytorch(way: str) -> None:
    step = torch_path.Step(CASE)
    inputs, targets = torch.from_numpy(step._given), torch.from_numpy(step._targets).long()
    leaf = inputs.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(leaf, targets)
    expected.backward()
    for inplace in (False, True):
        step.prepare()
        loss, gradient = getattr(step, way)(backward=True, inplace=inplace)
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        torch.testing.assert_close(torch.as_tensor(gradient), leaf.grad)
        overwritten = np.array_equal(step._logits, np.asarray(gradient))
        assert overwritten == inplace
    step.prepare()
    assert getattr(step, way)(backward=False, inplace=False)[1] is None


def test_memory_of_a_fresh_process() -> None:
    """A new process is measured with the same values that the command asks for, see the next test."""
    case = Case(300, 20_000, "fp32")
    use = measure_memory(case, *MEASURED)
    assert use.arrays == case.logits_bytes + case.rows * 4
    assert case.logits_bytes <= use.growth, "the logits are resident at the end"
    assert torch_path.meets_memory(case, use)
    assert not torch_path.meets_memory(case, MemoryUse(use.growth + torch_path.LARGEST_BEYOND_LOGITS, use.arrays))


def test_the_quick_form_prints_every_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One size runs in both dtypes. Measurements in a new process, which has to load torch, are tested above."""
    cases = torch_path.cases(quick=True)
    assert [case.dtype_name for case in cases[:2]] == ["bf16", "fp32"] and len(cases) == 4
    monkeypatch.setattr(torch_path, "cases", lambda quick: cases[:2] if quick else pytest.fail("not quick"))
    asked: list[Any] = []

    def measured(case: Case, *how: Any) -> MemoryUse:
        asked.append((case, *how))
        return MemoryUse(case.logits_bytes, case.logits_bytes)

    monkeypatch.setattr(torch_path, "measure_memory", measured)
    threads = torch.get_num_threads()
    try:
        assert torch_path.main(["--quick", "--runs", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
    assert asked == [(case, *MEASURED) for case in cases[:2]]
    shown = capsys.readouterr().out
    assert "not hardware" in shown and "\x1b" not in shown
    for case in cases[:2]:
        assert shown.count(str(case)) == 2, "a row or a group of rows in each of the two tables"
    assert "memory 2 of 2" in shown and "equal to the bit" in shown


@pytest.mark.parametrize(
    "change",
    [lambda loss: loss * 1.001, lambda loss: loss + (loss - loss.detach()) * 1e-3],
    ids=["loss", "gradient"],
)
def test_wrong_results_end_with_exit_code_1(
    change: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        _torch_step, "cross_entropy", lambda *arguments, **options: change(cross_entropy(*arguments, **options))
    )
    compared = torch_path.compare(CASE, runs=1)
    assert torch_path.report(make_console(), compared, []) == 1
    assert f"Wrong: {CASE} in place differs from the kernels' results." in capsys.readouterr().out


def test_a_missed_goal_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    slow = torch_path.Comparison(CASE, "forward", path=2.0, direct=1.0, is_equal=True)
    too_much = MemoryUse(growth=CASE.logits_bytes + torch_path.LARGEST_BEYOND_LOGITS + 1, arrays=0)
    assert torch_path.report(make_console(), [slow], [(CASE, too_much)]) == 0
    shown = capsys.readouterr().out
    assert "time 0 of 1, memory 0 of 1" in shown and shown.count("missed") == 2


def test_the_way_of_an_argument_to_its_kernel() -> None:
    """Checks and conversions of one argument that lie in several files show here."""
    logits, target = torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64)
    path = torch_path.input_path(lambda input: cross_entropy(input, target), logits)
    assert path.files[0] == "torch/functions/cross_entropy/functional.py", path
    assert len(set(path.files)) <= 9 and path.returns <= 6, path
    assert path.frames < 200, path


def test_arguments_and_no_simulator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        torch_path.main(["--runs", "0"])
    assert ended.value.code == 2
    assert "--runs must be at least 1, got 0" in capsys.readouterr().err
    monkeypatch.setattr(torch_path, "SIMULATED", False)
    assert torch_path.main(["--quick"]) == 2
    assert "set NKILIB_BACKEND=simulator" in capsys.readouterr().out
