# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Places named in errors of functions of ``nki.language``, and calls that fit no signature."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator import ArgumentTypeError, NkiValidationError

from ..frame import in_hbm, refused, run
from ..kernels import tile

NEVER_WRITTEN = "operand 'data': 4 of the 4 elements of tensor [2, 2] float32 in sbuf were never written"


def message(body: Any, cores: int = 1, error: type[Exception] = NkiValidationError) -> str:
    """Return the message that refuses `body`, after the place, which is the line on which `body` begins."""
    with nkilib.simulator.using(uninitialized="nan"):
        text = refused(error, lambda: run(body, cores=cores))
    place = f"{__file__}:{body.__code__.co_firstlineno}: "
    assert text.startswith(place)
    return text.removeprefix(place)


def test_the_functions_own_refusal() -> None:
    assert message(lambda: nl.matmul(tile(2, 2), tile(3, 2))).startswith("nl.matmul: dimension 1 of x must be")


def test_the_instruction_inside_is_named_after_the_function() -> None:
    assert message(lambda: nl.dropout(tile(2, 2), 2)) == (
        "nl.dropout: nisa.dropout: prob must be a probability, in [0, 1], got 2"
    )
    assert message(lambda: nl.load(nl.zeros((129, 2), nl.int8, nl.hbm))) == (
        "nl.load: nl.ndarray: tensor [129, 2] int8 in sbuf: the partition dimension must be at most 128 "
        "(nl.tile_size.pmax), got 129"
    )


def test_of_functions_that_call_each_other_the_one_in_the_kernel_is_named() -> None:
    packed = "value must be 0 for the packed type float8_e5m2_x4, got 1; load other values with nisa.dma_copy"
    assert message(lambda: nl.ones((2, 2), nl.float8_e5m2_x4)) == f"nl.ones: {packed}"
    assert message(lambda: nl.full((2, 2), 1, nl.float8_e5m2_x4)) == f"nl.full: {packed}"


@pytest.mark.parametrize("failing", [0, 1])
def test_on_two_cores_the_core_is_named_once(failing: int) -> None:
    def own() -> None:
        nl.ones((2, 2), nl.float8_e5m2_x4) if nl.program_id() == failing else None

    def inside() -> None:
        nl.dropout(tile(2, 2), 2) if nl.program_id() == failing else None

    for kernel, expected in (
        (own, f"nl.ones on core {failing}: value must be 0 for the packed type"),
        (inside, f"nl.dropout: nisa.dropout on core {failing}: prob must be a probability"),
    ):
        text = refused(NkiValidationError, lambda kernel=kernel: run(kernel, cores=2))  # type: ignore[misc]
        assert text.startswith(f"{__file__}:{inspect.getsourcelines(kernel)[1] + 1}: {expected}")


def test_the_line_is_the_one_of_the_helper_that_calls_the_function() -> None:
    def helper() -> None:
        nl.exp(nl.zeros((2, 2), nl.float32, nl.hbm))

    line = inspect.getsourcelines(helper)[1] + 1
    text = refused(NkiValidationError, lambda: run(lambda: helper()))
    assert text.startswith(f"{__file__}:{line}: nl.exp: x must be a tile in sbuf or psum")


def test_the_class_of_the_error_stays() -> None:
    with nkilib.simulator.using(uninitialized="error"):
        text = refused(
            nkilib.simulator.UninitializedReadError, lambda: run(lambda: nl.exp(nl.ndarray((2, 2), nl.float32)))
        )
    assert text.endswith(f": nl.exp: nisa.activation: {NEVER_WRITTEN}")


def test_outside_a_kernel_there_is_no_line_to_name() -> None:
    works_inside = "nl.ndarray works inside a kernel only: decorate the function with @nki.jit and call it"
    assert refused(NkiValidationError, lambda: nl.zeros((2, 2), nl.int8)) == works_inside
    assert refused(NkiValidationError, lambda: nl.exp(in_hbm(np.zeros((2, 2), np.float32)))).startswith(
        "x must be a tile in sbuf"
    )


MASK = (
    "got an unexpected keyword argument 'mask'; 'mask' was removed from NKI: slice the tensors to what is inside, "
    "t[:rows, :columns]"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda: nl.add(tile(2, 2)), "nl.add: missing a required argument: 'y'"),
        (lambda: nl.sum(tile(2, 2)), "nl.sum: missing a required argument: 'axis'"),
        (
            lambda: nl.softmax(tile(2, 2), dim=1),
            "nl.softmax: got an unexpected keyword argument 'dim'; did you mean 'axis'?",
        ),
        (lambda: nl.zeros((2, 2)), "nl.zeros: missing a required argument: 'dtype'"),
        (lambda: nl.load(tile(2, 2), mask=None), "nl.load: " + MASK),
        (lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2), mask=None), "nisa.tensor_copy: " + MASK),
        (
            lambda: nisa.dma_copy(tile(2, 2), tile(2, 2), dst_rmw_op=nl.add),
            "nisa.dma_copy: got an unexpected keyword argument 'dst_rmw_op'; 'dst_rmw_op' was removed from NKI: use "
            "nisa.dma_compute",
        ),
        (
            lambda: nisa.register_move(nisa.register_alloc(), imm=42),
            "nisa.register_move: missing a required argument: 'src'; 'imm' was removed from NKI: pass src",
        ),
        (
            lambda: nisa.sendrecv(tile(2, 2), tile(2, 2), 0, 0, 0, use_gpsimd_dma=True),
            "nisa.sendrecv: got an unexpected keyword argument 'use_gpsimd_dma'; 'use_gpsimd_dma' was removed from "
            "NKI: pass dma_engine=nisa.dma_engine.gpsimd_dma",
        ),
    ],
)
def test_a_call_that_does_not_fit_the_signature(body: Any, expected: str) -> None:
    assert message(body, error=ArgumentTypeError) == expected


def test_a_parameter_that_another_function_has_is_not_called_removed() -> None:
    """`unique_indices` left dma_copy for dma_compute."""
    parameters = inspect.signature(nisa.dma_compute).parameters
    assert "unique_indices" in parameters
    expected = "nisa.dma_compute: missing a required argument: 'srcs'"
    assert message(lambda: nisa.dma_compute(tile(2, 2), unique_indices=True), error=ArgumentTypeError) == expected


def test_a_wrong_data_type_names_the_function() -> None:
    expected = "dtype must be an NKI data type such as nl.float32 or nl.bfloat16, got <class 'float'>"
    assert message(lambda: nl.exp(tile(2, 2), dtype=float), error=ArgumentTypeError) == f"nl.exp: {expected}"
    zeros = message(lambda: nl.zeros((2, 2), float), error=ArgumentTypeError)
    assert zeros == f"nl.zeros: nl.ndarray: {expected}"
