# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The commands that measure errors, in their short forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import sweep
from benchmarks import sweep as _errors
from benchmarks._cross_entropy import CORES, Case, Tuning, backward
from benchmarks.linear_distillation_errors import LARGE, Errors, Sizes, errors_of, problem_of
from benchmarks.sweep import measure_errors, refusal
from tests.fresh_python import run_fresh


def test_quick_sweep_runs_and_says_what_it_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["--quick"]) == 0
    shown = capsys.readouterr().out
    assert "not hardware" in shown and "\x1b" not in shown
    skipped = [line for line in shown.splitlines() if "skipped: " in line]
    # V = 1 and 507 take only chunks of the whole; V = 32128 takes all but 65535 and 32768.
    assert len(skipped) == 2 * (4 + 4 + 2)
    assert all("chunk_size must be at most the vocabulary size" in line for line in skipped)
    assert "10 combinations run, all within the bounds; 20 skipped" in shown


def test_the_whole_sweep_is_the_promised_one() -> None:
    options = sweep.parse_arguments([])
    assert options.rows == 512
    assert options.vocabularies == [1, 2, 507, 32000, 32128, 50257, 129280, 151936, 201088, 202408]
    assert len(list(sweep.combinations(options.rows, options.vocabularies))) == 10 * 2 * 5
    assert sweep.tunings(50257)[:4] == (Tuning(64, 32128), Tuning(64, 65535), Tuning(128, 16384), Tuning(64, 32768))
    assert sweep.tunings(50257)[4] == Tuning(128, 8192)
    assert sweep.tunings(507)[4] == Tuning(128, 507)


def test_a_chunk_that_does_not_fit_is_refused_with_the_kernels_words() -> None:
    reason = refusal(Case(512, 129280, "fp32"), Tuning(64, 65535))
    assert reason is not None and reason.startswith("cross_entropy_forward: a chunk of 65535 elements of float32")
    assert refusal(Case(512, 129280, "bf16"), Tuning(64, 65535)) is None


def test_an_assertion_after_the_first_instruction_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    right = backward

    def failing(*arguments: Any, **options: Any) -> None:
        right(*arguments, **options)
        raise AssertionError("a defect")

    monkeypatch.setattr(_errors, "backward", failing)
    with pytest.raises(AssertionError, match=r"^a defect$"):
        refusal(Case(4, 60, "fp32"), Tuning(2, 30))


@pytest.mark.parametrize("dtype_name", ["bf16", "fp32"])
def test_shares_are_those_of_the_worst_element(dtype_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, tuning = Case(40, 700, dtype_name), Tuning(8, 300)
    monkeypatch.setattr(_errors, "BLOCK_ELEMENTS", 3 * 700)  # several blocks, the last of them short
    exact = measure_errors(case, tuning)
    assert exact.within_bounds
    assert min(exact.loss, exact.lse, exact.gradient) > 0.0, "rounding leaves a trace in each"

    right = backward

    def one_element_off(*arguments: Any, **options: Any) -> np.ndarray:
        gradient = right(*arguments, **options)
        gradient[39, 699] += np.float32(0.01)
        return gradient

    monkeypatch.setattr(_errors, "backward", one_element_off)
    wrong = measure_errors(case, tuning)
    assert wrong.gradient > 1.0 and not wrong.within_bounds
    assert (wrong.loss, wrong.lse) == (exact.loss, exact.lse)


@pytest.mark.parametrize("result", ["loss", "lse", "gradient"])
def test_nan_is_beyond_the_bounds(
    result: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "backward" if result == "gradient" else "forward"
    right = getattr(_errors, name)

    def with_nan(logits: np.ndarray, *arguments: Any, **options: Any) -> Any:
        results = right(logits, *arguments, **options)
        if len(logits) > CORES:  # not in the launch that asks for a refusal
            at = results if result == "gradient" else results[("loss", "lse").index(result)]
            at[2] = np.nan
        return results

    monkeypatch.setattr(_errors, name, with_nan)
    assert sweep.main(["--rows", "16", "--vocabularies", "507"]) == 1
    assert "2 combinations run, 2 beyond the bounds" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--vocabularies", "5", "-1"]])
def test_sizes_must_be_positive(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sweep.main(arguments)
    assert ended.value.code == 2
    assert "must be positive" in capsys.readouterr().err


def test_without_the_simulator_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "SIMULATED", False)
    assert sweep.main(["--quick"]) == 2
    assert "set NKILIB_BACKEND=simulator" in capsys.readouterr().out


def test_the_sweep_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from benchmarks import sweep; sys.exit(sweep.main(['--quick']))"
    outcome = run_fresh(code)
    assert outcome.error == "" and "all within the bounds" in outcome.output


# G, and dX or dW, are rounded to bfloat16 once each: 2.30e-3 and 2.36e-3 in norm, for so many positions that it evens
# out, and to three digits.
INPUT, WEIGHT, WORST_ROW = 2.305e-3, 2.365e-3, 4.6e-3
OF_FEW = 1.05


def _check(errors: Errors, divergence: float, factor: float = 1.0) -> None:
    assert 0.0 < errors.divergence <= divergence
    assert errors.entropy <= 1e-7
    assert errors.input is not None and errors.weight is not None and errors.worst_row is not None
    assert 1e-3 < errors.input <= factor * INPUT and 1e-3 < errors.weight <= factor * WEIGHT
    assert errors.worst_row <= WORST_ROW


@pytest.mark.parametrize("beta", (0.0, 0.5, 1.0))
def test_errors_of_a_few_thousand_classes(beta: float) -> None:
    _check(errors_of(problem_of(Sizes(128, 128, 256, 4096), beta)), 4.5e-7, OF_FEW)


def test_errors_of_a_near_teacher_are_absolute_ones_of_float32() -> None:
    """A KL of 2e-4 is a difference of logs of 10, and its error some 1e-7; a mixture's has no such difference."""
    sizes = Sizes(128, 128, 128, 4096)
    assert errors_of(problem_of(sizes, 1.0, is_near=True), with_gradients=False).divergence <= 1e-3
    assert errors_of(problem_of(sizes, 0.5, is_near=True), with_gradients=False).divergence <= 2e-4


@pytest.mark.sweep
@pytest.mark.parametrize("beta", (0.0, 0.5, 1.0))
def test_errors_of_a_large_vocabulary(beta: float) -> None:
    _check(errors_of(problem_of(LARGE, beta)), 5e-7)
