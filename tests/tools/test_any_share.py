# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The share of Any is counted over the kernels alone, and a report without them is no pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.any_share import any_share, main

TABLE = """\
                    Name   Anys   Exprs   Coverage
--------------------------------------------------
             nkilib.core      1      30     96.67%
        nkilib.core.rows      2      50     96.00%
     nkilib.experimental      {anys}      20     50.00%
      nkilib.core_of_all    900    1000     10.00%
        nkilib.simulator    500    1000     50.00%
                   Total   1403    2100     33.19%
"""


def test_only_the_kernels_count() -> None:
    assert any_share(TABLE.format(anys=4)) == 7 / 100


@pytest.mark.parametrize(("anys", "code"), [(5, 0), (6, 1)])
def test_more_than_eight_percent_fail(anys: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "any-exprs.txt").write_text(TABLE.format(anys=anys))
    assert main(str(tmp_path)) == code
    expected = f"{(3 + anys)}.0% of the expressions of nkilib.core and nkilib.experimental are Any; allowed are 8%\n"
    assert capsys.readouterr().out == expected


def test_a_report_without_the_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a line for each of nkilib\.core, nkilib\.experimental"):
        any_share("nkilib.core 0 10 100%\n")
