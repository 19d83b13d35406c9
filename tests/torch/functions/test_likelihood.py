# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``kl_div`` and ``nll_loss`` and their modules beside PyTorch: edges, weights, what is refused, and in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import KLDivLoss, NLLLoss, kl_div, nll_loss
from nkilib.torch.dispatch.layout import stored_order
from tests.torch.functions.losses import KL_DIV, NLL, Refused
from tests.torch.opinfo import Checked, call_of, module_errors
from tests.torch.reduced import SUMS

pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")


def kl_div_inputs(*shape: int, log_target: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probabilities and a target."""
    generator = torch.Generator().manual_seed(sum(shape))
    x, t = (torch.randn(shape, generator=generator).log_softmax(-1) for _ in range(2))
    return x.requires_grad_(), (t if log_target else t.exp()).requires_grad_()


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_sizes_shapes_and_layouts(reduction: str, log_target: bool) -> None:
    arguments = {"reduction": reduction, "log_target": log_target}
    x, t = kl_div_inputs(3, 200, 170, log_target=log_target)
    calls = [call_of(x, t, **arguments)]
    x, t = kl_div_inputs(4, 5, 6, log_target=log_target)
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


REFUSED_BY_KL_DIV: Refused = {
    "reduction": (lambda f: f(*kl_div_inputs(3), reduction="avg"), "'avg' is not a valid value for reduction"),
    "integers": (lambda f: f(torch.ones(3, dtype=torch.int64), kl_div_inputs(3)[1]), "Integral inputs not supported"),
    "complex": (lambda f: f(kl_div_inputs(3)[0], torch.ones(3, dtype=torch.complex64)), "Complex inputs not supported"),
    "shapes": (lambda f: f(kl_div_inputs(3)[0], kl_div_inputs(4)[1]), "hape"),
    "no tensor": (lambda f: f([1.0], kl_div_inputs(1)[1]), "must be Tensor"),
    "log_target": (lambda f: f(*kl_div_inputs(3), log_target="no"), "'log_target' must be bool"),
}


@pytest.mark.parametrize("name", REFUSED_BY_KL_DIV)
def test_kl_div_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    KL_DIV.check_refused(REFUSED_BY_KL_DIV[name])


def test_only_gradients_that_are_asked_for() -> None:
    x, t = kl_div_inputs(2, 3)
    kl_div(x.detach(), t, reduction="sum").backward()
    assert x.grad is None and t.grad is not None
    kl_div(x, t.detach(), reduction="sum").backward()
    torch.testing.assert_close(x.grad, -t.detach())


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_has_the_mean_over_a_batch() -> None:
    x, t = kl_div_inputs(3, 4, 5)

    def loss(x: Tensor, t: Tensor) -> Tensor:
        return kl_div(x.permute(2, 0, 1), t.permute(2, 0, 1), reduction="batchmean")

    result, expected = torch.compile(loss, fullgraph=True, backend="aot_eager")(x, t), loss(x, t)
    assert torch.equal(result, expected)
    for gradient, other in zip(*(torch.autograd.grad(tensor, (x, t)) for tensor in (result, expected)), strict=True):
        assert torch.equal(gradient, other)


def test_the_module_has_the_mean_over_a_batch() -> None:
    x, t = (tensor.detach() for tensor in kl_div_inputs(2, 3))
    result, expected = (module(reduction="batchmean")(x, t) for module in (KLDivLoss, nn.KLDivLoss))
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kl_div_in_place_the_gradient_has_the_memory_of_the_input(dtype: torch.dtype, reduction: str) -> None:
    x, t = (tensor.detach().to(dtype) for tensor in kl_div_inputs(6, 4, 5))
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


def test_kl_div_in_place_of_what_the_kernel_would_copy_is_refused() -> None:
    x, t = (tensor.detach() for tensor in kl_div_inputs(6, 5))
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


def test_a_weight_may_have_another_type() -> None:
    """PyTorch refuses it, in the one error that it lists for the module; here weights are float32 whatever comes."""
    ((sample, error),) = module_errors("NLLLoss")
    with pytest.raises(error, match="expected scalar type"):
        nn.NLLLoss(**sample.constructor[1])(*sample.args)
    assert NLLLoss(**sample.constructor[1])(*sample.args).isnan()
    x, target = nll_inputs(5)
    weight = torch.linspace(0.1, 1.0, 37)
    result = nll_loss(x.detach().bfloat16(), target, weight)
    torch.testing.assert_close(result, F.nll_loss(x.detach().bfloat16().float(), target, weight))


def nll_inputs(*shape: int, classes: int = 37) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N, classes, ...] and targets."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape[0], classes, *shape[1:], generator=generator).log_softmax(1)
    return x.requires_grad_(), torch.randint(classes, shape, generator=generator)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(300,), (3, 150), (2, 3, 4, 2)])
def test_sizes_across_batches_and_strides(shape: tuple[int, ...], reduction: str) -> None:
    x, target = nll_inputs(*shape)
    target.view(-1)[::5] = 3
    weight = torch.linspace(0.1, 1.0, 37)
    arguments = {"weight": weight, "ignore_index": 3, "reduction": reduction}
    calls = [call_of(x, target, **arguments), call_of(x, target.to(torch.int16), **{**arguments, "weight": None})]
    last = x.detach().movedim(1, -1).contiguous().movedim(-1, 1).requires_grad_()
    calls.append(call_of(last, target, **arguments))
    check = Checked(nll_loss, lambda x, t, **k: F.nll_loss(x, t.long(), **k), values=SUMS)
    check.check(calls)


def test_nothing_counts_and_nothing_is_there() -> None:
    x, target = nll_inputs(4)
    ignored = torch.full_like(target, -100)
    loss = nll_loss(x, ignored)
    loss.backward()
    assert loss.isnan() and x.grad is not None and not x.grad.any()
    empty, none = torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    for reduction in ("none", "sum", "mean"):
        result, expected = nll_loss(empty, none, reduction=reduction), F.nll_loss(empty, none, reduction=reduction)
        torch.testing.assert_close(result, expected, equal_nan=True)


REFUSED_BY_NLL: Refused = {
    "reduction": (lambda f: f(*nll_inputs(3), reduction="avg"), "'avg' is not a valid value for reduction"),
    "no dimension": (lambda f: f(torch.tensor(1.0), torch.tensor(0)), "1 or more dimensions"),
    "batch": (lambda f: f(nll_inputs(3)[0], nll_inputs(4)[1]), r"batch_size \(3\) to match target batch_size \(4\)"),
    "target of floats": (lambda f: f(nll_inputs(3)[0], torch.ones(3)), "expected target dtype to be an integer"),
    "out of range": (lambda f: f(nll_inputs(3)[0], torch.tensor([0, 37, 1])), "Target 37 is out of bounds"),
    "weight": (lambda f: f(*nll_inputs(3), weight=torch.ones(3)), "weight tensor should be defined"),
    "integers": (lambda f: f(torch.ones(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)), "int64"),
    "no tensor": (lambda f: f([1.0], torch.zeros(1)), "must be Tensor"),
    "ignore_index": (lambda f: f(*nll_inputs(3), ignore_index=1.5), "ignore_index"),
}


@pytest.mark.parametrize("name", REFUSED_BY_NLL)
def test_nll_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    NLL.check_refused(REFUSED_BY_NLL[name])


def test_weight_that_requires_grad() -> None:
    x, target = nll_inputs(3)
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
        nll_loss(x, target, torch.ones(37, requires_grad=True))


def test_the_module_with_positional_arguments() -> None:
    x, target = nll_inputs(5)
    module, theirs = NLLLoss(torch.ones(37), 3, "sum"), nn.NLLLoss(torch.ones(37), ignore_index=3, reduction="sum")
    torch.testing.assert_close(module(x, target), theirs(x, target))


@pytest.mark.parametrize("shape", [(5,), (6, 5), (3, 5, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nll_in_place_the_gradient_has_the_memory_of_the_input(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    leaf = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    target = torch.randint(
        5, [item for at, item in enumerate(shape) if at != min(1, len(shape) - 1)], generator=generator
    )
    weight = torch.linspace(0.5, 1.5, 5)
    (expected,) = torch.autograd.grad(nll_loss(leaf, target, weight), leaf)
    computed = leaf * 1.0
    (result,) = torch.autograd.grad(NLLLoss(weight, inplace=True)(computed, target), computed)
    assert torch.equal(result, expected) and result.data_ptr() == computed.data_ptr()


def test_nll_in_place_of_what_the_kernel_would_copy_is_refused() -> None:
    computed, target = torch.randn(6, 5, requires_grad=True) * 1.0, torch.arange(6) % 5
    with pytest.raises(ValueError, match="nll_loss: inplace=True needs input dense"):
        nll_loss(computed[:5].T, target[:5], inplace=True)
    loss = nll_loss(computed, target, inplace=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
