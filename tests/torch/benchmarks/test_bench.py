# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The benchmark in its short form. Nothing here asserts a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import _against_torch, _memory, bench
from benchmarks import bench as _tune
from benchmarks._against_torch import SharedInputs, as_tensor, compare_backward, compare_forward, gradient_difference
from benchmarks._cross_entropy import Case, Tuning
from benchmarks._inputs import BF16, FP32
from benchmarks._launch_memory import BACKWARD, BACKWARD_IN_PLACE, FORWARD, measure_memory
from benchmarks._memory import MemoryUse
from examples._display import make_console

CASE = Case(12, 400, "fp32")
TUNING = Tuning(4, 150)


def test_tensor_and_array_are_one_memory() -> None:
    for dtype, torch_dtype in ((BF16, torch.bfloat16), (FP32, torch.float32)):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        tensor = as_tensor(array)
        assert tensor.dtype == torch_dtype and tensor.tolist() == array.astype(np.float32).tolist()
        array[1, 2] = 77
        assert tensor[1, 2] == 77


@pytest.mark.parametrize("dtype_name", ["bf16", "fp32"])
def test_kernels_and_torch_do_the_same_work(dtype_name: str) -> None:
    inputs = SharedInputs(Case(12, 400, dtype_name))
    before = inputs.logits.tobytes()
    comparisons = [compare_forward(inputs, TUNING, runs=1), *compare_backward(inputs, TUNING, runs=1)]
    assert [comparison.name for comparison in comparisons] == ["forward", "backward", "in place"]
    for comparison in comparisons:
        assert comparison.did_same_work and comparison.ours > 0.0 and comparison.torch > 0.0
        assert dtype_name == "bf16" or comparison.difference < 1e-5
    assert inputs.logits.tobytes() == before, "what is compared next starts from the same logits"


def test_ratio_is_ours_over_torch() -> None:
    assert _against_torch.Comparison("forward", ours=3.0, torch=1.5, difference=0.0).ratio == 2.0


def test_gradient_difference_sees_targets_and_the_rest_apart() -> None:
    targets = np.array([2, 0, 5])
    exact = np.full((3, 50), 1e-3, np.float32)
    exact[np.arange(3), targets] = -1.0
    theirs = torch.from_numpy(exact)
    assert gradient_difference(exact, theirs, targets) == 0.0
    rest_off = exact * np.float32(1.5)
    rest_off[np.arange(3), targets] = -1.0
    assert gradient_difference(rest_off, theirs, targets) == pytest.approx(0.5, rel=1e-6)
    target_off = exact.copy()
    target_off[np.arange(3), targets] = -0.75
    assert gradient_difference(target_off, theirs, targets) == pytest.approx(0.25, rel=1e-6)
    assert gradient_difference(np.zeros_like(exact), theirs, targets) == pytest.approx(1.0)


@pytest.mark.parametrize(("pass_name", "gradients"), [(FORWARD, 0), (BACKWARD, 1), (BACKWARD_IN_PLACE, 0)])
def test_memory_of_a_fresh_process(pass_name: str, gradients: int) -> None:
    case = Case(300, 20_000, "fp32")
    use = measure_memory(case, pass_name, Tuning(16, 2000))
    small = case.rows * 4
    # Targets and log-sum-exp, and the loss too where there is one.
    assert use.arrays == (1 + gradients) * case.logits_bytes + (3 if pass_name == FORWARD else 2) * small
    assert use.growth >= use.arrays, "all arrays are resident at the end"
    assert use.beyond_arrays == use.growth - use.arrays < bench.LARGEST_BEYOND_ARRAYS


def test_memory_of_a_launch_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1:.*chunk_size must be at most the vocabulary size 400"):
        measure_memory(CASE, FORWARD, Tuning(4, 401))


def test_peak_memory_does_not_shrink() -> None:
    before = _memory.peak_resident_bytes()
    assert 0 < _memory.resident_bytes() <= before
    block = np.ones(100 << 20, np.uint8)
    assert _memory.peak_resident_bytes() >= _memory.resident_bytes() >= block.nbytes


def test_tuning_tries_legal_ones_only_and_picks_the_fastest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[list[str]] = []

    def pretend(contenders: dict[str, Any], runs: int) -> dict[str, float]:
        rounds.append(list(contenders))
        fastest = "64 x 2048" if len(rounds) == 1 else "128 x 3000"
        return {name: 0.5 if name == fastest else 1.0 for name in contenders}

    monkeypatch.setattr(_tune, "interleaved_minimum", pretend)
    monkeypatch.setattr(_tune, "CHUNKS", (2048, 65535))
    case = Case(4, 3000, "bf16")
    assert _tune.best_tuning(make_console(), case, SharedInputs(case)) == (Tuning(64, 2048), Tuning(128, 3000))
    assert rounds[0] == rounds[1] == [f"{p} x {c}" for p in (32, 64, 128) for c in (2048, 3000)]
    wide = Case(2, 65535, "fp32")  # a chunk of 65535 float32 does not fit a partition of SBUF
    _tune.best_tuning(make_console(), wide, SharedInputs(wide))
    assert rounds[2] == [f"{p} x 2048" for p in (32, 64, 128)]
    assert "128 x 3000" in capsys.readouterr().out


def test_quick_bench_prints_every_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The passes of one size in both dtypes are printed: each pass takes a new process."""
    cases = bench.cases(quick=True)
    assert [case.dtype_name for case in cases[:2]] == ["bf16", "fp32"] and len(cases) == 4
    monkeypatch.setattr(bench, "cases", lambda quick: cases[:2] if quick else pytest.fail("not quick"))
    threads = torch.get_num_threads()
    try:
        assert bench.main(["--quick", "--runs", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert "not hardware" in shown and "torch.nn.functional.cross_entropy" in shown
    for case in cases[:2]:
        assert shown.count(str(case)) == 3, "a group of rows in each of the three tables"
    assert "memory 6 of 6" in shown and "Both did the work" in shown
    assert "\x1b" not in shown


def test_cases_are_those_of_large_vocabularies() -> None:
    sizes = {(case.rows, case.vocabulary, case.dtype_name) for case in bench.cases(quick=False)}
    assert sizes == {(n, v, dtype) for n, v in ((1024, 32128), (512, 129280)) for dtype in ("bf16", "fp32")}


@pytest.mark.parametrize("wrong", ["forward", "backward"])
def test_wrong_results_end_with_exit_code_1(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = getattr(_against_torch, wrong)

    def changed(*arguments: Any, **options: Any) -> Any:
        results = right(*arguments, **options)
        return (results[0] * 2, results[1]) if wrong == "forward" else np.multiply(results, -1, out=results)

    monkeypatch.setattr(_against_torch, wrong, changed)
    monkeypatch.setattr(bench, "measure_memory", lambda *arguments: MemoryUse(growth=2, arrays=1))
    monkeypatch.setattr(bench, "cases", lambda quick: [CASE])
    assert bench.main(["--runs", "1"]) == 1
    assert f"Wrong: {CASE} {wrong} differs from torch" in capsys.readouterr().out


def test_a_missed_goal_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    too_much = MemoryUse(growth=1 + bench.LARGEST_BEYOND_ARRAYS, arrays=0)
    monkeypatch.setattr(bench, "measure_memory", lambda *arguments: too_much)
    monkeypatch.setattr(bench, "LARGEST_RATIO", 0.0)
    monkeypatch.setattr(bench, "LARGEST_RATIO_OF_PROFILE", 0.0)
    monkeypatch.setattr(bench, "cases", lambda quick: [CASE])
    assert bench.main(["--runs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "time 0 of 3, profile 0 of 1, memory 0 of 3" in shown and shown.count("missed") == 7


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--help"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        bench.main(["--runs", "0"])
    assert ended.value.code == 2
    assert "--runs must be at least 1, got 0" in capsys.readouterr().err


def test_without_the_simulator_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "SIMULATED", False)
    assert bench.main(["--quick"]) == 2
    assert "set NKILIB_BACKEND=simulator" in capsys.readouterr().out


def test_the_goal_of_the_bf16_forward_is_its_own() -> None:
    def result(dtype_name: str, name: str) -> bench.Result:
        comparison = _against_torch.Comparison(name, ours=1.0, torch=1.0, difference=0.0)
        return bench.Result(Case(12, 400, dtype_name), TUNING, comparison, MemoryUse(0, 0))

    met = {(d, n): result(d, n).meets_time for d in ("bf16", "fp32") for n in (FORWARD, BACKWARD, BACKWARD_IN_PLACE)}
    assert [case for case, is_met in met.items() if is_met] == [("bf16", FORWARD)]


def test_chunks_are_as_large_as_may_be_and_equal() -> None:
    assert [bench.default_tuning(case).chunk for case in bench.cases(quick=False)] == [32128, 32128, 64640, 32320]
