# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small calls of ``linear_cross_entropy``, seeded, PyTorch's results for them in float64, and what may differ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import linear_cross_entropy
from tests.torch.inputs import make_logits, make_targets, make_weight
from tests.torch.telling import LOSS_UNITS, UNIT, assert_telling

POSITIONS, FEATURES, CLASSES = 6, 20, 11
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Memory limits: none, and enough for any of these calls, so that gradients come with the loss.
FORMS: list[int | None] = [None, 2**30]
# Of the results and of G, the gradient of the logits, which is rounded once to the type of the input.
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass(frozen=True)
class Results:
    """A loss and the gradients by name, None for what does not require one."""

    loss: Tensor
    gradients: dict[str, Tensor | None]


@dataclass(frozen=True)
class Problem:
    """The arguments of a call; ``arguments`` are the further ones of PyTorch."""

    input: Tensor
    linear_weight: Tensor
    target: Tensor
    linear_bias: Tensor | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def with_arguments(self, **arguments: Any) -> Problem:
        """Return the problem with other or further arguments."""
        return replace(self, arguments={**self.arguments, **arguments})

    @property
    def upstream(self) -> Tensor:
        """The upstream gradient of the loss."""
        if self.arguments.get("reduction") != "none":
            return torch.tensor(-1.5)
        shape = self.target.shape
        return make_logits(*shape, seed=9) if shape else torch.tensor(1.7)

    def leaves(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Return the tensors to differentiate by, by name."""
        tensors = {"input": self.input, "linear_weight": self.linear_weight, "linear_bias": self.linear_bias}
        return {
            name: tensor.detach().to(dtype or tensor.dtype).clone().requires_grad_()
            for name, tensor in tensors.items()
            if tensor is not None
        }

    def exact(self) -> Results:
        """PyTorch's, in float64 of the very values; positions in one dimension."""
        leaves = self.leaves(torch.float64)
        arguments = {name: v.double() if name == "weight" else v for name, v in self.arguments.items()}
        logits = F.linear(leaves["input"], leaves["linear_weight"], leaves.get("linear_bias"))
        is_deep = logits.dim() > 2
        target = self.target.flatten() if is_deep else self.target
        loss = F.cross_entropy(logits.flatten(0, -2) if is_deep else logits, target.long(), **arguments)
        upstream = self.upstream.double()
        loss.backward(upstream.flatten() if is_deep and upstream.dim() else upstream)
        return Results(loss.detach().reshape(upstream.shape), {name: leaf.grad for name, leaf in leaves.items()})

    def ours(self, **further: Any) -> Results:
        """Return the results of ``linear_cross_entropy``, with further arguments of its own."""
        leaves = self.leaves()
        loss = linear_cross_entropy(target=self.target, **leaves, **self.arguments, **further)
        loss.backward(self.upstream)
        return Results(loss.detach(), {name: leaf.grad for name, leaf in leaves.items()})

    def logit_error(self) -> float:
        """dz: what a logit may be off by. 128 products are added in the array, and such sums one after another."""
        x, w = self.input.double().abs(), self.linear_weight.double().abs()
        return (x.shape[-1] / 128 + 128.0) * 2.0**-24 * (1.0 + (x @ w.mT).max().item())

    def check(self, results: Results, expected: Results | None = None) -> None:
        """Loss and gradients are PyTorch's within what rounding costs, and wrong ones would not be."""
        expected = self.exact() if expected is None else expected
        terms = self.target.numel() if self.arguments.get("reduction") == "sum" else 1
        weight = self.arguments.get("weight")
        largest = 1.0 if weight is None else max(1.0, weight.abs().max().item())
        dz = self.logit_error()
        assert results.loss.dtype == torch.float32
        magnitude = max(1.0, expected.loss.abs().max().item())
        assert_telling(results.loss, expected.loss, 0.0, terms * largest * (2.0 * dz + LOSS_UNITS * UNIT * magnitude))
        for name, gradient in expected.gradients.items():
            if gradient is not None:
                actual = results.gradients[name]
                assert actual is not None and actual.dtype == getattr(self, name).dtype, name
                self._check_gradient(actual, gradient, largest * self.upstream.abs().max().item(), dz)

    def _check_gradient(self, actual: Tensor, exact: Tensor, scale: float, dz: float) -> None:
        """A softmax is off by 2 dz of itself, and its sum is 1; G is rounded, and so is what is summed up of it."""
        roundoff = ROUNDOFF[self.input.dtype]
        size = max(1.0, self.input.abs().max().item(), self.linear_weight.abs().max().item())
        terms = self.target.numel() if self.arguments.get("reduction", "mean") != "mean" else 1
        atol = 2.0 * scale * size * terms * (2.0 * dz + roundoff + 16.0 * UNIT)
        assert_telling(actual, exact, 2.0 * ROUNDOFF[actual.dtype], atol)


def make_problem(
    *positions: int,
    dtype: torch.dtype = torch.float32,
    features: int = FEATURES,
    classes: int = CLASSES,
    bias: bool = False,
    weighted: bool = False,
    ignored: int | None = None,
    **arguments: Any,
) -> Problem:
    """Logits of spread 2; with ``ignored`` every third position has that target."""
    if weighted:
        arguments["weight"] = make_weight(classes)
    return Problem(
        make_logits(*positions, features, dtype=dtype, spread=1.0),
        make_logits(classes, features, dtype=dtype, seed=1, spread=2.0 / features**0.5),
        make_targets(*positions, classes=classes, ignored=ignored),
        make_logits(classes, dtype=dtype, seed=2, spread=1.0) if bias else None,
        arguments,
    )
