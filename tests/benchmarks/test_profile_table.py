# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.profile_table`: the kernels are within the goals, and a miss is shown as one."""

from __future__ import annotations

import pytest

from benchmarks import profile_table
from benchmarks.profile_table import main, rows, shifted_rows
from nkilib.experimental.loss import Tiling


@pytest.mark.parametrize(
    ("target", "status", "met"),
    # Without the exact maximum 32,128 is 1.14 times its bound: a loop of the device costs more than is left to 1.10.
    [("trn2", 1, "Goals met: 23 of 24."), ("trn3", 0, "Goals met: 20 of 20.")],
)
def test_the_kernels_are_at_the_roofline(
    capsys: pytest.CaptureFixture[str], target: str, status: int, met: str
) -> None:
    assert main(("--target", target)) == status
    printed = capsys.readouterr().out
    assert f"two cores of {target}" in printed and "Modelled, not measured" in printed
    assert met in printed


def test_without_the_exact_maximum_goals_of_its_own_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = shifted_rows((129280,))
    assert row.is_met and row.found.bound_by == "scalar"
    assert row.found.time_us < row.exact_us < row.all_recomputed_us
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
    assert results[0].found.bound_by == "vector" and results[1].found.bound_by == "scalar"
    assert results[0].found.time_us > results[1].found.time_us


def test_a_missed_goal_is_an_exit_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(profile_table.GOALS, "trn2", 1.0)
    assert main(("--vocabularies", "32128")) == 1
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
    """README and docs say of positions_per_batch=32, chunk_size=32768: about 4 times the bound in bfloat16."""
    monkeypatch.setattr(profile_table, "choose_tiling", lambda *launch: Tiling(32, 32768))
    for row in rows((129280,), "trn2"):
        if row.dtype == "bf16" and row.reading == "N":
            assert 3.5 < row.times_bound < 4.5, row
