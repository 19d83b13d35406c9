# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The example that writes pages of a slow kernel and of the mended one, and the pages of the site and the tutorial."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples import profile_report
from nkilib.simulator.profiling.page.writer import content_in
from tests.fresh_python import CHECKOUT
from tools.pictures.timelines import PAGE, scripts


def test_both_pages_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile_report.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    slow, mended = (tmp_path / f"{name}.html" for name in ("slow", "mended"))
    assert f"{slow}: 1,091.0 us, 5.98 times the bound" in shown and f"{mended}: 194.6 us, 1.07 times" in shown
    assert (content_in(slow)["kernel"], content_in(mended)["kernel"]) == ("slow_rms_norm", "mended_rms_norm")
    text = mended.read_text(encoding="utf-8")
    assert text.count('class="nkilib-profile"') == 2 and "slow_rms_norm on 2 cores of trn2" in text
    assert max(slow.stat().st_size, mended.stat().st_size) < 300_000


def test_a_wrong_kernel_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_report, "LARGEST_ERROR", 0.0)
    assert profile_report.main([str(tmp_path)]) == 1
    assert "The kernels differ from float64." in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        profile_report.main([str(tmp_path / "none")])
    assert ended.value.code == 2 and "make it first" in capsys.readouterr().err


def test_the_kernels_are_the_first_and_the_last_of_the_tutorial() -> None:
    def body(text: str, name: str) -> list[str]:
        found = re.search(rf"def {name}\(.*?    return result\n", text, re.DOTALL)
        assert found is not None
        lines = found[0].replace("_SLOTS", "slots").partition("rows, columns = x.shape")[2].splitlines()
        return [line for line in lines if line.strip() != "slots = 3"]

    versions = list(scripts(PAGE.read_text(encoding="utf-8")))
    own = (CHECKOUT / "examples" / "profile_report.py").read_text(encoding="utf-8")
    assert body(own, "slow_rms_norm") == body(versions[0], "rms_norm")
    assert body(own, "mended_rms_norm") == body(versions[-1], "rms_norm")
