# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Refusals of the kernels, each with its whole message, before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.softmax import choose_softmax_tiling
from nkilib.nki import nl
from nkilib.simulator import profile, spec
from tests.experimental.refusals import SOFTMAX_KERNELS, Kernel, Refusal, assert_refused, parametrized
from tests.experimental.softmax.softmax_checks import KERNELS

_CAST = "got int32; the engines have no float64: cast the tensor, as .float() does in PyTorch"
_CHUNK = "chunk_size must be an integer from 1 to 65535 or None, got {}; pass None for what is modelled to be fastest"

REFUSALS = [
    Refusal("axis too large", "axis must be from -2 to 1 for shape (3, 100), got 2", {"axis": 2}),
    Refusal("axis too small", "axis must be from -2 to 1 for shape (3, 100), got -3", {"axis": -3}),
    Refusal("axis no integer", "axis must be an integer, got 0.5", {"axis": 0.5}),
    Refusal("axis a flag", "axis must be an integer, got True", {"axis": True}),
    Refusal(
        "nine dimensions",
        "{matrix} must have 1 to 8 dimensions, got shape (1, 1, 1, 1, 1, 1, 1, 1, 1); reshape it",
        {"{matrix}": np.ones((1,) * 9, np.float32)},
    ),
    Refusal(
        "no dimension",
        "{matrix} must have 1 to 8 dimensions, got shape (); reshape it",
        {"{matrix}": np.ones((), np.float32)},
    ),
    Refusal(
        "integers",
        "{matrix}.dtype must be nl.bfloat16, nl.float16 or nl.float32, " + _CAST,
        {"{matrix}": np.ones((3, 100), np.int32)},
    ),
    Refusal("results int32", "dtype must be nl.bfloat16, nl.float16 or nl.float32, " + _CAST, {"dtype": nl.int32}),
    Refusal("no chunk", _CHUNK.format(0), {"chunk_size": 0}),
    Refusal("a chunk beyond an instruction", _CHUNK.format(65536), {"chunk_size": 65536}),
    Refusal("a chunk of a flag", _CHUNK.format(True), {"chunk_size": True}),
    Refusal(
        "in place of another type",
        "dtype must be that of grad_hbm, float32, for inplace=True, got bfloat16; pass inplace=False",
        {"inplace": True, "dtype": nl.bfloat16},
    ),
    Refusal("a number for a flag", "inplace must be True or False, got 3", {"inplace": 3}),
    Refusal(
        "an output of another shape",
        "grad_hbm must have the shape of output_hbm, (100, 3), got (3, 100); expand the gradient",
        {"output_hbm": np.ones((100, 3), np.float32)},
    ),
    Refusal(
        "an output of integers",
        "output_hbm.dtype must be nl.bfloat16, nl.float16 or nl.float32, " + _CAST,
        {"output_hbm": np.ones((3, 100), np.int32)},
    ),
]


@parametrized(REFUSALS, SOFTMAX_KERNELS)
def test_refused_with_its_message_and_nothing_written(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    assert_refused(refusal, kernel, cores)


@pytest.mark.parametrize("kernel", SOFTMAX_KERNELS.values(), ids=SOFTMAX_KERNELS)
def test_the_call_that_refusals_start_from_is_accepted(kernel: Kernel) -> None:
    assert kernel.launch(kernel.accepted(), 2).shape == (3, 100)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_float64_is_refused_with_the_remedy(kernel: Any) -> None:
    wide = [np.ones((3, 4))] * (2 if kernel.is_backward else 1)
    with pytest.raises(TypeError, match="no type float64; cast it to float32"):
        kernel.function[2](*wide)


@pytest.mark.parametrize(
    ("name", "dtype", "most"),
    [
        ("softmax_forward", nl.bfloat16, 7_852_032),
        ("softmax_forward", nl.float32, 4_442_112),
        ("log_softmax_forward", nl.bfloat16, 9_424_896),
        ("log_softmax_forward", nl.float32, 4_835_328),
        ("softmax_backward", nl.bfloat16, 4_704_256),
        ("softmax_backward", nl.float32, 2_343_936),
        ("log_softmax_backward", nl.bfloat16, 4_444_160),
        ("log_softmax_backward", nl.float32, 3_131_392),
    ],
)
def test_rows_that_do_not_stay_on_chip_are_refused(name: str, dtype: Any, most: int) -> None:
    kernel = KERNELS[name]
    longest, longer = ([spec((1, size), dtype)] * (2 if kernel.is_backward else 1) for size in (most, most + 1))
    assert profile(kernel.function[2], *longest).time_us > 0.0
    message = f"^{name}: the axis must have at most {most} elements of these types, which stay on chip, got {most + 1}"
    with pytest.raises(AssertionError, match=message):
        profile(kernel.function[2], *longer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3, 4), 2, "float32", "forward"), "axis must be from -2 to 1"),
        (((), 0, "float32", "forward"), "shape must have 1 to 8 sizes"),
        (((3, 4), 0, "float64", "forward"), "dtype must be bfloat16, float16 or float32"),
        (((3, 4), 0, "float32", "sideways"), "direction must be"),
    ],
)
def test_a_tiling_of_what_no_kernel_takes(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_softmax_tiling(*arguments)
