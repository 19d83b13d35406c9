# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""PyTorch's own samples, and beside them shapes, types, dimensions and errors that they lack."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nkilib.torch
from tests.torch.functions.softmax.of_pytorch import CHECKED, GRADIENTS, NAMES, VALUES
from tests.torch.inputs import make_logits
from tests.torch.opinfo import (
    DTYPES,
    Checked,
    Difference,
    Sample,
    call_of,
    module_errors,
    module_samples,
    op_errors,
    op_samples,
    with_keywords,
)

# Wider, narrower, what the kernels do not take, and what has no gradient.
TYPES = [
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float64, torch.float32),
    (torch.int64, torch.float16),
    (torch.bool, torch.float32),
]
MODULES = ("Softmax", "LogSoftmax", "Softmax2d")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    CHECKED[name].check(op_samples(name, dtype))
    assert not op_errors(name), "PyTorch lists errors now: run them"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dtype", "result"), TYPES)
def test_samples_of_pytorch_with_a_type_of_the_result(name: str, dtype: torch.dtype, result: torch.dtype) -> None:
    """Nothing is cast to a narrower type first, so what is compared with is the float64 of the input as it is."""
    samples = with_keywords(op_samples(name, dtype, "with_dtype"), dtype=result)
    if dtype == torch.float64:  # is cast to float32 by both; the exact result is that of the cast input
        samples = tuple(sample.fresh(lambda tensor: tensor.float().double()) for sample in samples)
    CHECKED[name].check(samples)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODULES)
def test_samples_of_modules_of_pytorch(name: str, dtype: torch.dtype) -> None:
    checked = Checked(getattr(nkilib.torch, name), getattr(nn, name), VALUES, GRADIENTS)
    checked.check(module_samples(name, dtype))
    assert not module_errors(name), "PyTorch lists errors now: run them"


@pytest.mark.parametrize("name", NAMES)
def test_float64_is_refused_with_what_to_do(name: str) -> None:
    CHECKED[name].check_float64_is_refused(op_samples(name, torch.float64))
    as_result = op_samples(name, torch.float32, "with_dtype")
    CHECKED[name].check_float64_is_refused(
        [replace(sample, dtype=torch.float64) for sample in as_result], remedy=r"dtype=torch\.float32"
    )


def _refusals() -> list[Sample]:
    x = make_logits(2, 3)
    return [
        call_of(x, 2),
        call_of(x, -3),
        call_of(x, 1.0),
        call_of(x, "rows"),
        call_of(x, True),
        call_of(x, (0,)),
        call_of(torch.tensor(1.0), 1),
        call_of(torch.tensor(1.0), -2),
        call_of(torch.arange(3), 0),
        call_of(torch.arange(3) > 1, 0),
        call_of(x, 0, dtype=torch.int32),
        call_of(x, 0, dtype="float32"),
        call_of(x, 0, dtype=torch.complex64),
        call_of(x.to(torch.complex64), 0),
        call_of(x.to(torch.float8_e4m3fn), 0),
        call_of(x.to_sparse(), 0),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_what_pytorch_refuses_is_refused_by_the_same_type_of_error(name: str) -> None:
    CHECKED[name].check_refused_alike(_refusals())
    difference = Difference("PyTorch looks for a method", lambda sample: True, raises=TypeError, says="must be Tensor")
    replace(CHECKED[name], differences=[difference]).check([call_of([1.0, 2.0], 0), call_of(None, 0)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 2), (2, 3, 2, 2), (2, 1, 1, 2, 1, 1, 3, 1, 2)])
def test_a_dimension_that_is_not_given_is_pytorchs_with_a_warning(name: str, shape: tuple[int, ...]) -> None:
    checked = CHECKED[name]
    for module in (False, True):
        ours: Any = checked.ours
        if module:
            ours = {"softmax": nkilib.torch.Softmax, "log_softmax": nkilib.torch.LogSoftmax}[name]()
        with pytest.warns(UserWarning, match=f"^{name}: dim is not given") as caught:
            result = ours(make_logits(*shape))
        assert [item.filename for item in caught] == [__file__]
        with pytest.warns(UserWarning, match="Implicit dimension choice"):
            torch.testing.assert_close(result, checked.theirs(make_logits(*shape)))


SHAPES = [(1,), (0,), (3, 0), (0, 3), (1, 1), (2, 3, 4, 5), (2, 1, 3, 1, 2, 1, 2, 1), (1, 2, 1, 3, 1, 2, 1, 2, 1, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_dimension_of_many_shapes(name: str, shape: tuple[int, ...]) -> None:
    dims = {-len(shape), -1, 0, len(shape) // 2}
    CHECKED[name].check([call_of(make_logits(*shape).requires_grad_(), dim) for dim in dims])


_INF, _NAN = torch.inf, torch.nan
HARD_ROWS = torch.tensor(
    [
        [-_INF, 1.0, 2.0, 0.5],
        [0.0, -_INF, -_INF, -_INF],
        [-_INF, -_INF, -_INF, -_INF],
        [_INF, 1.0, 2.0, 3.0],
        [_INF, -_INF, 2.0, 3.0],
        [_NAN, 1.0, 2.0, 3.0],
        [1.0, 2.0, -_INF, _NAN],
        [-7.0, -7.0, -7.0, -7.0],
        [0.0, -16.0, -90.0, -100.0],
        [0.0, -0.0, 88.0, -103.0],
    ]
)
FAR_APART = torch.tensor([[1e4, -1e4, 0.0, 1e4], [3e4, 3e4, 3e4, 3e4], [0.0, 1e4, -3e4, -_INF]])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_hard_rows(name: str, dtype: torch.dtype, dim: int) -> None:
    """Infinities, NaN, equal elements, differences of 2e4, and results below the normal numbers."""
    for rows in (HARD_ROWS.to(dtype), FAR_APART.to(dtype)):  # what may be off grows with the largest element
        x = rows if dim == 1 else rows.t().contiguous()
        CHECKED[name].check([call_of(x.requires_grad_(), dim)])


# On either side of 128 partitions and 512 elements of a bank, and rows longer than a chunk.
SIZES = [((129, 3), 1), ((3, 513), 1), ((127, 2), 0), ((129, 2), 0), ((2, 130, 3), 1), ((1, 8200), 1), ((700, 3), 0)]


@pytest.mark.parametrize(("shape", "dim"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_sizes_across_tiles(name: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    """The sum of dy over C elements is up to sqrt(C) times a few dy, and so is what the rounding of y costs."""
    steep = replace(GRADIENTS, of_type=16.0 + 4.0 * shape[dim] ** 0.5)
    sample = call_of(make_logits(*shape, dtype=dtype).requires_grad_(), dim)
    replace(CHECKED[name], gradients=steep).check([sample])


def test_a_narrow_type_does_not_overflow_on_the_way() -> None:
    """PyTorch casts the input first: 1e5 is infinite in float16, and the result NaN."""
    x = torch.tensor([1e5, 1e5, 1e5 - 1.0])
    result = nkilib.torch.softmax(x, 0, dtype=torch.float16)
    assert bool(F.softmax(x, 0, dtype=torch.float16).isnan().all())
    torch.testing.assert_close(result, F.softmax(x.double(), 0).half(), rtol=2.0**-10, atol=0.0)


def test_modules_are_those_of_pytorch_with_another_forward() -> None:
    for name in MODULES:
        ours, theirs = getattr(nkilib.torch, name), getattr(nn, name)
        assert issubclass(ours, theirs) and repr(ours()) == repr(theirs())
    with pytest.raises(ValueError, match=r"3-D or 4-D, got shape \(2, 3\)"):
        nkilib.torch.Softmax2d()(make_logits(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x: Tensor = make_logits(2, 3, 4)
        torch.testing.assert_close(nkilib.torch.Softmax2d()(x), nn.Softmax2d()(x))
