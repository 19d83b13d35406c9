# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``grad_weight_sum``: the gradient of the weight is added in float32 to a tensor that micro-batches share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from nkilib.torch import LinearCrossEntropyLoss, linear_cross_entropy
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS, make_problem
from tests.torch.telling import assert_telling

PARTS = 2


def micro_batches(dtype: torch.dtype = torch.bfloat16) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Inputs, the weight and targets."""
    problem = make_problem(PARTS, POSITIONS, dtype=dtype, ignored=-100)
    return list(problem.input), problem.linear_weight.requires_grad_(), list(problem.target)


def exact_sum(scale: float) -> Tensor:
    """Return the weight gradient of ``scale`` times the summed losses of all micro-batches, in float64."""
    inputs, weight, targets = micro_batches()
    w = weight.detach().double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for x, target in zip(inputs, targets, strict=True):
        logits = x.double() @ w.t()
        total = total + torch.nn.functional.cross_entropy(logits, target, reduction="sum")
    gradient: Tensor = torch.autograd.grad(scale * total, w)[0]
    return gradient


@pytest.mark.parametrize("memory_limit", [None, 2**30])
@pytest.mark.parametrize("use_reentrant", [None, False, True])
def test_micro_batches_add_up_unrounded(use_reentrant: bool | None, memory_limit: int | None) -> None:
    inputs, weight, targets = micro_batches()
    known = torch.full(weight.shape, 0.5)
    losses = []
    for x, target in zip(inputs, targets, strict=True):

        def loss_of(hidden: Tensor, target: Tensor = target) -> Tensor:
            return linear_cross_entropy(
                hidden, weight, target, reduction="sum", grad_weight_sum=known, memory_limit=memory_limit
            )

        hidden = x.clone().requires_grad_()
        losses.append(
            loss_of(hidden) if use_reentrant is None else checkpoint(loss_of, hidden, use_reentrant=use_reentrant)
        )
        assert torch.equal(known, torch.full(weight.shape, 0.5)), "the forward adds nothing"
    for loss in losses:  # all forwards before the first backward, as in a pipeline
        (-3.0 * loss).backward()
    assert weight.grad is None
    expected = exact_sum(-3.0)
    # G is rounded to bfloat16, the products and sums are not: far closer than the sum of rounded gradients may be.
    assert_telling(known - 0.5, expected, 0.0, 2.0**-8 * 3.0 * 2.0)


def test_it_equals_the_gradient_that_is_handed_on() -> None:
    inputs, weight, targets = micro_batches(torch.float32)
    known = torch.zeros_like(weight)
    x = inputs[0].clone().requires_grad_()
    linear_cross_entropy(x, weight, targets[0], grad_weight_sum=known).backward()
    expected = torch.autograd.grad(linear_cross_entropy(x, weight, targets[0]), (x, weight))
    assert x.grad is not None and torch.equal(x.grad, expected[0])
    torch.testing.assert_close(known, expected[1])


def test_nothing_is_added_for_a_frozen_weight_or_without_autograd() -> None:
    inputs, weight, targets = micro_batches()
    known = torch.zeros(weight.shape)
    x = inputs[0].clone().requires_grad_()
    linear_cross_entropy(x, weight.detach(), targets[0], grad_weight_sum=known).backward()
    with torch.no_grad():
        linear_cross_entropy(x, weight, targets[0], grad_weight_sum=known)
    assert x.grad is not None and not known.any()


def test_autocast_adds_the_gradient_of_the_cast_weight() -> None:
    inputs, weight, targets = micro_batches(torch.float32)
    x = inputs[0].clone().requires_grad_()
    known, expected = torch.zeros_like(weight), torch.zeros_like(weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear_cross_entropy(x, weight, targets[0], grad_weight_sum=known).backward()
    cast = weight.detach().bfloat16().requires_grad_()
    linear_cross_entropy(x.bfloat16(), cast, targets[0], grad_weight_sum=expected).backward()
    assert known.any() and torch.equal(known, expected)


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_adds_too() -> None:
    inputs, weight, targets = micro_batches()
    sums = []
    for function in (linear_cross_entropy, torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")):
        known = torch.zeros(weight.shape)
        for x, target in zip(inputs, targets, strict=True):
            hidden = x.clone().requires_grad_()
            (2.0 * function(hidden, weight, target, grad_weight_sum=known)).backward()
        sums.append(known)
    assert sums[0].any() and torch.equal(*sums) and weight.grad is None


def test_the_module_takes_it_with_the_call() -> None:
    inputs, _, targets = micro_batches(torch.float32)
    criterion = LinearCrossEntropyLoss(FEATURES, CLASSES)
    known = torch.zeros_like(criterion.linear.weight)
    loss = criterion(inputs[0], targets[0], grad_weight_sum=known)
    assert isinstance(loss, Tensor)
    loss.backward()
    assert known.any() and criterion.linear.weight.grad is None


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "bfloat16": (torch.zeros(CLASSES, FEATURES, dtype=torch.bfloat16), ValueError, "must be float32 of the shape"),
    "shape": (
        torch.zeros(FEATURES, CLASSES),
        ValueError,
        r"linear_weight, \(11, 20\), got torch.float32 of shape \(20,",
    ),
    "strides": (torch.zeros(FEATURES, CLASSES).t(), ValueError, r"must be contiguous .* got strides \(1, 11\)"),
    "device": (torch.zeros(CLASSES, FEATURES, device="meta"), ValueError, "on the device of linear_weight, cpu"),
    "requires grad": (torch.zeros(CLASSES, FEATURES, requires_grad=True), ValueError, "must not require grad"),
    "number": (1.0, TypeError, "argument 'grad_weight_sum' must be Tensor, not float"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_added_to_is_refused(case: str) -> None:
    known, error, message = REFUSED[case]
    problem = make_problem(POSITIONS)
    with pytest.raises(error, match=f"^linear_cross_entropy: .*{message}"):
        linear_cross_entropy(problem.input, problem.linear_weight, problem.target, grad_weight_sum=known)


def test_xla_tensors_have_no_memory_to_add_to() -> None:
    with FakeTensorMode(), torch.device("xla"):
        x, w, known = torch.empty(3, FEATURES), torch.empty(CLASSES, FEATURES), torch.empty(CLASSES, FEATURES)
        with pytest.raises(NotImplementedError, match="grad_weight_sum is not supported for XLA tensors"):
            linear_cross_entropy(x, w, torch.empty(3, dtype=torch.int64), grad_weight_sum=known)
