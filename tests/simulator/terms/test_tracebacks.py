# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.terms.tracebacks``: a user sees their own frames, and none of the simulator's."""

from __future__ import annotations

import io
import pdb
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.experimental.loss import cross_entropy_forward
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import profile, ranks, spec
from nkilib.simulator.terms.tracebacks import FULL, VARIABLE
from tests.fresh_python import with_checkout

X = np.zeros((2, 3), np.float32)


class KernelError(Exception):
    """An error that only these tests raise."""


def helper(x: Any) -> None:
    nisa.memset(nl.ndarray((2, 3), nl.float32), value="one")


def refused(x: Any) -> None:
    helper(x)


def looping(x: Any) -> None:
    nl.fori_loop(0, 3, helper)


def nested(x: Any) -> None:
    nki.jit(refused)(x)


def indexed(x: Any) -> None:
    x[0, 7]


def misused(x: Any) -> None:
    x.reshape()


def own(x: Any) -> None:
    nl.fori_loop(0, 3, lambda i: np.mean([raising()]))


def raising() -> None:
    raise KernelError


def on_core_1(x: Any) -> None:
    if nl.program_id() == 1:
        helper(x)


def frames_of(action: Callable[[], Any]) -> tuple[BaseException, list[tuple[bool, str]]]:
    """Return an error and the frames of its traceback after the first: whether each is a test's, and its function."""
    with pytest.raises(Exception) as caught:
        action()
    frames = traceback.extract_tb(caught.value.__traceback__)
    return caught.value, [(frame.filename == __file__, frame.name) for frame in frames[1:]]


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (refused, ["refused", "helper"]),
        (looping, ["looping", "helper"]),
        (nested, ["nested", "refused", "helper"]),
        (indexed, ["indexed"]),
        (misused, ["misused"]),
        (own, ["own", "<lambda>", "raising"]),
    ],
)
def test_a_traceback_has_the_frames_of_the_user_and_one_of_the_launch(
    kernel: Any, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error, frames = frames_of(lambda: nki.jit(kernel)(X))
    expected = [(True, "<lambda>"), (False, "__call__"), *((True, name) for name in names)]
    assert frames == expected and error.__context__ is None
    monkeypatch.setenv(VARIABLE, FULL)
    _, frames = frames_of(lambda: nki.jit(kernel)(X))
    assert len(frames) > len(expected) + 3 and [frame for frame in frames if frame[0]] == [
        frame for frame in expected if frame[0]
    ]


@pytest.mark.parametrize(
    ("action", "calls"),
    [
        (lambda: nki.jit(on_core_1)[2](X), ["__call__"]),
        (lambda: ranks(2)(nki.jit(on_core_1)[2])(X), ["__call__"]),
        (lambda: profile(nki.jit(on_core_1)[2], X), ["profile"]),
        (lambda: profile(nki.jit(on_core_1)[2], spec((2, 3), nl.float32)), ["profile"]),
        (lambda: nkilib.simulator.simulate(nki.jit(on_core_1)[2], skip_arithmetic=True)(X), ["__call__"]),
    ],
)
def test_so_has_every_way_to_launch_and_a_core_in_a_thread(action: Callable[[], Any], calls: list[str]) -> None:
    _, frames = frames_of(action)
    assert [name for is_own, name in frames if not is_own] == calls
    assert [name for is_own, name in frames if is_own] == ["<lambda>", "on_core_1", "helper"]


def test_the_frames_of_a_kernel_of_the_library_stay() -> None:
    with pytest.raises(Exception) as caught:
        nkilib.simulator.simulate(cross_entropy_forward)(X, np.zeros(3, np.int32))
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert any("nkilib/experimental/" in Path(file).as_posix() for file in files)
    assert sum("nkilib/simulator/" in Path(file).as_posix() for file in files) == 1


def test_exceptions_that_the_user_chains_keep_their_frames() -> None:
    def kernel(x: Any) -> None:
        try:
            helper(x)
        except nisa.NkiValidationError as error:
            raise KernelError from error

    error, frames = frames_of(lambda: nki.jit(kernel)(X))
    assert frames[-1] == (True, "kernel")
    assert error.__cause__ is not None
    assert [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)] == ["kernel", "helper"]


def test_a_wrong_value_keeps_the_exception_that_it_caused_in_full() -> None:
    def kernel(x: Any) -> None:
        nl.program_id(np.zeros(3))

    error, frames = frames_of(lambda: nki.jit(kernel)(X))
    assert type(error) is nkilib.simulator.ArgumentTypeError
    assert "nl.program_id: argument 'axis' has a wrong type: a numpy ndarray [3] float64" in str(error)
    assert frames[-1] == (True, "kernel") and type(error.__cause__) is ValueError
    assert traceback.extract_tb(error.__cause__.__traceback__)[-1].name == "_check_axis"


SCRIPT = """
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def kernel():
    rows = 2
    nisa.memset(nl.ndarray((rows, 3), nl.float32), value="one")

kernel()
"""


def test_of_a_script_that_the_command_runs_nothing_else_is_shown(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "nkilib.simulator", str(script)]
    text = subprocess.run(command, env=with_checkout(), capture_output=True, text=True, check=False).stderr
    files = [line.split('"')[1] for line in text.splitlines() if line.startswith("  File ")]
    assert files == [str(script), str(script)]
    assert text.splitlines()[-1].startswith(f"nkilib.simulator.NkiValidationError: {script}:7: nisa.memset: ")


def test_after_an_error_a_debugger_is_at_the_line_of_the_kernel() -> None:
    def kernel(x: Any) -> None:
        rows = 77
        x[rows, 0]

    with pytest.raises(IndexError) as caught:
        nki.jit(kernel)(X)
    shown = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p rows\nup\nup\nq\n"), stdout=shown, nosigint=True, readrc=False)
    debugger.reset()
    debugger.interaction(None, caught.value.__traceback__)
    text = shown.getvalue()
    assert f"> {__file__}({kernel.__code__.co_firstlineno + 2})kernel()" in text and "(Pdb) 77\n" in text
    assert text.count(f"> {__file__}(") == 2  # two frames up is the caller
