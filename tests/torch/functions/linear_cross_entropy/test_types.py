# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operands of other types than the products: ``compute_dtype``, in every form of the loss."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import pytest
import torch

from nkilib.torch import LinearCrossEntropyLoss, linear_cross_entropy, vocab_parallel_linear_cross_entropy
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.functions.linear_cross_entropy.one_launch import granted_scratch, takes_one_launch
from nkilib.torch.functions.linear_cross_entropy.operators import Product, WantedGradients
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import (
    CLASSES,
    FEATURES,
    FORMS,
    POSITIONS,
    ROUNDOFF,
    Problem,
    make_problem,
)

FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16
# Of input and weight, and of the products.
TYPES = [
    (FLOAT32, FLOAT32, BFLOAT16),
    (BFLOAT16, FLOAT32, BFLOAT16),
    (BFLOAT16, BFLOAT16, FLOAT32),
    (FLOAT32, FLOAT16, BFLOAT16),
    (FLOAT32, BFLOAT16, FLOAT16),
]


def _problem(input_dtype: torch.dtype, weight_dtype: torch.dtype) -> Problem:
    made = make_problem(POSITIONS, bias=True)
    return Problem(made.input.to(input_dtype), made.linear_weight.to(weight_dtype), made.target, made.linear_bias)


def _cast(problem: Problem, dtype: torch.dtype) -> Problem:
    """Return the problem as a cast of the operands of the product, before the call, makes it."""
    return Problem(problem.input.to(dtype), problem.linear_weight.to(dtype), problem.target, problem.linear_bias)


@pytest.mark.parametrize("memory_limit", FORMS)
@pytest.mark.parametrize(("input_dtype", "weight_dtype", "compute_dtype"), TYPES)
def test_operands_are_rounded_to_the_type_of_the_products(
    input_dtype: torch.dtype, weight_dtype: torch.dtype, compute_dtype: torch.dtype, memory_limit: int | None
) -> None:
    """The loss is that of operands that are cast before; gradients are rounded once, to the types of their tensors."""
    problem = _problem(input_dtype, weight_dtype)
    result = problem.ours(compute_dtype=compute_dtype, memory_limit=memory_limit)
    if FLOAT16 in (input_dtype, weight_dtype):  # of which there is one form
        memory_limit = None
    expected = _cast(problem, compute_dtype).ours(memory_limit=memory_limit)
    assert torch.equal(result.loss, expected.loss)
    for name, gradient in result.gradients.items():
        other, dtype = expected.gradients[name], getattr(problem, name).dtype
        assert gradient is not None and other is not None and gradient.dtype == dtype
        off = 2.0 * (ROUNDOFF[dtype] + ROUNDOFF[compute_dtype])
        torch.testing.assert_close(gradient.float(), other.float(), rtol=off, atol=2.0**-14)
    assert result.gradients["input"].any()  # type: ignore[union-attr]


def test_it_wins_over_autocast() -> None:
    problem = make_problem(POSITIONS)
    with torch.autocast("cpu", dtype=BFLOAT16):
        result = problem.ours(compute_dtype=FLOAT32)
    expected = problem.ours()
    assert torch.equal(result.loss, expected.loss)
    assert all(torch.equal(gradient, expected.gradients[name]) for name, gradient in result.gradients.items())  # type: ignore[arg-type]


def test_shards_and_the_module_have_it() -> None:
    problem = _problem(FLOAT32, FLOAT32)
    expected, leaves = problem.ours(compute_dtype=BFLOAT16), problem.leaves()
    with two_ranks():
        loss = vocab_parallel_linear_cross_entropy(
            target=problem.target, **leaves, shard_sizes=[CLASSES, 0], compute_dtype=BFLOAT16
        )
        loss.backward(problem.upstream)
    torch.testing.assert_close(loss.detach(), expected.loss)
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, expected.gradients[name])
    module = LinearCrossEntropyLoss(FEATURES, CLASSES, compute_dtype=BFLOAT16)
    of_function = linear_cross_entropy(problem.input, module.linear.weight, problem.target, compute_dtype=BFLOAT16)
    assert torch.equal(module(problem.input, problem.target), of_function)


@pytest.mark.parametrize(("input_dtype", "weight_dtype", "compute_dtype"), TYPES)
def test_one_launch_is_not_for_float16_and_counts_what_is_rounded(
    input_dtype: torch.dtype, weight_dtype: torch.dtype, compute_dtype: torch.dtype
) -> None:
    problem = _problem(input_dtype, weight_dtype)
    inputs = LinearArguments(
        problem.input, problem.linear_weight, problem.target, problem.linear_bias, None, "mean", None, None
    )
    wanted, product = WantedGradients(), Product(compute_dtype=str(compute_dtype).removeprefix("torch."))
    has_float16 = FLOAT16 in (input_dtype, weight_dtype, compute_dtype)
    assert takes_one_launch(inputs, wanted, False, product) != has_float16

    def least(product: Product) -> int:
        """Bytes that it is granted with."""
        return bisect_left(
            range(2**16), True, key=lambda limit: granted_scratch(inputs, wanted, limit, product) is not None
        )

    size = compute_dtype.itemsize
    copies = (input_dtype != compute_dtype) * POSITIONS * FEATURES
    assert least(product) - least(Product()) == size * copies


REFUSED: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "a name": (TypeError, {"compute_dtype": "bfloat16"}, "argument 'compute_dtype' must be torch.dtype, not str"),
    "float64": (ValueError, {"compute_dtype": torch.float64}, "must be torch.bfloat16, .* got torch.float64"),
    "nothing to round to": (RuntimeError, {}, "cast one, pass compute_dtype, or use torch.autocast"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_refuses(case: str) -> None:
    error, options, message = REFUSED[case]
    problem = _problem(FLOAT32, BFLOAT16)
    with pytest.raises(error, match=f"^linear_cross_entropy: .*{message}"):
        linear_cross_entropy(problem.input, problem.linear_weight, problem.target, **options)


def test_pytorchs_own_operators_do_not_have_it() -> None:
    x, w, target = torch.randn(4, 8), torch.randn(5, 8), torch.tensor([1, 2, 0, 2])
    with pytest.raises(NotImplementedError, match="compute_dtype is not supported where there are 8 features"):
        linear_cross_entropy(x, w, target, compute_dtype=BFLOAT16)


def test_more_positions_than_one_launch_takes() -> None:
    """Kernels split them; no shape is refused here."""
    x = torch.empty(70_000, FEATURES, device="meta", requires_grad=True)
    target = torch.empty(70_000, dtype=torch.int64, device="meta")
    loss = linear_cross_entropy(x, torch.empty(CLASSES, FEATURES, device="meta"), target, reduction="none")
    assert torch.autograd.grad(loss, x, torch.empty_like(loss))[0].shape == x.shape
