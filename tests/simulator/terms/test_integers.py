# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Values that are no integer where one belongs: views of tensors name the parameter and what came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nl
from nkilib.simulator import NkiValidationError
from nkilib.simulator.tensors.registers import VirtualRegister
from nkilib.simulator.terms.errors import RegisterTypeError
from nkilib.simulator.terms.integers import as_integer, as_integers, is_integer

from ..frame import counted, in_hbm, refused

TENSOR = "tensor [4, 6] float32 in private_hbm"
QUOTIENT = "; of two integers, / makes a float and // an integer"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, True), (np.int64(-3), True), (np.uint8(3), True), (True, False), (np.True_, False), (3.0, False)],
)
def test_integers_are_told_from_truth_values_and_floats(value: object, expected: bool) -> None:
    assert is_integer(value) is expected


def test_integers_of_any_kind() -> None:
    assert as_integer("size", np.int64(3)) == 3 and type(as_integer("size", np.int64(3))) is int
    assert as_integers("shape", [1, np.int32(2)]) == (1, 2) and as_integers("shape", range(3)) == (0, 1, 2)


def test_a_register_says_how_to_compute_with_it() -> None:
    for call in (lambda: as_integer("size", VirtualRegister(3)), lambda: as_integers("shape", (1, VirtualRegister(3)))):
        assert "Python cannot compute with VirtualRegister(3)" in refused(RegisterTypeError, call)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda t: t.reshape(24), "NkiTensor.reshape: shape must be a tuple of integers, got 24"),
        (
            lambda t: t.reshape((4, 12 / 2)),
            f"NkiTensor.reshape: shape must be a tuple of integers, got (4, 6.0){QUOTIENT}",
        ),
        (lambda t: t.reshape((4, 6.5)), "NkiTensor.reshape: shape must be a tuple of integers, got (4, 6.5)"),
        (lambda t: t.permute(1), "NkiTensor.permute: dims must be a tuple of integers, got 1"),
        (lambda t: t.permute("10"), "NkiTensor.permute: dims must be a tuple of integers, got '10'"),
        (lambda t: t[0:1].broadcast(0, 8 / 2), f"NkiTensor.broadcast: size must be an integer, got 4.0{QUOTIENT}"),
        (
            lambda t: t.slice(1, None, 3),
            f"NkiTensor.slice of {TENSOR}: start, end and step must be a tuple of integers, got (None, 3, 1)",
        ),
        (
            lambda t: t.slice(1, 0, 6 / 2),
            f"NkiTensor.slice of {TENSOR}: start, end and step must be a tuple of integers, got (0, 3.0, 1){QUOTIENT}",
        ),
        (lambda t: t.ap([[6, 4], [1, 6]], [0]), f"NkiTensor.ap on {TENSOR}: offset must be an integer, got [0]"),
        (
            lambda t: t.reshape_dim(1, 3),
            f"NkiTensor.reshape_dim of dimension 1 of {TENSOR}: sizes must be a tuple of integers, got 3",
        ),
        (
            lambda t: t.rearrange(("a", ("b", "c")), ("a", "b", "c"), {"b": 2.0}),
            "NkiTensor.rearrange(('a', ('b', 'c')), ('a', 'b', 'c'), {'b': 2.0}) of "
            f"{TENSOR}: dimension 1, ('b', 'c'): sizes must be a tuple of integers, got [2.0, -1]{QUOTIENT}",
        ),
        (
            lambda t: t.rearrange(("a", ("b", "c")), ("a", "b", "c"), 2),
            f"NkiTensor.rearrange(('a', ('b', 'c')), ('a', 'b', 'c'), 2) of {TENSOR}: fixed_sizes must be a dictionary "
            f"of names and sizes, got 2",
        ),
        (
            lambda t: t.rearrange(2, 3),
            f"NkiTensor.rearrange(2, 3, None) of {TENSOR}: src_pattern must be a tuple of names and tuples of names, "
            f"got 2",
        ),
    ],
)
def test_views_name_what_is_no_integer(view: Any, message: str) -> None:
    assert refused(NkiValidationError, lambda: view(in_hbm(counted(4, 6)))) == message


def test_a_tensor_is_no_integer() -> None:
    size = nl.NkiTensor((1, 1), nl.int32, None)
    message = refused(NkiValidationError, lambda: in_hbm(counted(4, 6)).reshape((4, size)))
    assert message.startswith(
        "NkiTensor.reshape: shape must be a tuple of integers, got (4, tensor [1, 1] int32 in sbuf)"
    )


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda t: t.reshape(4, 6), "NkiTensor.reshape() takes 2 positional arguments but 3 were given"),
        (lambda t: t.permute(1, 0), "NkiTensor.permute() takes 2 positional arguments but 3 were given"),
        (lambda t: t.select(1), "NkiTensor.select() missing 1 required positional argument: 'index'"),
        (lambda t: t.ap(), "NkiTensor.ap() missing 1 required positional argument: 'pattern'"),
        (lambda t: t.view(), "NkiTensor.view() missing 1 required positional argument: 'dtype'"),
    ],
)
def test_wrong_calls_name_the_method_as_kernels_know_it(view: Any, message: str) -> None:
    """Sizes one by one are PyTorch's way."""
    assert refused(TypeError, lambda: view(in_hbm(counted(4, 6)))) == message
