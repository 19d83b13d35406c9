"""``nkilib.simulator.errors``: the classes, and where in the kernel an error comes from."""

from __future__ import annotations

import inspect

import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator import BarrierError, NkiValidationError, OutOfRangeError, UninitializedReadError
from nkilib.simulator.errors import CoreAbortedError, add_location
from tests.simulator.frame import refused, run


def test_the_classes() -> None:
    assert nisa.NkiValidationError is NkiValidationError
    for error in (OutOfRangeError, UninitializedReadError, BarrierError):
        assert issubclass(error, NkiValidationError) and getattr(nkilib.simulator, error.__name__) is error
    assert issubclass(OutOfRangeError, IndexError)
    assert not issubclass(CoreAbortedError, Exception)


def test_an_error_names_the_line_of_the_kernel() -> None:
    def kernel() -> None:
        tile = nl.ndarray((2, 2), nl.int8)
        nisa.memset(tile, 0)
        nisa.memset(tile, 999)

    line = inspect.getsourcelines(kernel)[1] + 3
    message = refused(NkiValidationError, lambda: run(kernel))
    assert message == f"{__file__}:{line}: nisa.memset: value must be in [-128, 127] for int8, got 999"


def helper() -> None:
    nl.ndarray((200, 2), nl.int8)


def test_an_error_in_a_function_that_the_kernel_calls_names_the_line_there() -> None:
    line = inspect.getsourcelines(helper)[1] + 1
    message = refused(NkiValidationError, lambda: run(lambda: helper()))
    assert message.startswith(f"{__file__}:{line}: nl.ndarray: tensor [200, 2] int8 in sbuf: ")


def test_the_place_is_given_once() -> None:
    error = NkiValidationError("too large")
    add_location(error, "inner")
    first = str(error)
    add_location(error, "outer")
    assert str(error) == first and first.endswith(": inner: too large")


def test_a_kernel_may_live_beside_the_simulator_in_a_directory_of_a_similar_name() -> None:
    directory = nkilib.simulator.__file__.rpartition("/")[0]
    code = compile("def kernel(nl):\n    nl.ndarray((200, 2), 'int8')\n", f"{directory}_kernels.py", "exec")
    names: dict[str, object] = {}
    exec(code, names)
    with pytest.raises(NkiValidationError) as caught:
        run(names["kernel"], nl)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{directory}_kernels.py:2: nl.ndarray: ")
