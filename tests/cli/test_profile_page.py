# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m nkilib profile --html`: the page that it writes, what it compares with, and what it says to mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nkilib.simulator.profiling.page.writer import content_in
from tests.cli.test_profile import SIZES, command

KERNELS = '''
from nkilib.nki import nisa, nki, nl

def copy(x, times=1):
    """Copy x some times."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    for _ in range(times):
        nisa.dma_copy(result, tile)
    return result

def exps(x, times=1):
    """exp of x, some times."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    for _ in range(times):
        nisa.activation(tile, nl.exp, tile)
    nisa.dma_copy(result, tile)
    return result
'''
ARGUMENTS = ("--arg", "x=f32[128,64]", "--arg", "times=3")


@pytest.fixture
def kernels(tmp_path: Path) -> str:
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS, encoding="utf-8")
    return str(file)


def test_a_page_is_written_beside_the_table(capsys: pytest.CaptureFixture[str], kernels: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, printed, errors = command(capsys, f"{kernels}:copy", *ARGUMENTS, "--html", str(page))
    assert (code, errors) == (0, "") and printed.startswith("copy on 1 core of trn2: ")
    content = content_in(page)
    assert content["kernel"] == "copy" and content["title"] in " ".join(printed.split())
    assert command(capsys, f"{kernels}:copy", *ARGUMENTS)[1] == printed


def test_another_kernel_gets_the_same_arguments(
    capsys: pytest.CaptureFixture[str], kernels: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    options = (*ARGUMENTS, "--html", str(page), "--against", f"{kernels}:exps")
    code, printed, errors = command(capsys, f"{kernels}:copy", *options)
    assert (code, errors) == (0, "") and "exps on 1 core" not in printed
    text = page.read_text(encoding="utf-8")
    assert "Compared with exps on 1 core of trn2" in text and text.count('class="nkilib-profile"') == 2


def test_a_page_of_before_is_compared_with_a_kernel_of_the_library(
    capsys: pytest.CaptureFixture[str], kernels: str, tmp_path: Path
) -> None:
    before, page = tmp_path / "before.html", tmp_path / "page.html"
    assert command(capsys, f"{kernels}:copy", *ARGUMENTS, "--html", str(before))[0] == 0
    assert command(capsys, *SIZES, "--html", str(page), "--against", str(before))[0] == 0
    assert "Compared with copy on 1 core of trn2" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--against", "old.html"), 2, "--against compares two profiles in a report: add --html FILE.html"),
        (("--html", "absent/a.html"), 2, "there is no directory 'absent'"),
        (("--html", "a.html", "--against", "file.py:kernel"), 2, "it must be a report that --html wrote, FILE.html"),
        (("--html", "a.html", "--against", "none.html"), 1, "No such file or directory: 'none.html'"),
        (("--html", "a.html", "--against", "wrong.html"), 1, "is no report of a profile"),
    ],
    ids=["alone", "no directory", "a kernel", "no report", "no report of ours"],
)
def test_mistakes_are_found_before_anything_is_written(
    options: tuple[str, ...],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.html").write_text("<html></html>")
    result, printed, errors = command(capsys, *SIZES, *options)
    assert (result, printed) == (code, "") and said in errors
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.html"]


def test_another_kernel_that_is_not_there(capsys: pytest.CaptureFixture[str], kernels: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = (*ARGUMENTS, "--html", str(page), "--against", f"{kernels}:missing")
    code, printed, errors = command(capsys, f"{kernels}:copy", *options)
    assert (code, printed) == (1, "") and "missing" in errors and not page.exists()
