# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nkilib.simulator.tensors.device_integers`: what registers and scalars hold, and what Python may not do with them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, UninitializedReadError, using
from nkilib.simulator.tensors.device_integers import LoadedFloat, NkiScalar, VirtualRegister, int32_of
from nkilib.simulator.terms.errors import RegisterTypeError
from tests.simulator.frame import in_sbuf, refused, run, without_line

REMEDY = "nisa.register_store it to a [1, 1] tile, compute there, and nisa.register_load the result"
AS_INTEGER = "nl.fori_loop(0, register, body) counts to it, and nl.ds(register, size) makes it an index of a tensor"


def test_a_register_is_an_nki_object_that_starts_unset_and_writable() -> None:
    register = VirtualRegister()
    assert isinstance(register, nl.NKIObject) and nisa.VirtualRegister is VirtualRegister
    assert register.frozen is False
    assert refused(UninitializedReadError, lambda: register.value("stop")) == (
        "stop: the register was never set; give nisa.register_alloc a value, or nisa.register_load one first"
    )


@pytest.mark.parametrize(
    ("state", "held"),
    [(0, 0), (5, 5), (-5, -5), (2**31 - 1, 2**31 - 1), (-(2**31), -(2**31)), (2**31, -(2**31)), (2**32 - 1, -1)],
)
def test_a_register_holds_32_bits_that_read_as_int32(state: int, held: int) -> None:
    assert VirtualRegister(state).value("it") == held
    assert type(VirtualRegister(np.int64(state)).value("it")) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [2**32, -(2**31) - 1, 1.5, True, "5", np.float32(2)])
def test_its_first_value_is_an_integer_of_32_bits(state: Any) -> None:
    expected = f"state must be an integer of 32 bits, got {state!r}"
    assert refused(NkiValidationError, lambda: VirtualRegister(state)) == expected


def test_a_write_replaces_the_value_and_wraps_to_32_bits() -> None:
    register = VirtualRegister(7)
    register.write(-3)
    assert register.value("it") == -3
    register.write(2**33 + 2**31 + 1)
    assert register.value("it") == -(2**31) + 1


def test_a_frozen_register_is_not_written() -> None:
    register = VirtualRegister(7, frozen=True)
    assert refused(NkiValidationError, lambda: register.write(8)) == (
        "operand 'dst': VirtualRegister(7, frozen) is the value of a loop and read-only; nisa.register_move it to a "
        "register of your own and write that one"
    )
    assert register.value("it") == 7


def test_a_float_is_kept_but_is_no_integer() -> None:
    register, loaded = VirtualRegister(), LoadedFloat(0.25, nl.float32)
    register.write(loaded)
    assert register.content("it") == loaded and repr(register) == "VirtualRegister(0.25)"
    expected = "nl.fori_loop: upper: must be an integer, got a register loaded with the float32 0.25"
    assert refused(NkiValidationError, lambda: register.value("nl.fori_loop: upper")) == expected
    with using(frontend="custom"):
        message = refused(NkiValidationError, lambda: bool(register))
    assert message.startswith("a register as a condition: must be an integer")


CANNOT_STEER = (
    "Python cannot go by VirtualRegister(3): a register has its value on the device only and cannot steer Python; "
    "nl.fori_loop(0, register, body) counts to it, and nl.while_loop(register, body) runs until it holds 0. "
    "NKI_COMPILER_FRONTEND=custom runs while register: as NKI 0.6 did"
)


@pytest.mark.parametrize("go_by", [bool, operator.not_, lambda r: 1 if r else 2, lambda r: r and 1, lambda r: any([r])])
def test_python_does_not_go_by_a_register(go_by: Callable[[Any], Any]) -> None:
    assert refused(RegisterTypeError, lambda: go_by(VirtualRegister(3))) == CANNOT_STEER


@pytest.mark.parametrize(("value", "truth"), [(0, False), (1, True), (-1, True), (2**31, True)])
def test_with_the_front_end_of_0_6_a_condition_is_true_unless_the_register_holds_0(value: int, truth: bool) -> None:
    with using(frontend="custom"):
        assert bool(VirtualRegister(value)) is truth


def test_with_the_front_end_of_0_6_an_unset_register_is_no_condition() -> None:
    with using(frontend="custom"):
        message = refused(UninitializedReadError, lambda: bool(VirtualRegister()))
    assert message.startswith("a register as a condition: the register was never set")


@pytest.mark.parametrize(
    ("register", "text"),
    [
        (VirtualRegister(), "VirtualRegister(unset)"),
        (VirtualRegister(-2), "VirtualRegister(-2)"),
        (VirtualRegister(3, True), "VirtualRegister(3, frozen)"),
    ],
)
def test_a_register_shows_its_value_to_a_debugger(register: VirtualRegister, text: str) -> None:
    assert repr(register) == f"{register}" == text


CONVERSIONS: list[Callable[[Any], Any]] = [int, float, range, operator.index]
UNARY: list[Callable[[Any], Any]] = [abs, operator.neg, operator.invert]
BINARY: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.truediv,
    operator.mod,
    operator.pow,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.lshift,
    operator.rshift,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]


@pytest.mark.parametrize(
    ("convert", "remedy"), [*((convert, AS_INTEGER) for convert in CONVERSIONS), *((one, REMEDY) for one in UNARY)]
)
def test_python_does_not_learn_the_value(convert: Callable[[Any], Any], remedy: str) -> None:
    """Who wants an integer wants a loop or an index; who computes is told how."""
    expected = f"Python cannot compute with VirtualRegister(3): a register has its value on the device only; {remedy}"
    assert refused(RegisterTypeError, lambda: convert(VirtualRegister(3))) == expected


@pytest.mark.parametrize("compute", BINARY)
@pytest.mark.parametrize("other", [2, 2.5, VirtualRegister(3)])
def test_python_does_not_compute_with_registers(compute: Callable[[Any, Any], Any], other: Any) -> None:
    register = VirtualRegister(3)
    expected = f"Python cannot compute with VirtualRegister(3): a register has its value on the device only; {REMEDY}"
    assert refused(RegisterTypeError, lambda: compute(register, other)) == expected
    assert refused(RegisterTypeError, lambda: compute(other, register)) == expected


def test_the_refusal_is_the_documented_type_error_and_names_the_line() -> None:
    assert issubclass(RegisterTypeError, TypeError)

    def kernel() -> None:
        nl.affine_range(nisa.register_alloc(3))  # type: ignore[arg-type]

    message = without_line(refused(RegisterTypeError, lambda: run(kernel)))
    assert message.startswith("Python cannot compute with VirtualRegister(3)")


def test_a_register_can_be_told_from_none_and_from_names_and_put_into_a_dict() -> None:
    register = VirtualRegister(3)
    assert register != None  # noqa: E711 - how NKI kernels write it
    assert register != "dynamic" and register is not None
    assert {register: "kept"}[register] == "kept"


INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)
TYPES = [nl.int32, nl.int64]
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def scalar(value: int, dtype: Any = nl.int32) -> NkiScalar:
    return NkiScalar.holding(value, dtype)


def value(nki_scalar: NkiScalar) -> int:
    return nki_scalar.value("it")


# -- arithmetic ------------------------------------------------------------------------------------------------


@given(st.integers(INT32.min, INT32.max), st.integers(INT32.min, INT32.max))
def test_int32_computes_as_numpy_does_with_wrap(left: int, right: int) -> None:
    for compute in ARITHMETIC.values():
        with np.errstate(over="ignore"):
            expected = int(compute(np.array(left, np.int32), np.array(right, np.int32)))
        forms = [(scalar(left), scalar(right)), (scalar(left), right), (left, scalar(right))]
        for made in (compute(*operands) for operands in forms):
            assert value(made) == expected and made.dtype == nl.int32


@given(st.integers(INT64.min, INT64.max), st.integers(INT64.min, INT64.max))
def test_int64_computes_as_numpy_does_with_wrap(left: int, right: int) -> None:
    for compute in ARITHMETIC.values():
        with np.errstate(over="ignore"):
            expected = int(compute(np.array(left), np.array(right)))
        made = compute(scalar(left, nl.int64), scalar(right, nl.int64))
        assert value(made) == expected and made.dtype == nl.int64


def test_the_documented_overflows() -> None:
    assert value(scalar(100000) * 100000) == 1410065408
    assert value(scalar(INT32.max) + 1) == INT32.min
    assert value(scalar(100000, nl.int64) * 100000) == 10**10


@pytest.mark.parametrize("dtype", TYPES)
def test_signs(dtype: Any) -> None:
    lowest = int(np.iinfo(dtype.numpy).min)
    assert value(-scalar(5, dtype)) == -5 and value(+scalar(5, dtype)) == 5
    assert value(-scalar(lowest, dtype)) == lowest


def test_numbers_of_numpy_on_either_side() -> None:
    assert value(scalar(5) - np.int64(2)) == 3
    assert value(np.int64(2) - scalar(5)) == -3


def test_a_scalar_never_changes() -> None:
    first = same = scalar(5)
    first += 2
    assert (value(first), value(same)) == (7, 5)


@pytest.mark.parametrize("symbol", ARITHMETIC)
def test_two_scalars_have_one_type(symbol: str) -> None:
    message = refused(RegisterTypeError, lambda: ARITHMETIC[symbol](scalar(1), scalar(2, nl.int64)))
    assert message == (
        f"operator {symbol}: two scalars must have one type, got NkiScalar(1, int32) and NkiScalar(2, int64); "
        f"nisa.scalar_load both from tensors of one type"
    )


@pytest.mark.parametrize("other", [1.0, True, "1", None, np.float32(1)], ids=repr)
def test_the_other_operand_is_an_integer(other: Any) -> None:
    expected = f"operator +: the other operand of NkiScalar(1, int32) must be an integer or a scalar, got {other!r}"
    assert refused(RegisterTypeError, lambda: scalar(1) + other) == expected
    assert refused(RegisterTypeError, lambda: other + scalar(1)) == expected


def test_registers_and_tensors_come_by_way_of_memory() -> None:
    message = refused(RegisterTypeError, lambda: scalar(1) + VirtualRegister(2))
    assert message.endswith(
        "got VirtualRegister(2); nisa.register_store it to a [1, 1] tile, and nisa.scalar_load it from there"
    )
    message = refused(RegisterTypeError, lambda: scalar(1) * in_sbuf(np.ones((1, 1), np.int32)))
    assert message.endswith("; nisa.scalar_load takes it from a tensor")


@pytest.mark.parametrize("number", [INT32.max + 1, INT32.min - 1, 2**40])
def test_an_integer_has_the_width_of_the_scalar(number: int) -> None:
    expected = f"operator -: an integer beside NkiScalar(0, int32) must have its 32 bits, got {number}"
    assert refused(RegisterTypeError, lambda: scalar(0) - int(number)) == expected
    assert value(scalar(0, nl.int64) - int(number)) == -number


OTHERS: list[Callable[[Any, Any], Any]] = [
    operator.floordiv,
    operator.truediv,
    operator.mod,
    operator.pow,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.lshift,
    operator.rshift,
    divmod,
]


@pytest.mark.parametrize("compute", OTHERS)
def test_there_are_no_other_operators(compute: Callable[[Any, Any], Any]) -> None:
    expected = (
        "NkiScalar(5, int32) has the operators +, - and * only; nisa.scalar_store it to a [1, 1] tile, compute there, "
        "and nisa.scalar_load the result"
    )
    assert refused(RegisterTypeError, lambda: compute(scalar(5), 2)) == expected
    assert refused(RegisterTypeError, lambda: compute(2, scalar(5))) == expected


@pytest.mark.parametrize("compute", [abs, operator.invert])
def test_nor_with_one_operand(compute: Callable[[Any], Any]) -> None:
    assert "has the operators +, - and * only" in refused(RegisterTypeError, lambda: compute(scalar(5)))


# -- comparisons -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", COMPARISONS)
@pytest.mark.parametrize("other", [3, scalar(4)])
def test_a_comparison_of_int32_makes_what_nothing_takes(symbol: str, other: Any) -> None:
    compared = COMPARISONS[symbol](scalar(3), other)
    assert isinstance(compared, NkiScalar) and repr(compared) == "NkiScalar(comparison, int32)"
    unusable = "NkiScalar(comparison, int32) is the result of a comparison of scalars, which nothing can use"
    assert refused(RegisterTypeError, lambda: compared.value("nl.fori_loop: upper")) == (
        f"nl.fori_loop: upper: {unusable}"
    )
    for compute in (lambda: compared + 1, lambda: scalar(1) + compared):
        assert refused(RegisterTypeError, compute) == f"operator +: {unusable}"
    assert "Python cannot go by NkiScalar(comparison, int32)" in refused(RegisterTypeError, lambda: bool(compared))


@pytest.mark.parametrize("symbol", COMPARISONS)
def test_int64_is_not_compared(symbol: str) -> None:
    message = refused(RegisterTypeError, lambda: COMPARISONS[symbol](scalar(3, nl.int64), 3))
    assert message == (
        f"operator {symbol}: scalars of 64 bits are not compared, got NkiScalar(3, int64); nisa.scalar_store it and "
        f"compare tiles of 32 bits"
    )


def test_a_scalar_can_be_told_from_none_and_from_names_and_put_into_a_dict() -> None:
    inputs = scalar(3)
    assert inputs != None and not inputs == None  # noqa: E711, SIM201 - how NKI kernels write it
    assert inputs != "dynamic" and {inputs: "kept"}[inputs] == "kept"


# -- Python ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("go_by", [bool, int, float, range, operator.index, operator.not_, lambda s: [1, 2][s]])
@pytest.mark.parametrize("dtype", TYPES)
def test_python_does_not_go_by_a_scalar(go_by: Callable[[Any], Any], dtype: Any) -> None:
    assert refused(RegisterTypeError, lambda: go_by(scalar(1, dtype))) == (
        f"Python cannot go by NkiScalar(1, {dtype}): a scalar has its value on the device only and cannot steer "
        f"Python: no if, while, int() or range() goes by it; nl.fori_loop counts to it"
    )
    assert issubclass(RegisterTypeError, TypeError)


def test_a_kernel_makes_none_by_itself() -> None:
    assert issubclass(nisa.NkiScalar, nl.NKIObject)
    assert refused(NkiValidationError, lambda: nisa.NkiScalar(3, nl.int32)) == (
        "nisa.NkiScalar: a kernel does not make one, got state=3, dtype=int32, is_comparison=False; nisa.scalar_load "
        "reads one from a tensor, and nl.fori_loop counts in one"
    )


def test_what_takes_32_bits_takes_registers_and_scalars_of_32_bits() -> None:
    assert int32_of("offset", scalar(-3)) == int32_of("offset", VirtualRegister(-3)) == -3
    message = refused(NkiValidationError, lambda: int32_of("offset", scalar(3, nl.int64)))
    assert message == "offset must be an int32, got NkiScalar(3, int64); nisa.scalar_load it from a tensor of int32"
