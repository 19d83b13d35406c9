# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``softmax`` and ``log_softmax`` beside PyTorch, on its own samples and beyond, within the bounds of
docs/reference/softmax.md, and on tensors of every layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nkilib.torch
from nkilib.experimental import softmax as kernels
from nkilib.experimental.softmax import host
from tests.torch.inputs import make_logits
from tests.torch.opinfo import (
    DTYPES,
    Budget,
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
from tests.torch.stand_in import StandIn, stand_in_for

# A sum of float32 of few terms, an exponential and a logarithm of the target: some roundings of float32. The backward
# takes the rounded result y: dx = y (dy - sum(y dy)) has the roundings of y twice, and dx = dy - exp(y) sum(dy) that of
# y times the sum of a dozen dy.
VALUES: Final = Budget(of_type=0.0, of_float32=16.0)
GRADIENTS: Final = Budget(of_type=16.0, of_float32=32.0)
CHECKED: Final = {
    "softmax": Checked(nkilib.torch.softmax, F.softmax, VALUES, GRADIENTS),
    "log_softmax": Checked(nkilib.torch.log_softmax, F.log_softmax, VALUES, GRADIENTS),
}
NAMES: Final = tuple(CHECKED)


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


FORWARD: dict[str, Callable[..., Any]] = {"softmax": host.softmax_bound, "log_softmax": host.log_softmax_bound}
BACKWARD: dict[str, Callable[..., Any]] = {
    "softmax": host.softmax_backward_bound,
    "log_softmax": host.log_softmax_backward_bound,
}


@pytest.mark.parametrize("spread", [1.0, 30.0, 5000.0])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients_are_within_the_bounds(name: str, dim: int, spread: float) -> None:
    x = make_logits(130, 140, spread=spread).requires_grad_()
    dy = make_logits(130, 140, seed=1)
    y = CHECKED[name].ours(x, dim)
    (dx,) = torch.autograd.grad(y, x, dy)
    exact = CHECKED[name].theirs(x.detach().double(), dim)
    allowed = FORWARD[name](x.detach().numpy(), dim, np.float32)
    assert np.all((y.detach().double() - exact).abs().numpy() <= allowed)
    upstream, saved = dy.double(), y.detach().double()
    of_saved = {
        "softmax": saved * (upstream - (saved * upstream).sum(dim, keepdim=True)),
        "log_softmax": upstream - saved.exp() * upstream.sum(dim, keepdim=True),
    }[name]
    allowed = BACKWARD[name](dy.numpy(), y.detach().numpy(), dim, np.float32)
    assert np.all((dx.double() - of_saved).abs().numpy() <= allowed)


Layout = Callable[[Tensor], Tensor]
SHAPE: Final = (2, 3, 4, 5)
# Of a contiguous tensor, one of its shape and values that lies otherwise.
DENSE: Final[dict[str, Layout]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.mT.contiguous().mT,
    "permuted": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
}
OTHER: Final[dict[str, Layout]] = {
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "rows of a wider tensor": lambda x: F.pad(x, (0, 3))[..., :5],
    "repeated": lambda x: x[:1].expand(2, -1, -1, -1),
    "one value": lambda x: x.flatten()[:1].expand(x.shape),
    "overlapping": lambda x: x.flatten().as_strided(x.shape, (20, 7, 2, 1)),
    "offset": lambda x: torch.cat([x.flatten()[:3], x.flatten()])[3:].view(x.shape),
}
LAYOUTS: Final = {**DENSE, **OTHER}


def exact(name: str, x: Tensor, upstream: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The float64 result and gradient."""
    leaf = x.detach().double().requires_grad_()
    y = CHECKED[name].theirs(leaf, dim)
    (gradient,) = torch.autograd.grad(y, leaf, upstream.double())
    return y.detach(), gradient


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "dim"), [("softmax", 1), ("log_softmax", -1)])
def test_an_input_of_any_layout(name: str, layout: str, dim: int) -> None:
    x = LAYOUTS[layout](make_logits(*SHAPE))
    CHECKED[name].check([call_of(x.requires_grad_(), dim)])
    result = CHECKED[name].ours(x, dim)
    assert result.stride() == (x.stride() if layout in DENSE else result.contiguous().stride())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "of_input"), [("softmax", "channels last"), ("log_softmax", "contiguous")])
def test_an_upstream_gradient_of_any_layout_is_not_written_to(name: str, layout: str, of_input: str) -> None:
    x = LAYOUTS[of_input](make_logits(*SHAPE)).detach().requires_grad_()
    upstream = LAYOUTS[layout](make_logits(*SHAPE, seed=1))
    before = upstream.clone()
    for dim in (1, -1):
        result = CHECKED[name].ours(x, dim)
        kept = result.detach().clone()
        (gradient,) = torch.autograd.grad(result, x, upstream)
        y, reference = exact(name, x, upstream, dim)
        torch.testing.assert_close(result.double(), y, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient.double(), reference, rtol=1e-5, atol=1e-5)
        assert torch.equal(upstream, before), "the upstream gradient was written to"
        assert torch.equal(result, kept), "the saved output was written to"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_sum_whose_upstream_is_one_value(name: str, dtype: torch.dtype) -> None:
    x = make_logits(3, 7, dtype=dtype).requires_grad_()
    weight = make_logits(3, 7, dtype=dtype, seed=2)
    (CHECKED[name].ours(x, -1) * weight).sum().backward()
    (alone,) = torch.autograd.grad(CHECKED[name].ours(x, 0).sum(), x)
    _, reference = exact(name, x, weight, -1)
    _, of_sum = exact(name, x, torch.ones(3, 7), 0)
    unit = torch.finfo(dtype).eps
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), reference, rtol=4 * unit, atol=16 * unit)
    torch.testing.assert_close(alone.double(), of_sum, rtol=4 * unit, atol=8 * unit)


@pytest.fixture
def backward(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return stand_in_for(monkeypatch, "softmax_backward", lambda kernel, cores, keywords: kernel[cores](**keywords))


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return stand_in_for(monkeypatch, "softmax_forward", lambda kernel, cores, keywords: kernel[cores](**keywords))


@pytest.mark.parametrize("dim", [0, 1, 3])
@pytest.mark.parametrize("layout", DENSE)
def test_dense_tensors_are_not_copied(layout: str, dim: int, forward: StandIn, backward: StandIn) -> None:
    x = DENSE[layout](make_logits(*SHAPE)).detach().requires_grad_()
    result = nkilib.torch.softmax(x, dim)
    upstream = DENSE[layout](make_logits(*SHAPE, seed=1))
    (gradient,) = torch.autograd.grad(result, x, upstream)
    ((_, inputs, y),), ((_, taken, dx),) = forward.launches, backward.launches
    assert inputs["x_hbm"].data_ptr() == x.data_ptr()
    assert y.data_ptr() == result.data_ptr() == taken["output_hbm"].data_ptr()
    assert taken["grad_hbm"].data_ptr() == upstream.data_ptr() and not taken["inplace"]
    assert dx.data_ptr() == gradient.data_ptr() and gradient.stride() == x.stride()


@pytest.mark.parametrize("layout", ["channels last", *OTHER])
def test_what_is_copied_is_overwritten(layout: str, backward: StandIn) -> None:
    """A copy that nobody else has holds the gradient, so that backward takes no further memory."""
    x = make_logits(*SHAPE).requires_grad_()
    upstream = LAYOUTS[layout](make_logits(*SHAPE, seed=1))
    torch.autograd.grad(nkilib.torch.softmax(x, 1), x, upstream)
    ((_, taken, dx),) = backward.launches
    assert taken["inplace"] is not upstream.is_contiguous()
    assert (dx.data_ptr() == taken["grad_hbm"].data_ptr()) is taken["inplace"]
    assert (taken["grad_hbm"].data_ptr() == upstream.data_ptr()) is not taken["inplace"]


def test_a_copy_of_another_type_than_the_gradient_is_not_overwritten(backward: StandIn) -> None:
    x = make_logits(3, 4, dtype=torch.bfloat16).requires_grad_()
    (gradient,) = torch.autograd.grad(nkilib.torch.softmax(x, 1, dtype=torch.float32).sum(), x)
    ((_, taken, _),) = backward.launches
    assert gradient.dtype == torch.bfloat16 and not taken["inplace"]


def test_more_dimensions_than_kernels_take_are_seen_as_three(forward: StandIn) -> None:
    x = make_logits(1, 2, 1, 2, 3, 1, 2, 1, 2)
    nkilib.torch.softmax(x, 4)
    nkilib.torch.softmax(x.transpose(0, 4), 0)
    assert [tuple(results["x_hbm"].shape) for _, results, _ in forward.launches] == [(4, 3, 4)] * 2
    assert all(results["x_hbm"].data_ptr() == x.data_ptr() for _, results, _ in forward.launches)


def test_only_the_output_is_kept() -> None:
    saved: list[Any] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    x = make_logits(3, 4).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = nkilib.torch.log_softmax(x, 0)
    assert [tensor.data_ptr() for tensor in saved] == [result.data_ptr()]


def test_a_result_that_is_changed_in_place_has_no_backward() -> None:
    x = make_logits(3, 4).requires_grad_()
    result = nkilib.torch.softmax(x, 0)
    result.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shape", "partitions"), [((2, 3, 5000), 16), ((140, 2050), None)])
def test_few_rows_lie_on_more_partitions(name: str, shape: tuple[int, ...], partitions: int | None) -> None:
    """Forward and backward have the bits of kernels with that many partitions for each row, and not without."""
    x = make_logits(*shape).requires_grad_()
    dy = make_logits(*shape, seed=1)
    y = CHECKED[name].ours(x, -1)
    y.backward(dy)
    forward, backward = getattr(kernels, f"{name}_forward")[2], getattr(kernels, f"{name}_backward")[2]
    rows, grads, results = (tensor.detach().reshape(-1, shape[-1]) for tensor in (x, dy, y))
    assert x.grad is not None
    gradients = x.grad.reshape(rows.shape)
    assert torch.equal(results, forward(rows, partitions_per_row=partitions))
    assert torch.equal(gradients, backward(grads, results, partitions_per_row=partitions))
    if partitions is not None:
        assert not torch.equal(results, forward(rows)) and not torch.equal(gradients, backward(grads, results))
