# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks with PyTorch's samples notice what is wrong, and a documented difference that is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.torch.opinfo import (
    DTYPES,
    Budget,
    Checked,
    Difference,
    Sample,
    call_of,
    module_errors,
    module_samples,
    op_samples,
    with_keywords,
)

# PyTorch rounds the saved output, and sums bfloat16 products of it in float32: some roundings of the type.
SOFTMAX = Checked(F.softmax, F.softmax, Budget(4.0, 8.0), Budget(8.0, 16.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pytorch_passes_its_own_samples(dtype: torch.dtype) -> None:
    SOFTMAX.check(op_samples("softmax", dtype))
    Checked(nn.Softmax, nn.Softmax, Budget(4.0, 8.0), Budget(8.0, 16.0)).check(module_samples("Softmax", dtype))


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        return F.softmax(x, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


WRONG: dict[str, Callable[..., Any]] = {
    "zeros": lambda x, dim: x * 0.0,
    "negated": lambda x, dim: -F.softmax(x, dim),
    "other axis": lambda x, dim: F.softmax(x, 0 if x.dim() < 2 or dim % x.dim() else 1),
    "transposed": lambda x, dim: F.softmax(x, dim).mT if x.dim() > 1 else F.softmax(x, dim),
    "other type": lambda x, dim: F.softmax(x, dim).to(torch.float16),
    "constant": lambda x, dim: F.softmax(x, dim).detach(),
    "NaN": lambda x, dim: F.softmax(x, dim) * torch.nan,
    "wrong gradient": lambda x, dim: _WrongGradient.apply(x, dim),
    "raises": lambda x, dim: F.softmax(x, 99),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_noticed(name: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        replace(SOFTMAX, ours=WRONG[name]).check(op_samples("softmax", torch.float32))


def _is_empty(sample: Sample) -> bool:
    return bool(sample.args[0].numel() == 0)


def _refuses_empty(x: Tensor, dim: int) -> Tensor:
    if x.numel() == 0:
        raise ValueError("no elements")
    return F.softmax(x, dim)


def test_a_documented_difference_is_taken_and_one_that_is_none_is_not() -> None:
    samples = op_samples("softmax", torch.float32)
    difference = Difference("the test wants it", _is_empty, raises=ValueError, says="no elements")
    Checked(_refuses_empty, F.softmax, differences=[difference]).check(samples)
    with pytest.raises(pytest.fail.Exception):
        Checked(F.softmax, F.softmax, differences=[difference]).check(samples)
    with pytest.raises(AssertionError, match="no sample shows it"):
        unmet = Difference("never", lambda sample: False, raises=ValueError)
        Checked(F.softmax, F.softmax, differences=[unmet]).check_each_difference_is_met(samples)


def test_a_type_that_is_documented_to_differ() -> None:
    samples = op_samples("softmax", torch.bfloat16)
    difference = Difference("float32 results", lambda sample: True, result_dtype=torch.float32)
    wide = replace(SOFTMAX, ours=lambda x, dim: F.softmax(x, dim, dtype=torch.float32), differences=[difference])
    wide.check(samples)
    with pytest.raises(AssertionError, match=r"torch\.bfloat16"):
        replace(SOFTMAX, differences=[difference]).check(samples)


def test_another_function_that_is_documented() -> None:
    def half(x: Tensor, dim: int) -> Tensor:
        return F.softmax(x, dim) / 2

    samples = [sample for sample in op_samples("softmax", torch.float32) if not _is_empty(sample)]
    difference = Difference("the test wants it", lambda sample: True, like=half)
    replace(SOFTMAX, ours=half, differences=[difference]).check(samples)
    with pytest.raises(AssertionError, match="off by"):
        replace(SOFTMAX, differences=[difference]).check(samples)


def test_errors_have_to_be_of_the_same_type() -> None:
    bad = [call_of(torch.zeros(2), 1), call_of(torch.zeros(2, dtype=torch.int64), 0)]
    SOFTMAX.check_refused_alike(bad)
    with pytest.raises(AssertionError, match="PyTorch raises IndexError"):
        replace(SOFTMAX, ours=lambda x, dim: x).check(bad)
    with pytest.raises(AssertionError, match="PyTorch takes it"):
        SOFTMAX.check_refused_alike([call_of(torch.zeros(2), 0)])
    ((sample, error),) = module_errors("NLLLoss")
    Checked(nn.NLLLoss, nn.NLLLoss).check_refused(sample, error)


def test_float64_is_refused_with_a_remedy() -> None:
    def narrow(x: Tensor, dim: int) -> Tensor:
        raise TypeError("pass input.float()")

    samples = op_samples("softmax", torch.float64)
    replace(SOFTMAX, ours=narrow).check_float64_is_refused(samples)
    with pytest.raises(pytest.fail.Exception):
        SOFTMAX.check_float64_is_refused(samples)


def test_keywords_replace_those_of_samples() -> None:
    (first, *_) = with_keywords(op_samples("softmax", torch.float32, "with_dtype"), dtype=torch.bfloat16)
    assert first.kwargs["dtype"] == torch.bfloat16 and first.doubled().kwargs["dtype"] == torch.float64
