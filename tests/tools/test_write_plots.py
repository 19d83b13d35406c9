# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tools.write_plots`: the data of the plots are those of the pages, and no kernel lies above the roof."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nkilib.experimental.loss import mse_loss_forward
from nkilib.simulator import profile, spec
from tests.fresh_python import CHECKOUT
from tools import write_plots
from tools.write_plots import GIB, LOGITS_BYTES, TRL_PEAKS_GIB, Point, loss_bytes

PAGE = (CHECKOUT / "docs" / "reference" / "linear_cross_entropy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TRL_PEAKS_GIB)
def test_published_peaks_are_those_of_the_page(name: str) -> None:
    row = re.search(rf"^\| {name}\b[^|]*\| ([\d.]+), now ([\d.]+) \|", PAGE, re.MULTILINE)
    assert row is not None
    assert TRL_PEAKS_GIB[name] == (float(row[1]), float(row[2]))


def test_memory_is_that_of_the_page() -> None:
    row = re.search(r"^\| Gemma 3 1B \| 1152, 262,144 \| ([\d.]+) GiB \| (\d+) MiB \|", PAGE, re.MULTILINE)
    assert row is not None
    assert f"{LOGITS_BYTES * write_plots.CLASSES * 8192 / GIB:.1f}" == row[1]
    assert f"{loss_bytes(8192) / 2**20:.0f}" == row[2]


def test_a_kernel_lies_below_the_roof() -> None:
    matrix = spec((256, 4096), "bfloat16")
    point = Point.of_profile("MSE", profile(mse_loss_forward[2], matrix, matrix))
    assert 0 < point.speed < min(1.0, point.balance)


def test_the_memory_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plots.draw_memory(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
