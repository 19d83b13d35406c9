# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.size_grid`: its cells are what the model says, the page names the worst, and changes are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import size_grid
from benchmarks.size_grid import CELLS, CLASSES, DTYPES, LONG_US, POSITIONS, Cell, Launch, families, launches, modelled

PAGE = CELLS.with_suffix(".md")
CELL = Cell("mse_loss", "forward", "bfloat16", 8192, 4096, 400.0, 100.0, "dma", "vector", 0.9)


def test_the_grid_is_whole() -> None:
    assert [Launch(*cell[:5]) for cell in size_grid.read_cells()] == list(launches(families()))
    assert len(size_grid.read_cells()) % (len(POSITIONS) * len(CLASSES) * len(DTYPES)) == 0


@pytest.mark.parametrize("family", families())
def test_cells_are_what_the_model_says(family: str) -> None:
    launch = Launch(family, size_grid.ONLY.get(family, ("forward",))[0], "bfloat16", 128, 1024)
    written = {Launch(*cell[:5]): cell for cell in size_grid.read_cells()}
    remedy = "write the cells again: python -m benchmarks.size_grid --write, then python -m tools.write_plots --svg"
    assert modelled(launch) == written[launch], remedy


def test_the_page_names_the_worst_cells() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for cell in size_grid.worst(size_grid.read_cells(), LONG_US):
        assert f"| {cell.kernel_name} | {cell.dtype} | {cell.positions:,} x {cell.classes:,} |" in page


def test_cells_survive_a_file(tmp_path: Path) -> None:
    size_grid.write_cells([CELL], tmp_path / "cells.csv")
    assert size_grid.read_cells(tmp_path / "cells.csv") == [CELL] and CELL.ratio == 4.0


def test_the_worst_are_those_of_long_launches() -> None:
    short, better = CELL._replace(time_us=20.0, bound_us=1.0), CELL._replace(bound_us=200.0)
    assert size_grid.worst([better, short, CELL], LONG_US) == [CELL, better]
    assert size_grid.worst([better, short, CELL])[0] == short


def test_changed_cells_are_listed() -> None:
    slower, alike = CELL._replace(time_us=410.0), CELL._replace(dtype="float32", time_us=403.9)
    before = [CELL, CELL._replace(dtype="float32")]
    assert list(size_grid.changes([slower, alike], before)) == [
        "mse_loss forward bfloat16 8192 4096: 400.0 -> 410.0 us, +2.5%"
    ]


def test_the_command_writes_and_compares(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = ("--family", "mse_loss", "--positions", "8", "--classes", "8", "--jobs", "1")
    written = tmp_path / "cells.csv"
    assert size_grid.main((*sizes, "--write", str(written), "--against", str(CELLS))) == 0
    printed = capsys.readouterr().out
    assert [Launch(*cell[:5]) for cell in size_grid.read_cells(written)] == list(launches(["mse_loss"], [8], [8]))
    assert "mse_loss forward" in printed and "Modelled, not measured" in printed
