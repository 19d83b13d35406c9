# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``kl_div`` and ``KLDivLoss`` beside PyTorch: the mean over a batch, log-probabilities as targets, and edges."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import KLDivLoss, kl_div
from nkilib.torch.dispatch.layout import stored_order
from tests.torch.functions.losses import KL_DIV, Refused
from tests.torch.opinfo import call_of

pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")


def inputs(*shape: int, log_target: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probabilities and a target."""
    generator = torch.Generator().manual_seed(sum(shape))
    x, t = (torch.randn(shape, generator=generator).log_softmax(-1) for _ in range(2))
    return x.requires_grad_(), (t if log_target else t.exp()).requires_grad_()


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_sizes_shapes_and_layouts(reduction: str, log_target: bool) -> None:
    arguments = {"reduction": reduction, "log_target": log_target}
    x, t = inputs(3, 200, 170, log_target=log_target)
    calls = [call_of(x, t, **arguments)]
    x, t = inputs(4, 5, 6, log_target=log_target)
    calls += [
        call_of(x, t[0], **arguments),  # broadcast
        call_of(x[:, :1], t, **arguments),
        call_of(x.detach().permute(2, 0, 1).requires_grad_(), t.detach().permute(2, 0, 1), **arguments),
        call_of(x.detach()[:, ::2].requires_grad_(), t.detach()[:, ::2], **arguments),  # gaps
        call_of(x.detach().bfloat16().requires_grad_(), t, **arguments),  # mixed types
        call_of(x[0, 0, 0], t[0, 0, 0], **arguments),  # no dimension
    ]
    KL_DIV.checked().check([call.fresh() for call in calls])


def test_edges() -> None:
    inf = float("inf")
    x = torch.tensor([-1.0, -inf, -inf, -1.0, -1e4], requires_grad=True)
    t = torch.tensor([0.0, 0.0, 0.5, 0.999, 1e-30], requires_grad=True)
    KL_DIV.checked().check([call_of(x, t, reduction="none"), call_of(x[2:], t[2:].detach(), reduction="sum")])
    for reduction in ("none", "sum", "mean", "batchmean"):
        empty = torch.zeros(0, 3)
        result, expected = (f(empty, empty, reduction=reduction) for f in (kl_div, F.kl_div))
        torch.testing.assert_close(result, expected, equal_nan=True)


def test_no_copy_of_a_dense_tensor() -> None:
    x = torch.zeros(2, 3, 4)
    assert stored_order(x) == (0, 1, 2)
    assert stored_order(x.permute(2, 0, 1)) == (1, 2, 0)
    assert stored_order(x[:, ::2]) == (0, 1, 2)
    assert stored_order(x.expand(5, 2, 3, 4)) == (0, 1, 2, 3)
    x = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert x.permute(stored_order(x)).is_contiguous()


REFUSED: Refused = {
    "reduction": (lambda f: f(*inputs(3), reduction="avg"), "'avg' is not a valid value for reduction"),
    "integers": (lambda f: f(torch.ones(3, dtype=torch.int64), inputs(3)[1]), "Integral inputs not supported"),
    "complex": (lambda f: f(inputs(3)[0], torch.ones(3, dtype=torch.complex64)), "Complex inputs not supported"),
    "shapes": (lambda f: f(inputs(3)[0], inputs(4)[1]), "hape"),
    "no tensor": (lambda f: f([1.0], inputs(1)[1]), "must be Tensor"),
    "log_target": (lambda f: f(*inputs(3), log_target="no"), "'log_target' must be bool"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    KL_DIV.check_refused(REFUSED[name])


def test_only_gradients_that_are_asked_for() -> None:
    x, t = inputs(2, 3)
    kl_div(x.detach(), t, reduction="sum").backward()
    assert x.grad is None and t.grad is not None
    kl_div(x, t.detach(), reduction="sum").backward()
    torch.testing.assert_close(x.grad, -t.detach())


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_has_the_mean_over_a_batch() -> None:
    x, t = inputs(3, 4, 5)

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return kl_div(x.permute(2, 0, 1), t.permute(2, 0, 1), reduction="batchmean")

    result, expected = torch.compile(loss, fullgraph=True, backend="aot_eager")(x, t), loss(x, t)
    assert torch.equal(result, expected)
    for gradient, other in zip(*(torch.autograd.grad(tensor, (x, t)) for tensor in (result, expected)), strict=True):
        assert torch.equal(gradient, other)


def test_the_module_has_the_mean_over_a_batch() -> None:
    x, t = (tensor.detach() for tensor in inputs(2, 3))
    result, expected = (module(reduction="batchmean")(x, t) for module in (KLDivLoss, nn.KLDivLoss))
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_in_place_the_gradient_has_the_memory_of_the_input(dtype: torch.dtype, reduction: str) -> None:
    x, t = (tensor.detach().to(dtype) for tensor in inputs(6, 4, 5))
    x, t = x.transpose(1, 2).contiguous().transpose(1, 2), t.requires_grad_()
    leaf = x.clone().requires_grad_()
    upstream = torch.full_like(x, 0.5) if reduction == "none" else None
    expected = torch.autograd.grad(kl_div(leaf, t, reduction), (leaf, t), upstream)
    computed = leaf * 1.0
    results = torch.autograd.grad(KLDivLoss(reduction, inplace=True)(computed, t), (computed, t), upstream)
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))
    assert results[0].data_ptr() == computed.data_ptr()
    only = torch.autograd.grad(kl_div(x, t, reduction, inplace=True), t, upstream)
    assert torch.equal(only[0], expected[1])  # and an input that needs no gradient stays as it is
    torch.testing.assert_close(x, leaf.detach(), rtol=0, atol=0)


def test_in_place_of_what_the_kernel_would_copy_is_refused() -> None:
    x, t = (tensor.detach() for tensor in inputs(6, 5))
    computed = x.clone().requires_grad_() * 1.0
    for wrong, target in ((computed[:, ::2], t[:, ::2]), (computed[:1], t)):
        with pytest.raises(ValueError, match="kl_div: inplace=True needs input dense"):
            kl_div(wrong, target, "sum", inplace=True)
    half = x.half().requires_grad_()
    exact = half.detach().double().requires_grad_()
    F.kl_div(exact, t.double(), reduction="none").sum().backward()
    kl_div(half * 1.0, t, "none", inplace=True).sum().backward()  # in another type than the target: nothing is copied
    assert half.grad is not None and exact.grad is not None
    torch.testing.assert_close(half.grad.double(), exact.grad, rtol=2.0**-11, atol=2.0**-24)
    changed = x.clone().requires_grad_().log_softmax(1)
    loss = kl_div(changed, t, "sum", inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # a log-softmax takes its result
        loss.backward()
