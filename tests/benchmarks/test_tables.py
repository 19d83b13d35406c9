# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tables of modelled figures: each is within its goals, and a miss is shown as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from benchmarks import _display, linear_table, model_figures, profile_table, score_table, selection_guide
from benchmarks.linear_table import PUBLISHED, Forms, Launch, launches
from benchmarks.model_figures import FIGURES, Figure, markdown, matmul, rmsnorm_quant, tiled_matmul
from benchmarks.profile_table import rows, shifted_rows
from nkilib.experimental.loss import Tiling
from nkilib.nki import nki


@pytest.mark.parametrize(
    ("target", "status", "met"),
    # Without the exact maximum 32,128 is 1.14 times its bound: a loop of the device costs more than is left to 1.10.
    [("trn2", 1, "Goals met: 23 of 24."), ("trn3", 0, "Goals met: 20 of 20.")],
)
def test_the_kernels_are_at_the_roofline(
    capsys: pytest.CaptureFixture[str], target: str, status: int, met: str
) -> None:
    assert profile_table.main(("--target", target)) == status
    printed = capsys.readouterr().out
    assert f"two cores of {target}" in printed and "Modelled, not measured" in printed
    assert met in printed


def test_without_the_exact_maximum_goals_of_its_own_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = shifted_rows((129280,))
    assert row.is_met and row.found.bound_by == "scalar"
    assert row.exact_us < row.found.time_us < row.all_recomputed_us
    for name in ("SHIFTED_GOAL", "OF_EXACT_GOAL", "ALL_RECOMPUTED_GOAL"):
        with monkeypatch.context() as patch:
            patch.setattr(profile_table, name, 0.5)
            assert not row.is_met


def test_both_readings_of_the_maximum_are_shown() -> None:
    results = list(rows((32128,), "trn2"))
    kinds = [(row.dtype, row.direction, row.reading) for row in results]
    assert kinds == [
        ("bf16", "forward", "N"),
        ("bf16", "forward", "N/2"),
        ("bf16", "backward", "N"),
        ("fp32", "forward", "N"),
        ("fp32", "backward", "N"),
    ]
    assert results[0].found.bound_by == "scalar" and results[1].found.bound_by == "scalar"
    assert results[0].found.time_us > results[1].found.time_us


def test_a_missed_goal_is_an_exit_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(profile_table.GOALS, "trn2", 1.0)
    assert profile_table.main(("--vocabularies", "32128")) == 1
    printed = capsys.readouterr().out
    assert "missed" in printed and "Goals met: 0 of 6." in printed


@pytest.mark.parametrize(
    ("name", "goal"),
    [("TRAFFIC_GOALS", {"forward": 0.9, "backward": 1.9}), ("INSTRUCTIONS_OF_BATCH", 0)],
)
def test_bytes_and_instructions_are_goals_too(monkeypatch: pytest.MonkeyPatch, name: str, goal: object) -> None:
    row = next(rows((32128,), "trn2"))
    assert row.is_met
    monkeypatch.setattr(profile_table, name, goal)
    assert not row.is_met


def test_the_seed_defaults_are_far_from_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """README and docs say of positions_per_batch=32, chunk_size=32768: about 4 times the bound in bfloat16, 5 times
    with the exact maximum.
    """
    monkeypatch.setattr(profile_table, "choose_tiling", lambda *launch: Tiling(32, 32768))
    for row in rows((129280,), "trn2"):
        if row.dtype == "bf16" and row.reading == "N":
            assert 3.5 < row.times_bound < 5.2, row


# `benchmarks.linear_table`: every row has a goal, and what is missed is shown as that.

SMALL = Launch(256, 512, 4096, "forward", 9.0)


def test_goals_are_those_of_their_sizes() -> None:
    goals = {
        (row.direction, row.positions, row.features): row.goal
        for row in launches()
        if (row.dtype, row.layout) == ("bf16", "vd") and not row.options and not row.one_queue
    }
    assert goals["forward", 2048, 1024] == goals["forward", 4096, 8192] == 1.02
    assert (goals["forward", 1024, 4096], goals["forward", 512, 4096], goals["forward", 4096, 512]) == (1.03, 1.1, 1.1)
    assert [goals["backward", positions, 4096] for positions in (4096, 1024, 512)] == [1.04, 1.06, 1.1]
    assert [goals["backward", positions, 1024] for positions in (4096, 1024, 512)] == [1.06, 1.07, 1.2]
    assert goals["forward", 16384, 4096] == goals["backward", 16384, 4096] == 1.08
    names = [(row.direction, row.positions, row.features, row.vocabulary, row.notes) for row in launches()]
    assert len(names) == len(set(names))


def test_a_row_is_met_by_its_time_and_its_program() -> None:
    profiled = SMALL.profile()
    row = linear_table.Row(SMALL, profiled, SMALL.program())
    assert row.is_met and row.program > 100
    assert not replace(row, launch=replace(SMALL, goal=0.9)).is_met
    assert not replace(row, program=30_001).is_met


def test_one_launch_is_compared_with_two() -> None:
    forms = Forms(256, 512, 8192)
    assert 0.5 < forms.ratio < 1.2
    two, one = forms.mebibytes
    assert two == 8 * 256 * 512 / 2**20 and one == two + 4 * 256 * 8192 / 2**20
    assert (forms.positions, forms.features, forms.vocabulary) != PUBLISHED


def test_nothing_is_shown_where_nothing_models(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_display, "SIMULATED", False)
    assert linear_table.main(()) == 2
    assert capsys.readouterr().out.strip() == _display.NOT_SIMULATED


@pytest.mark.parametrize(("goal", "status", "met"), [(9.0, 0, "Goals met: 2 of 2."), (0.9, 1, "Goals met: 1 of 2.")])
def test_a_missed_goal_of_linear_losses_is_an_exit_code(
    goal: float, status: int, met: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_table, "launches", lambda: iter([replace(SMALL, goal=goal)]))
    monkeypatch.setattr(linear_table, "ONE_LAUNCH_SHAPES", [(256, 512, 8192)])
    monkeypatch.setattr(linear_table, "OF_TWO_LAUNCHES", 1.2)
    assert linear_table.main(()) == status
    printed = capsys.readouterr().out
    assert met in printed and ("missed" in printed) == bool(status) and "not measured" in printed


# `benchmarks.model_figures`: its kernels compute what they should, and the docs show what it finds.

FIGURES_PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "model_figures.md"
# Those of large products take seconds.
QUICK = [figure for figure in FIGURES if not figure.what.startswith("matmul")]


@pytest.mark.parametrize("kernel", [matmul, tiled_matmul])
def test_the_products(kernel: object) -> None:
    rng = np.random.default_rng(0)
    lhs_t, rhs = (rng.standard_normal((2048, 1024)).astype(np.float32) for _ in range(2))
    result = nki.jit(kernel)(lhs_t, rhs)
    # 2,048 float32 products of magnitude about 1 a sum.
    np.testing.assert_allclose(result, lhs_t.astype(float).T @ rhs.astype(float), atol=2e-3)


def test_the_normalization() -> None:
    rng = np.random.default_rng(0)
    x = (1 + rng.random((256, 1024))).astype(ml_dtypes.bfloat16)  # positive: the kernel takes a maximum
    gamma = (1 + rng.random((1, 1024))).astype(ml_dtypes.bfloat16)
    quantized, scales = nki.jit(rmsnorm_quant)[2](x, gamma)
    exact = x.astype(float)
    normed = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True)) * gamma.astype(float)
    np.testing.assert_allclose(scales, normed.max(axis=1, keepdims=True) / 240, rtol=2**-8)
    # float8 with 3 bits of fraction, after a bfloat16 with 7.
    np.testing.assert_allclose(quantized.astype(float) * scales, normed, rtol=2**-4 + 2**-7)


@pytest.mark.parametrize("figure", QUICK, ids=lambda figure: figure.what)
def test_the_docs_show_what_the_model_says(figure: Figure) -> None:
    (line,) = markdown([model_figures.Row(figure, figure.modelled())]).splitlines()[2:]
    assert line in FIGURES_PAGE.read_text(encoding="utf-8").splitlines()


def test_a_row_that_misses_says_so() -> None:
    figure = Figure("x", "us", 100.0, "page", 0.15, lambda: 0.0)
    assert model_figures.Row(figure, 115.0).is_met and model_figures.Row(figure, 85.1).is_met
    assert not model_figures.Row(figure, 115.1).is_met and not model_figures.Row(figure, 84.9).is_met
    assert "| 0.50 | **missed** 15% |" in markdown([model_figures.Row(figure, 50.0)])


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(model_figures, "FIGURES", QUICK[:3])
    assert model_figures.main([]) == 0
    shown = capsys.readouterr().out
    assert "modelled, not measured" in shown and "trn2" in shown
    assert "Within the goal: 3 of 3." in shown
    assert model_figures.main(["--markdown"]) == 0
    assert capsys.readouterr().out.count("\n") == 5


# `benchmarks.score_table`: which goals of token scores are met, and that a miss is shown as one.


def test_short_launches_miss_the_goal_of_the_shift_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A loop for recomputed rows takes 25 us to start and end, a third of the plain forward there."""
    assert score_table.main(()) == 1
    printed = capsys.readouterr().out
    assert "Goals met: 3 of 4." in printed and "modelled, not measured" in printed
    (missed,) = (line.split() for line in printed.splitlines() if line.rstrip().endswith("missed"))
    assert missed[:3] == ["512", "32768", "shift"]


# `benchmarks.selection_guide`: docs/reference/kernels.md shows what it prints.

KERNELS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kernels.md"


def test_the_docs_show_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert selection_guide.main() == 0
    assert capsys.readouterr().out in KERNELS_PAGE.read_text(encoding="utf-8")
