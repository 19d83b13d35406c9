# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m nkilib`: help, mistakes, and an environment in which nothing can be modelled, for every command.

Names of files that could not be written are refused before the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nkilib import __version__
from nkilib.cli.arguments import MOST_COLUMNS, folded, output_file, picture_file, picture_formats
from nkilib.cli.main import main
from nkilib.nki import NOT_SIMULATED
from tests.fresh_python import CHECKOUT, with_checkout
from tests.hangs import HANG_SECONDS

COMMANDS = ("doctor", "profile", "tune", "verify")


def ended(arguments: tuple[str, ...]) -> int:
    """The exit code of a command line that argparse answers."""
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert isinstance(error.value.code, int)
    return error.value.code


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_does_and_what_the_exit_codes_mean(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert ended((command, "--help")) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= MOST_COLUMNS
    assert f"python -m nkilib {command}: " in shown and "Exit code: 0; 1 " in shown
    assert ("Modelled, not measured." in shown) == (command in ("profile", "tune"))


def test_text_is_folded_between_words() -> None:
    path = f"/{'x' * MOST_COLUMNS}/nki-0.7"
    assert folded(f"at {path} is one\n\nand more", "head ") == f"head at\n     {path}\n     is one\n\n     and more"
    assert [len(line) for line in folded("word " * 40, "  ", 4).splitlines()] == [86, 88, 33]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(("--help",)) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


def test_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(("--version",)) == 0
    assert capsys.readouterr().out == f"nkilib {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "program", "said"),
    [
        ((), "python -m nkilib", "required: command"),
        (("profil",), "python -m nkilib", "invalid choice: 'profil'"),
        (("doctor", "--x"), "python -m nkilib doctor", "unrecognized"),
        (("verify", "--quik"), "python -m nkilib verify", "unrecognized arguments: --quik; did you mean --quick?"),
        (("profile",), "python -m nkilib profile", "or a kernel as FILE.py:KERNEL"),
        (("tune", "--positions", "0"), "python -m nkilib tune", "must be a positive integer, got '0'"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], program: str, said: str) -> None:
    """One line that says what is wrong and one that names the help, without the usage."""
    assert ended(arguments) == 2
    printed = capsys.readouterr()
    error, advice = printed.err.splitlines()
    assert error.startswith(f"{program}: error: ") and said in error
    assert advice == f"see `{program} --help`" and printed.out == ""


@pytest.mark.parametrize("command", ["profile", "tune"])
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("NKILIB_BACKEND", "nonsense", "NKILIB_BACKEND must be one of auto, neuron, simulator; got 'nonsense'."),
        ("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9", "target must be one of trn1"),
        ("PYTHONPATH", "", NOT_SIMULATED),
    ],
)
def test_where_nothing_can_be_modelled(tmp_path: Path, command: str, variable: str, value: str, said: str) -> None:
    """One line on the error stream, no traceback. The last case finds a real NKI."""
    if variable == "PYTHONPATH":
        for part in ("", "isa", "language"):
            (tmp_path / "nki" / part).mkdir(exist_ok=True)
            (tmp_path / "nki" / part / "__init__.py").write_text("__version__ = '0.7.0'")
        value = os.pathsep.join((str(tmp_path), str(CHECKOUT)))
    process = subprocess.run(
        [sys.executable, "-m", "nkilib", command, "--positions", "64", "--vocab", "3000"],
        env=with_checkout(**{"NKILIB_BACKEND": "auto", variable: value}),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (process.returncode, process.stdout) == (1, "")
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"python -m nkilib {command}: error: ") and said in line


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
