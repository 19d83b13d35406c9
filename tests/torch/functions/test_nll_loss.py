# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nll_loss`` and ``NLLLoss`` beside PyTorch: more dimensions than two, weights, what is refused, and in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import NLLLoss, nll_loss
from tests.torch.functions.losses import NLL, Refused
from tests.torch.opinfo import Checked, call_of, module_errors
from tests.torch.reduced import SUMS


def test_a_weight_may_have_another_type() -> None:
    """PyTorch refuses it, in the one error that it lists for the module; here weights are float32 whatever comes."""
    ((sample, error),) = module_errors("NLLLoss")
    with pytest.raises(error, match="expected scalar type"):
        nn.NLLLoss(**sample.constructor[1])(*sample.args)
    assert NLLLoss(**sample.constructor[1])(*sample.args).isnan()
    x, target = inputs(5)
    weight = torch.linspace(0.1, 1.0, 37)
    result = nll_loss(x.detach().bfloat16(), target, weight)
    torch.testing.assert_close(result, F.nll_loss(x.detach().bfloat16().float(), target, weight))


def inputs(*shape: int, classes: int = 37) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N, classes, ...] and targets."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape[0], classes, *shape[1:], generator=generator).log_softmax(1)
    return x.requires_grad_(), torch.randint(classes, shape, generator=generator)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(300,), (3, 150), (2, 3, 4, 2)])
def test_sizes_across_batches_and_strides(shape: tuple[int, ...], reduction: str) -> None:
    x, target = inputs(*shape)
    target.view(-1)[::5] = 3
    weight = torch.linspace(0.1, 1.0, 37)
    arguments = {"weight": weight, "ignore_index": 3, "reduction": reduction}
    calls = [call_of(x, target, **arguments), call_of(x, target.to(torch.int16), **{**arguments, "weight": None})]
    last = x.detach().movedim(1, -1).contiguous().movedim(-1, 1).requires_grad_()
    calls.append(call_of(last, target, **arguments))
    check = Checked(nll_loss, lambda x, t, **k: F.nll_loss(x, t.long(), **k), values=SUMS)
    check.check(calls)


def test_nothing_counts_and_nothing_is_there() -> None:
    x, target = inputs(4)
    ignored = torch.full_like(target, -100)
    loss = nll_loss(x, ignored)
    loss.backward()
    assert loss.isnan() and x.grad is not None and not x.grad.any()
    empty, none = torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    for reduction in ("none", "sum", "mean"):
        result, expected = nll_loss(empty, none, reduction=reduction), F.nll_loss(empty, none, reduction=reduction)
        torch.testing.assert_close(result, expected, equal_nan=True)


REFUSED: Refused = {
    "reduction": (lambda f: f(*inputs(3), reduction="avg"), "'avg' is not a valid value for reduction"),
    "no dimension": (lambda f: f(torch.tensor(1.0), torch.tensor(0)), "1 or more dimensions"),
    "batch": (lambda f: f(inputs(3)[0], inputs(4)[1]), r"batch_size \(3\) to match target batch_size \(4\)"),
    "target of floats": (lambda f: f(inputs(3)[0], torch.ones(3)), "expected target dtype to be an integer"),
    "out of range": (lambda f: f(inputs(3)[0], torch.tensor([0, 37, 1])), "Target 37 is out of bounds"),
    "weight": (lambda f: f(*inputs(3), weight=torch.ones(3)), "weight tensor should be defined"),
    "integers": (lambda f: f(torch.ones(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)), "int64"),
    "no tensor": (lambda f: f([1.0], torch.zeros(1)), "must be Tensor"),
    "ignore_index": (lambda f: f(*inputs(3), ignore_index=1.5), "ignore_index"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    NLL.check_refused(REFUSED[name])


def test_weight_that_requires_grad() -> None:
    x, target = inputs(3)
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
        nll_loss(x, target, torch.ones(37, requires_grad=True))


def test_the_module_with_positional_arguments() -> None:
    x, target = inputs(5)
    module, theirs = NLLLoss(torch.ones(37), 3, "sum"), nn.NLLLoss(torch.ones(37), ignore_index=3, reduction="sum")
    torch.testing.assert_close(module(x, target), theirs(x, target))


@pytest.mark.parametrize("shape", [(5,), (6, 5), (3, 5, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_in_place_the_gradient_has_the_memory_of_the_input(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
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


def test_in_place_of_what_the_kernel_would_copy_is_refused() -> None:
    computed, target = torch.randn(6, 5, requires_grad=True) * 1.0, torch.arange(6) % 5
    with pytest.raises(ValueError, match="nll_loss: inplace=True needs input dense"):
        nll_loss(computed[:5].T, target[:5], inplace=True)
    loss = nll_loss(computed, target, inplace=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
