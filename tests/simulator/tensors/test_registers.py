# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nkilib.simulator.tensors.registers`: what a register holds, and what Python may not do with it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, UninitializedReadError, using
from nkilib.simulator.tensors.registers import LoadedFloat, VirtualRegister
from nkilib.simulator.terms.errors import RegisterTypeError
from tests.simulator.frame import refused, run, without_line

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
