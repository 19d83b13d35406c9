# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors of every layout: which are read where they lie, what is copied, and that upstream gradients stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import nkilib.torch
from tests.torch.functions.softmax.of_pytorch import CHECKED, NAMES
from tests.torch.inputs import make_logits
from tests.torch.opinfo import DTYPES, call_of
from tests.torch.stand_in import StandIn, stand_in_for

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
