# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m nkilib`: help, mistakes, and an environment in which nothing can be modelled, for every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nkilib import __version__
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
def test_help_says_what_it_does_and_what_the_exit_codes_mean(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert ended((command, "--help")) == 0
    shown = capsys.readouterr().out
    assert f"python -m nkilib {command}: " in shown and "Exit code: 0; 1 " in shown
    assert ("Modelled, not measured." in shown) == (command in ("profile", "tune"))


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
        (("doctor", "--x"), "python -m nkilib", "unrecognized"),
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
