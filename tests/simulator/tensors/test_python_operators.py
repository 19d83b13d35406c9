# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Python's operators on tensors are refused with the function to use; identity and hashing stay."""

from __future__ import annotations

import operator
import re
import statistics
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, TensorTypeError
from nkilib.simulator.terms.other_names import NUMPY_NAMES
from tests.simulator.frame import refused, run, tensor_of
from tests.simulator.kernels import load

BINARY = [
    (operator.add, "+", "nl.add"),
    (operator.sub, "-", "nl.subtract"),
    (operator.mul, "*", "nl.multiply"),
    (operator.truediv, "/", "nl.divide"),
    (operator.floordiv, "//", "nl.divide and nl.floor"),
    (operator.mod, "%", "nl.mod"),
    (operator.pow, "**", "nl.power"),
    (operator.matmul, "@", "nl.matmul"),
    (operator.and_, "&", "nl.bitwise_and"),
    (operator.or_, "|", "nl.bitwise_or"),
    (operator.xor, "^", "nl.bitwise_xor"),
    (operator.lshift, "<<", "nl.left_shift"),
    (operator.rshift, ">>", "nl.right_shift"),
]
COMPARISONS = [
    (operator.lt, "<", "nl.less"),
    (operator.le, "<=", "nl.less_equal"),
    (operator.gt, ">", "nl.greater"),
    (operator.ge, ">=", "nl.greater_equal"),
]
UNARY = [(operator.neg, "-", "nl.negative"), (abs, "abs()", "nl.abs"), (operator.invert, "~", "nl.invert")]


def tensor() -> Any:
    return nl.NkiTensor((2, 3), nl.float32, None)


def message(compute: Any, *operands: Any) -> str:
    with pytest.raises(TypeError) as caught:
        compute(*operands)
    return str(caught.value)


@pytest.mark.parametrize(("compute", "symbol", "function"), BINARY + COMPARISONS, ids=lambda item: str(item))
def test_operators_of_two_operands(compute: Any, symbol: str, function: str) -> None:
    expected = f"tensor [2, 3] float32 in sbuf: Python's {symbol} is no operation of NKI on tensors; use {function}"
    assert message(compute, tensor(), 2.0) == message(compute, tensor(), tensor()) == expected


@pytest.mark.parametrize(("compute", "symbol", "function"), BINARY, ids=lambda item: str(item))
@pytest.mark.parametrize("number", [2, 2.0, np.float32(2)], ids=repr)
def test_a_number_first(compute: Any, symbol: str, function: str, number: Any) -> None:
    assert f"Python's {symbol} is no operation" in message(compute, number, tensor())


@pytest.mark.parametrize(("compute", "symbol", "function"), UNARY, ids=lambda item: str(item))
def test_operators_of_one_operand(compute: Any, symbol: str, function: str) -> None:
    assert message(compute, tensor()).endswith(f"Python's {symbol} is no operation of NKI on tensors; use {function}")


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x * 2.0,
        lambda x: np.exp(x),
        lambda x: range(x),
        lambda x: np.mean(x),
        lambda x: np.mean([x]),
        lambda x: statistics.fmean([x]),
    ],
)
def test_in_a_kernel_the_error_names_the_line_and_is_a_type_error(compute: Any) -> None:
    assert issubclass(TensorTypeError, TypeError) and issubclass(TensorTypeError, NkiValidationError)
    text = refused(TensorTypeError, lambda: run(compute, np.zeros((2, 3), np.float32)))
    assert text.startswith(f"{__file__}:{compute.__code__.co_firstlineno}: tensor 'x' [2, 3] float32 in private_hbm: ")


def test_adding_to_a_tile_in_psum_is_answered_with_the_matmul_that_adds() -> None:
    x: Any = tensor_of(np.zeros((2, 3), np.float32), nl.psum)
    with pytest.raises(TensorTypeError, match=r"Python's \+= .*; use nisa\.nc_matmul\(t, stationary, moving\), which"):
        x += x


def test_assignment_with_an_operator() -> None:
    x = tensor()
    with pytest.raises(TypeError, match=r"use nl\.add"):
        x += 1


def test_every_function_that_is_named_exists() -> None:
    named = {name for *_, names in BINARY + COMPARISONS + UNARY for name in names.split(" and ")}
    assert all(callable(getattr(nl, name.removeprefix("nl."))) for name in named)


@pytest.mark.parametrize("compute", [np.sum, np.exp, np.asarray, lambda x: np.add(x, 1), lambda x: np.ones(3) @ x])
def test_numpy_does_not_take_a_tensor_for_an_object(compute: Any) -> None:
    """np.sum of an object is that object: the kernel would go on with what it had."""
    assert " no operation of NKI on tensors" in message(compute, tensor()) or message(compute, tensor()) == (
        "tensor [2, 3] float32 in sbuf: numpy cannot compute with a tensor; use the functions of nki.language (in a "
        "debugger, .array is a numpy view)"
    )


@pytest.mark.parametrize(
    ("compute", "name", "use"),
    [
        (np.exp, "exp", "nl.exp, or nisa.activation(dst, op=nl.exp, data=data)"),
        (np.abs, "absolute", "nl.abs, or nisa.activation(dst, op=nl.abs, data=data)"),
        (np.sum, "sum", "nl.sum, or nisa.tensor_reduce(dst, op=nl.add, data=data, axis=1)"),
        (
            np.mean,
            "mean",
            "nl.mean, or nisa.tensor_reduce(dst, op=nl.add, data=data, axis=1) and nisa.tensor_scalar(dst, dst, "
            "op0=nl.multiply, operand0=1 / n)",
        ),
        (np.std, "std", "nl.sqrt(nl.var(x, axis))"),
        (lambda x: np.concatenate([x, x]), "concatenate", "one larger tile, and nisa.tensor_copy to a slice of it"),
        (np.add.reduce, "add.reduce", "the functions of nki.language (in a debugger, .array is a numpy view)"),
        (np.median, "median", "the functions of nki.language (in a debugger, .array is a numpy view)"),
    ],
)
def test_a_function_of_numpy_is_refused_by_its_name_with_what_to_use(compute: Any, name: str, use: str) -> None:
    expected = f"tensor [2, 3] float32 in sbuf: numpy's {name} is no operation of NKI on tensors; use {use}"
    assert message(compute, tensor()).startswith(expected)


def test_functions_of_numpy_that_compute_nothing() -> None:
    assert (np.shape(tensor()), np.ndim(tensor()), np.size(tensor())) == ((2, 3), 2, 6)


def test_what_is_named_in_place_of_numpy_exists() -> None:
    named = [found for use in NUMPY_NAMES.values() for found in re.findall(r"\b(nl|nisa)\.(\w+)", use)]
    assert named and all(name in {"nl": nl, "nisa": nisa}[module].__all__ for module, name in named)


def test_the_reductions_that_are_named_in_place_of_numpy_run() -> None:
    calls = [
        call
        for name in ("sum", "max", "min", "prod", "mean", "exp")
        for call in re.split(r", or | and ", NUMPY_NAMES[name])
        if call.startswith("nisa.")
    ]

    def body(x: Any) -> None:
        names = {"nl": nl, "nisa": nisa, "data": load(x), "dst": nl.ndarray((2, 1), nl.float32), "n": 3}
        for call in calls:
            whole = names | {"dst": nl.ndarray((2, 3), nl.float32)} if "activation" in call else names
            eval(call, whole)

    run(body, np.ones((2, 3), np.float32))
    assert len(calls) == 7


@pytest.mark.parametrize("compute", [int, float, range, lambda x: [1, 2][x]])
def test_a_tensor_is_no_number(compute: Any) -> None:
    assert message(compute, tensor()) == (
        "tensor [2, 3] float32 in sbuf: the values of a tensor are not known while the kernel is being built; "
        "nisa.register_load brings one into a register"
    )


def test_tensors_are_equal_to_themselves_only_and_hash() -> None:
    x, y = tensor(), tensor()
    assert (x == x) is True and (x == y) is False and len({x, y}) == 2
    for other in (np.float32(1), np.ones(3)):
        assert (x == other) is False and (other == x) is False and (other != x) is True
    with pytest.raises(TypeError, match=r"numpy's equal is no operation of NKI on tensors; use nl\.equal"):
        np.equal(x, 1)
