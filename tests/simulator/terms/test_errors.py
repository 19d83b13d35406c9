# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors: their classes, where in the kernel they come from, and tracebacks with the user's own frames alone."""

from __future__ import annotations

import inspect
import io
import pdb
import pickle
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
from nkilib.simulator import (
    BarrierError,
    NkiValidationError,
    OutOfRangeError,
    UninitializedReadError,
    profile,
    ranks,
    spec,
)
from nkilib.simulator.terms.argument_checks import DIVISION
from nkilib.simulator.terms.errors import CoreAbortedError, add_location, add_location_of_traceback
from nkilib.simulator.terms.tracebacks import FULL, VARIABLE
from tests.fresh_python import with_checkout
from tests.simulator.frame import in_hbm, refused, run


def test_the_classes() -> None:
    assert nisa.NkiValidationError is NkiValidationError
    for error in (OutOfRangeError, UninitializedReadError, BarrierError):
        assert issubclass(error, NkiValidationError) and getattr(nkilib.simulator, error.__name__) is error
    assert issubclass(OutOfRangeError, IndexError)
    assert not issubclass(CoreAbortedError, Exception)


PUBLIC = [value for name in nkilib.simulator.__all__ if inspect.isclass(value := getattr(nkilib.simulator, name))]


@pytest.mark.parametrize("error", [kind for kind in PUBLIC if issubclass(kind, Exception)])
def test_a_traceback_names_an_error_as_users_import_it_and_it_can_be_pickled(error: type[Exception]) -> None:
    raised = error("too large")
    [line] = traceback.format_exception_only(raised)
    assert line == f"nkilib.simulator.{error.__name__}: too large\n"
    again = pickle.loads(pickle.dumps(raised))
    assert type(again) is error and again.args == raised.args


def test_every_error_that_a_kernel_can_meet_is_public() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(item) for item in kind.__subclasses__()))

    own = {kind for kind in below(NkiValidationError) if kind.__module__.startswith("nkilib.")}
    assert own <= set(PUBLIC)


def test_an_error_names_the_line_of_the_kernel() -> None:
    def kernel() -> None:
        tile = nl.ndarray((2, 2), nl.int8)
        nisa.memset(tile, 0)
        nisa.memset(tile, 999)

    line = inspect.getsourcelines(kernel)[1] + 3
    message = refused(NkiValidationError, lambda: run(kernel))
    assert message == f"{__file__}:{line}: nisa.memset: value must be in [-128, 127] for int8, got 999"


def make_too_many_partitions() -> None:
    nl.ndarray((200, 2), nl.int8)


def test_an_error_in_a_function_that_the_kernel_calls_names_the_line_there() -> None:
    line = inspect.getsourcelines(make_too_many_partitions)[1] + 1
    message = refused(NkiValidationError, lambda: run(lambda: make_too_many_partitions()))
    assert message.startswith(f"{__file__}:{line}: nl.ndarray: tensor [200, 2] int8 in sbuf: ")


def test_the_place_is_given_once() -> None:
    error = NkiValidationError("too large")
    add_location(error, "inner")
    first = str(error)
    add_location(error, "outer")
    assert str(error) == first and first.endswith(": inner: too large")


X = np.zeros((2, 3), np.float32)

WITHOUT_INSTRUCTION = [
    (lambda x: x[0, 7], OutOfRangeError, "index 7 is out of range for dimension 1 of {}"),
    (lambda x: x[:, 5:9], OutOfRangeError, "slice [5:9] leaves dimension 1 of {}"),
    (lambda x: x.reshape((4, 2)), NkiValidationError, "NkiTensor.reshape: {} has 6 elements, [4, 2] has 8"),
    (
        lambda x: x.select(1, 3),
        OutOfRangeError,
        "NkiTensor.select: index must be in [0, 3) in dimension 1 of {}, got 3",
    ),
    (
        lambda x: x.ap([[9, 9]])[0:1],
        OutOfRangeError,
        "NkiTensor.ap on {}: pattern [(9, 9)] at offset 0 touches elements 0 to 72 of a storage of 6",
    ),
    (
        lambda x: nl.fori_loop(0, 1, print, 0),
        NkiValidationError,
        "nl.fori_loop: step must be a positive integer, got 0",
    ),
    (lambda x: nl.program_id(1), NkiValidationError, "nl.program_id: the launch grid has one axis, 0; got 1"),
]
IDS = ["index", "slice", "reshape", "select", "ap", "fori_loop", "program_id"]


@pytest.mark.parametrize(("action", "error", "message"), WITHOUT_INSTRUCTION, ids=IDS)
@pytest.mark.parametrize("cores", [None, 1])
def test_an_error_of_a_view_or_of_the_language_names_the_line(
    action: Any, error: Any, message: str, cores: Any
) -> None:
    line = action.__code__.co_firstlineno
    text = message.format("tensor 'x' [2, 3] float32 in private_hbm")
    assert refused(error, lambda: run(action, X, cores=cores)) == f"{__file__}:{line}: {text}"


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(("action", "error", "message"), WITHOUT_INSTRUCTION, ids=IDS)
def test_on_two_cores_it_names_the_core_too(action: Any, error: Any, message: str, failing: int) -> None:
    def kernel(x: Any) -> None:
        if nl.program_id() == failing:
            action(x)

    line = action.__code__.co_firstlineno
    text = message.format("tensor 'x' [2, 3] float32 in shared_hbm")
    assert refused(error, lambda: run(kernel, X, cores=2)) == f"{__file__}:{line}: core {failing}: {text}"


def test_the_line_is_the_innermost_one_outside_the_simulator() -> None:
    """Through a kernel that the kernel calls, which passes through the simulator once more."""
    inner = nki.jit(WITHOUT_INSTRUCTION[0][0])
    line = WITHOUT_INSTRUCTION[0][0].__code__.co_firstlineno
    message = refused(OutOfRangeError, lambda: run(lambda x: inner(x), X))
    text = "index 7 is out of range for dimension 1 of tensor 'x' [2, 3] float32 in private_hbm"
    assert message == f"{__file__}:{line}: {text}"


def test_an_error_of_the_kernels_own_gets_its_line_and_stays_the_same_object() -> None:
    error = NkiValidationError("too many rows")

    def kernel() -> None:
        raise error

    with pytest.raises(NkiValidationError) as caught:
        run(kernel)
    line = inspect.getsourcelines(kernel)[1] + 1
    assert caught.value is error and str(error) == f"{__file__}:{line}: too many rows"


def test_an_error_that_the_kernel_catches_and_raises_again_gets_the_line_where_it_arose() -> None:
    def kernel(x: Any) -> None:
        try:
            x[0, 7]
        except IndexError:
            assert x.shape == (2, 3)
            raise

    line = inspect.getsourcelines(kernel)[1] + 2
    message = refused(OutOfRangeError, lambda: run(kernel, X))
    assert message.startswith(f"{__file__}:{line}: index 7 is out of range ")


def test_an_error_of_another_class_stays_as_it_is() -> None:
    def kernel() -> None:
        raise IndexError("mine")

    assert refused(IndexError, lambda: run(kernel, cores=2)) == "mine"


@pytest.mark.parametrize(
    ("action", "hint"),
    [
        (lambda n: range(0, n / 1, 2), DIVISION),
        (lambda n: range(np.float64(n)), DIVISION),
        (lambda n: [0] * (n / 2), DIVISION),
        (lambda n: [1, 2, 3][n / 2], DIVISION),
        (lambda n: (1, 2, 3)[n / 2], DIVISION),
        (lambda n: [1, 2, 3][: n / 2], DIVISION),
        (lambda n: n << (n / 2), DIVISION),
        (lambda n: len(in_hbm(X)), "; use its .shape[0]"),
        (lambda n: n + "1", ""),
    ],
)
def test_a_float_where_python_wants_an_integer_gets_the_line_and_a_hint(action: Any, hint: str) -> None:
    def kernel() -> None:
        action(4)

    with pytest.raises(TypeError) as of_python:
        action(4)
    message = refused(nkilib.simulator.ArgumentTypeError if hint else TypeError, lambda: run(kernel))
    line = inspect.getsourcelines(action)[1]
    assert message == (f"{__file__}:{line}: {of_python.value}{hint}" if hint else str(of_python.value))


def test_outside_a_kernel_there_is_no_line_to_name() -> None:
    assert refused(OutOfRangeError, lambda: in_hbm(X)[0, 7]) == (
        "index 7 is out of range for dimension 1 of tensor [2, 3] float32 in private_hbm"
    )


def test_the_place_of_a_traceback_is_given_once_and_not_after_that_of_an_instruction() -> None:
    for first_place in (lambda error: add_location(error, "inner"), lambda error: add_location_of_traceback(error, "")):
        try:
            raise NkiValidationError("too large")
        except NkiValidationError as raised:
            error = raised
        first_place(error)
        first = str(error)
        assert first.startswith(f"{__file__}:") and first.endswith(": too large")
        add_location_of_traceback(error, "core 1: ")
        add_location(error, "outer")
        assert str(error) == first


def test_a_kernel_may_live_beside_the_simulator_in_a_directory_of_a_similar_name() -> None:
    directory = nkilib.simulator.__file__.rpartition("/")[0]
    code = compile("def kernel(nl):\n    nl.ndarray((200, 2), 'int8')\n", f"{directory}_kernels.py", "exec")
    names: dict[str, object] = {}
    exec(code, names)
    with pytest.raises(NkiValidationError) as caught:
        run(names["kernel"], nl)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{directory}_kernels.py:2: nl.ndarray: ")


class KernelError(Exception):
    """An error that only these tests raise."""


def helper(x: Any) -> None:
    nisa.memset(nl.ndarray((2, 3), nl.float32), value="one")


def failing(x: Any) -> None:
    helper(x)


def looping(x: Any) -> None:
    nl.fori_loop(0, 3, helper)


def nested(x: Any) -> None:
    nki.jit(failing)(x)


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
        (failing, ["failing", "helper"]),
        (looping, ["looping", "helper"]),
        (nested, ["nested", "failing", "helper"]),
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
