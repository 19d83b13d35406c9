# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The table of docs/reference/linear_cross_entropy.md of memory for well-known models is what arithmetic says."""

from __future__ import annotations

import re

import pytest

from tests.fresh_python import CHECKOUT
from tools.write_plots import loss_bytes

PAGE = (CHECKOUT / "docs" / "reference" / "linear_cross_entropy.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Memory and sequence length")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| ([\w. -]+) \| (\d+), ([\d,]+) \| (.*) \|$", SECTION, re.MULTILINE)
UNITS = {"MiB": 2**20, "GiB": 2**30}


def test_the_table_has_rows_and_more_positions_take_no_more() -> None:
    assert len(ROWS) == 6
    assert loss_bytes(2**20, 2880, 201_088) <= loss_bytes(2**17, 2880, 201_088)


@pytest.mark.parametrize(("model", "width", "vocabulary", "cells"), ROWS, ids=[row[0] for row in ROWS])
def test_bytes_of_a_model(model: str, width: str, vocabulary: str, cells: str) -> None:
    features, classes = int(width), int(vocabulary.replace(",", ""))
    of_logits, *of_kernels, tokens = cells.split(" | ")
    expected = [14 * 8192 * classes, *(loss_bytes(2**power, features, classes) for power in (13, 16, 17))]
    for cell, exact in zip([of_logits, *of_kernels], expected, strict=True):
        number, unit = cell.split()
        digits = len(number.partition(".")[2])
        assert f"{exact / UNITS[unit]:.{digits}f}" == number, model
    assert int(tokens.replace(",", "")) == 4 * 2**30 // (14 * classes)
