# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Ctrl-C, a pipe that nobody reads and a device that is full: how the two command lines end."""

from __future__ import annotations

import errno
import io
import re
import socket
from pathlib import Path

import pytest

from nkilib.base.quiet_exit import CLOSED_PIPE, INTERRUPTED, ending_quietly
from nkilib.cli import main as command_line
from tests.terminals import run_interrupted, run_unread

# Core 0 meets core 1 at the end, which comes late.
SLOW = """
import time
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def slow(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == nl.num_programs(0) - 1:
        print("begun", flush=True)
        for _ in range(6000):
            time.sleep(0.01)
            nisa.memset(nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf), 0.0)
    nisa.core_barrier(out, (0, 1))
    return out
"""
RUN = """
import numpy

slow[{cores}](numpy.zeros((1, 8), numpy.float32))
"""
FAST = """

@nki.jit
def fast(x):
    return x
"""


@pytest.mark.parametrize("cores", [1, 2])
def test_ctrl_c_ends_a_script_of_the_simulator(tmp_path: Path, cores: int) -> None:
    (tmp_path / "slow.py").write_text(SLOW + RUN.format(cores=cores))
    ended = run_interrupted("-m", "nkilib.simulator", "slow.py", directory=tmp_path)
    assert (ended.code, ended.output) == (INTERRUPTED, "begun\n")
    (line,) = ended.shown.splitlines()
    assert line.startswith("python -m nkilib.simulator: interrupted at ")
    assert cores > 1 or re.search(r"slow\.py:1[2-5]$", line)


def test_ctrl_c_ends_a_profile(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    ended = run_interrupted("-m", "nkilib", "profile", "slow.py:slow", "--arg", "x=fp32[1,8]", directory=tmp_path)
    assert ended == (INTERRUPTED, "begun\n", "python -m nkilib: interrupted\n")


def test_ctrl_c_in_any_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "main", interrupted)
    with pytest.raises(SystemExit) as error:
        command_line.run(())
    assert error.value.code == INTERRUPTED
    assert capsys.readouterr().err == "python -m nkilib: interrupted\n"


@pytest.mark.parametrize("arguments", [("--help",), ("profile", "slow.py:fast", "--arg", "x=fp32[1,8]")])
def test_a_command_whose_output_nobody_reads(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "slow.py").write_text(SLOW + FAST)
    assert run_unread("-m", "nkilib", *arguments, directory=tmp_path) == (CLOSED_PIPE, "", "")


@pytest.mark.parametrize(("option", "end"), [("-u", ""), ("-B", "raise SystemExit(3)\n")])
def test_a_script_whose_output_nobody_reads(tmp_path: Path, option: str, end: str) -> None:
    """A script ends quietly on a closed pipe; with -u there is no buffer, and the print itself already fails."""
    (tmp_path / "script.py").write_text("print(1)\n" + end)
    assert run_unread(option, "-m", "nkilib.simulator", "script.py", directory=tmp_path) == (CLOSED_PIPE, "", "")


FULL_DEVICE = Path("/dev/full")


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("doctor", "--kernels"),
        ("--version",),
        ("profile", "slow.py:fast", "--arg", "x=fp32[1,8]"),
    ],
)
def test_a_command_whose_output_is_full(
    arguments: tuple[str, ...],
    is_buffered: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "slow.py").write_text(SLOW + FAST)
    monkeypatch.chdir(tmp_path)
    raw = io.FileIO(FULL_DEVICE, "w")
    output = io.TextIOWrapper(io.BufferedWriter(raw) if is_buffered else raw, write_through=not is_buffered)  # type: ignore[type-var]
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr("sys.stdout", output)
        command_line.run(arguments)
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "python -m nkilib: error: cannot write the standard output: No space left on device"


def test_a_file_of_the_program_on_a_full_device_is_an_error_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", (tmp_path / "output").open("w"))
    with pytest.raises(OSError, match="No space"), ending_quietly("program"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_another_pipe_that_breaks_is_an_error_of_the_program() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(BrokenPipeError), ours, ending_quietly("program"):
        while True:
            ours.sendall(b"x")


def test_other_ends_are_left_as_they_are() -> None:
    with pytest.raises(SystemExit, match="3"), ending_quietly("program"):
        raise SystemExit(3)
    with pytest.raises(ValueError, match="a reason"), ending_quietly("program"):
        raise ValueError("a reason")
