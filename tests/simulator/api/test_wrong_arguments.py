# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A wrong call of any function or method of NKI is an NkiValidationError with the line of the kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ArgumentTypeError, NkiValidationError
from tests.simulator.api.documented import DOCUMENTED
from tests.simulator.kernels import tile

# What no parameter of NKI accepts.
WRONG = {"float64": np.float64, "array": np.zeros(3), "text": "float31"}
VALUES = {"op": nl.add, "op0": nl.add, "op1": nl.add, "reduce_op": nl.add, "shape": (4, 8), "dtype": nl.float32}
TENSORS = ("dst", "data", "src", "x", "y", "stationary", "moving", "predicate", "on_")


class Wrong(NamedTuple):
    """A wrong call: its description, and a function that makes it inside a kernel."""

    what: str
    call: Callable[[], Any]


def value_of(parameter: inspect.Parameter) -> Any:
    """Return a value that a parameter without a default may well have."""
    return tile(4, 8) if parameter.name.startswith(TENSORS) else VALUES.get(parameter.name, 1)


def wrong_calls(name: str, make: Callable[[], Callable[..., Any]], function: Callable[..., Any]) -> Iterator[Wrong]:
    """Yield calls of what `make()` returns inside a kernel: with no, an unknown or a wrong argument."""
    parameters = [
        item
        for item in inspect.signature(function).parameters.values()
        if item.name != "self" and item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    ]
    yield Wrong(f"{name}(unknown=1)", lambda: make()(unknown=1))
    yield Wrong(f"{name}(*range(40))", lambda: make()(*range(40)))
    if any(item.default is item.empty for item in parameters):
        yield Wrong(f"{name}()", lambda: make()())
    for parameter in parameters:
        for kind, value in WRONG.items():
            required = [item for item in parameters if item.default is item.empty and item is not parameter]

            def call(parameter: Any = parameter, value: Any = value, required: Any = required) -> None:
                make()(**{item.name: value_of(item) for item in required}, **{parameter.name: value})

            yield Wrong(f"{name}({parameter.name}={kind})", call)


def functions(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the functions that a module of NKI offers."""
    for name in module.__all__:
        item = getattr(module, name)
        if callable(item) and not inspect.isclass(item) and name != "device_print":
            yield name, item


def error_of(call: Callable[[], Any]) -> BaseException | None:
    """Return what a kernel that makes the call raises, or None."""

    def kernel() -> None:
        call()

    try:
        nki.jit(kernel)()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("module", [nisa, nl, nki.collectives], ids=["nki.isa", "nki.language", "nki.collectives"])
def test_every_function(module: Any) -> None:
    refused, wrong = 0, []
    with nkilib.simulator.using(replay=False):
        for name, function in functions(module):
            for what, call in wrong_calls(name, lambda function=function: function, function):
                error = error_of(call)
                refused += isinstance(error, ArgumentTypeError)
                is_right = isinstance(error, NkiValidationError) and str(error).startswith(f"{__file__}:")
                if not is_right and error is not None and not isinstance(error, NotImplementedError):
                    wrong.append((what, repr(error)))
    assert wrong == []
    assert refused > 30


def test_every_method_of_a_tensor() -> None:
    refused, wrong = 0, []
    with nkilib.simulator.using(replay=False):
        for name in DOCUMENTED["nki.language"]["NkiTensor"]["methods"]:
            for what, call in wrong_calls(
                name, lambda name=name: getattr(tile(4, 8), name), getattr(nl.NkiTensor, name)
            ):
                error = error_of(call)
                refused += isinstance(error, ArgumentTypeError)
                if error is not None and not str(error).startswith(f"{__file__}:"):
                    wrong.append((what, repr(error)))
    assert wrong == []
    assert refused > 30


def test_a_misspelt_argument_of_a_method_is_answered_with_the_nearest_one() -> None:
    error = error_of(lambda: tile(4, 8).slice(dim=0, start=0, stop=2))
    assert str(error).endswith("NkiTensor.slice: got an unexpected keyword argument 'stop'; did you mean 'step'?")


def test_a_function_of_the_kernel_with_the_same_name_is_its_own() -> None:
    names: dict[str, Any] = {}
    exec("def ds():\n    pass\ndef kernel():\n    ds(1)\n", names)
    assert type(error_of(names["kernel"])) is TypeError
