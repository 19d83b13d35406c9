# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Names of files that could not be written are refused before the run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from nkilib.cli.main import main
from nkilib.cli.output_files import output_file, picture_file, picture_formats


@pytest.mark.parametrize("name", ["picture.xyz", "picture", "picture.", ".png", "picture.png.gz"])
def test_a_picture_of_unknown_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    pytest.importorskip("matplotlib", reason="pip install '.[plot]'")
    monkeypatch.setattr("nkilib.cli.profile.main", None)  # it is not run
    with pytest.raises(SystemExit, match="2"):
        main(("profile", "--positions", "64", "--vocab", "3000", "--plot", str(tmp_path / name)))
    errors = capsys.readouterr().err
    suffix = Path(name).suffix.strip(".")
    assert "argument --plot: must end in one of " in errors and " pdf, " in errors
    assert f"got {repr(suffix) if suffix else 'none'} in " in errors and name in errors


@pytest.mark.parametrize("name", ["picture.png", "picture.SVG", "a.b.pdf"])
def test_pictures_that_can_be_written(tmp_path: Path, name: str) -> None:
    assert picture_file(str(tmp_path / name)) == str(tmp_path / name)


def test_without_matplotlib_the_format_is_no_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command says that it is missing."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    assert picture_formats() == []
    assert picture_file(str(tmp_path / "picture.xyz"))


@pytest.mark.parametrize("of", [output_file, picture_file])
def test_what_is_no_file_or_in_no_directory(tmp_path: Path, of: object) -> None:
    assert callable(of)
    with pytest.raises(argparse.ArgumentTypeError, match="must name a file, got the directory"):
        of(str(tmp_path))
    with pytest.raises(argparse.ArgumentTypeError, match=r"there is no directory '.*absent'"):
        of(str(tmp_path / "absent" / "file.png"))
    (tmp_path / "file").touch()
    with pytest.raises(argparse.ArgumentTypeError, match=r"there is no directory '.*file'"):
        of(str(tmp_path / "file" / "file.png"))


LONG = "x" * 300


@pytest.mark.parametrize("name", [f"{LONG}.json", f"{LONG}/a.json"])
def test_a_name_that_is_too_long(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(("profile", "--positions", "64", "--vocab", "3000", "--trace", name))
    assert f"{name!r} can not be written: File name too long" in capsys.readouterr().err
    assert main(("profile", f"{LONG}.py:kernel")) == 1
    assert capsys.readouterr().err.endswith(f"error: cannot read '{LONG}.py': File name too long\n")


def test_what_may_not_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Access is asked of a file that exists, else of its directory; root may write anything."""
    asked: list[Path] = []

    def access(path: Path, mode: int) -> bool:
        assert mode == os.W_OK
        asked.append(path)
        return False

    there, new = tmp_path / "there.json", tmp_path / "new.json"
    there.touch()
    monkeypatch.setattr(os, "access", access)
    for path in (there, new):
        with pytest.raises(argparse.ArgumentTypeError, match=r"'.*json' can not be written"):
            output_file(str(path))
    assert asked == [there, tmp_path]
