# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""More positions than the kernels keep at a time, at the size from which on they split them."""

from __future__ import annotations

import pytest
import torch

from nkilib.torch import linear_cross_entropy

POSITIONS, FEATURES, CLASSES = 66_000, 16, 20


@pytest.mark.sweep
@pytest.mark.parametrize("memory_limit", [None, 2**31], ids=["two launches", "one launch"])
def test_loss_and_gradients(memory_limit: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((POSITIONS, FEATURES), (CLASSES, FEATURES), (CLASSES,))
    tensors = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    target = torch.randint(0, CLASSES, (POSITIONS,), generator=generator)
    input, weight, bias = tensors
    result = linear_cross_entropy(input, weight, target, linear_bias=bias, memory_limit=memory_limit)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = torch.nn.functional.cross_entropy(torch.nn.functional.linear(*exact[:2], exact[2]), target)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=0.0)
    wanted = torch.autograd.grad(expected, exact)
    for gradient, reference in zip(torch.autograd.grad(result, tensors), wanted, strict=True):
        # float32 sums of products of float32, which err by some roundoffs of 6e-8 in norm.
        assert (gradient.double() - reference).norm() <= 1e-6 * reference.norm()
