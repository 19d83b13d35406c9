# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.instruction_cost` runs, measures what it says, and judges by its goal. No time is asserted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from benchmarks import instruction_cost
from benchmarks.instruction_cost import LARGEST_MICROSECONDS, Measured, main, measure
from nkilib.nki import nki


@pytest.mark.parametrize("name", instruction_cost._CASES)
def test_every_case_runs_its_instruction(name: str) -> None:
    with nkilib.simulator.recording() as record:
        measured = measure(name, repeats=3, launches=2)
    assert measured.name == name
    assert measured.whole > 0 and measured.arithmetic >= 0
    assert measured.own == measured.whole - measured.arithmetic
    instruction = name.partition(",")[0].replace(", ", " ")
    expected = {"slice and copy": "tensor_copy", "allocate and copy": "tensor_copy"}.get(name, instruction)
    of_tiles = {"memset": 8}.get(expected, 0)  # what makes the operands
    assert record.instruction_counts[expected] == 2 * (3 + of_tiles)


def test_the_goal() -> None:
    assert Measured("x", LARGEST_MICROSECONDS + 2, 2).meets_goal
    assert not Measured("x", LARGEST_MICROSECONDS + 2.1, 2).meets_goal


@pytest.mark.parametrize("name", instruction_cost._CASES)
def test_numpy_does_the_same_as_the_instruction(name: str) -> None:
    """The numpy work that is subtracted is the work of the instruction, on the same values."""
    case = instruction_cost._CASES[name]

    def kernel(hbm: Any) -> None:
        tiles = instruction_cost._tiles(hbm)
        arrays = {key: np.copy(tile.array) for key, tile in tiles.items()}
        case.instruction(tiles)
        case.arithmetic(arrays)
        for key, tile in tiles.items():
            np.testing.assert_allclose(tile.array.astype(np.float32), arrays[key].astype(np.float32), rtol=1e-6)

    nki.jit(kernel)(np.full((instruction_cost.PARTITIONS, instruction_cost.COLUMNS), 3, np.float32))


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeats", "2", "--launches", "1"]) == 0
    printed = capsys.readouterr().out
    for name in instruction_cost._CASES:
        assert name in printed
    verdicts = re.findall(r" (met|missed)\s*$", printed, re.MULTILINE)
    assert len(verdicts) == len(instruction_cost._CASES)
    assert f"Goal met: {verdicts.count('met')} of {len(verdicts)}." in printed


@pytest.mark.parametrize("option", ["--repeats", "--launches"])
def test_a_count_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option, "0"])
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err
