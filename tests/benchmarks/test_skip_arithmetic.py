# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.skip_arithmetic` runs its kernels both ways. No time is asserted."""

from __future__ import annotations

import json

import pytest

from benchmarks import skip_arithmetic
from benchmarks.skip_arithmetic import KERNELS, Cost, Sizes, main, measure_apart

SMALL = {"rows": 128, "vocabulary": 32_768, "positions": 128, "features": 128, "classes": 512}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_runs_both_ways(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for way in ("computed", "skipped"):
        assert main(["--only", name, "--way", way, "--sizes", json.dumps(SMALL)]) == 0
        assert json.loads(capsys.readouterr().out)["seconds"] > 0


def test_it_judges_by_the_ratio(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"computed": 10.0, "skipped": 2.0}
    monkeypatch.setattr(skip_arithmetic, "measure_apart", lambda name, way, cores, sizes: Cost(seconds[way], 1.0))
    assert main([]) == 0
    assert "Goals met: 4 of 4." in capsys.readouterr().out
    seconds["skipped"] = 2.1
    assert main([]) == 1


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="invalid choice: 'nothing'"):
        measure_apart("nothing", "skipped", 1, Sizes())
