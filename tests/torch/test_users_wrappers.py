# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Wrappers as users write them, on the CPU: the second form with ``torch.library.custom_op`` in the place of nki_op."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.torch.inputs import CLASSES, DTYPES, POSITIONS, exact, make_logits, make_targets
from tests.torch.telling import assert_gradient, assert_loss
from tests.torch.users_wrappers import function_over_kernels, operators_over_kernels

WRAPPERS = {
    "function": function_over_kernels(lambda kernel: kernel),
    "operators": operators_over_kernels(torch.library.custom_op, lambda kernel: kernel),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss_function", WRAPPERS.values(), ids=WRAPPERS)
def test_loss_and_gradient_are_pytorchs(loss_function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    logits = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    target = make_targets(POSITIONS).to(torch.int32)
    loss = loss_function(logits, target)
    loss.backward()
    expected, gradient = exact(logits, target)
    assert_loss(loss.detach(), expected, 20.0)
    assert logits.grad is not None
    assert_gradient(logits.grad, gradient, 1.0)
