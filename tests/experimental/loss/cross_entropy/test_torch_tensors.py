# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""CPU torch tensors in, torch tensors out, with the bits that numpy arrays give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.torch_types import named_type

from .loss_checks import as_nl, backward, forward, same_bits
from .loss_inputs import BF16, DTYPE_PAIRS, FP32, normal_batch, pair_name

if TYPE_CHECKING:
    import torch

OPTIONS: dict[str, Any] = {"cores": 2, "positions_per_batch": 4, "chunk_size": 30}


def _as_torch(values: Any) -> torch.Tensor:
    """Return a torch tensor that is bitwise identical."""
    import torch

    if values.dtype == BF16:
        return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(values.copy())


def _as_numpy(tensor: torch.Tensor) -> Any:
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BF16)
    return tensor.numpy()


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize(("logits_dtype", "dtype"), DTYPE_PAIRS, ids=pair_name)
def test_torch_tensors_come_back_as_torch_tensors(logits_dtype: Any, dtype: Any, inplace: bool) -> None:
    import torch

    logits, targets = normal_batch(11, 100)
    logits = logits.astype(logits_dtype)
    expected_loss, expected_lse = forward(logits, targets, dtype=as_nl(dtype), lse_dtype=as_nl(FP32), **OPTIONS)
    inputs, given_targets = _as_torch(logits), _as_torch(targets)
    loss, lse = forward(inputs, given_targets, dtype=as_nl(dtype), lse_dtype=as_nl(FP32), **OPTIONS)
    assert isinstance(loss, torch.Tensor) and isinstance(lse, torch.Tensor)
    assert same_bits(_as_numpy(loss), expected_loss) and same_bits(_as_numpy(lse), expected_lse)

    expected = backward(logits.copy(), targets, expected_lse, dtype=as_nl(dtype), inplace=inplace, **OPTIONS)
    gradient = backward(inputs, given_targets, lse, dtype=as_nl(dtype), inplace=inplace, **OPTIONS)
    assert isinstance(gradient, torch.Tensor)
    assert same_bits(_as_numpy(gradient), expected)
    assert (gradient is inputs) == inplace
    assert inplace or same_bits(_as_numpy(inputs), logits)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_float32_results_equal_autograd(reduction: str) -> None:
    import torch
    import torch.nn.functional as F

    logits, targets = (_as_torch(values) for values in normal_batch(16, 1000))
    x = logits.clone().requires_grad_()
    expected_loss = F.cross_entropy(x, targets.long(), reduction="none")
    F.cross_entropy(x, targets.long(), reduction=reduction).backward()

    options = {"cores": 2, "chunk_size": 300, "dtype": as_nl(FP32)}
    loss, lse = forward(logits, targets, **options)
    gradient = backward(logits, targets, lse, reduction=reduction, **options)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(lse, torch.logsumexp(x, 1).detach(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(gradient, x.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="arrays that come by DLPack may be read-only")
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_memory_that_was_taken_can_still_be_resized(dtype: str) -> None:
    """FSDP frees the weights that it has gathered, and gathers them again, by the size of their storage."""
    import torch

    logits = torch.randn(11, 100).to(named_type(dtype))
    forward(logits, torch.zeros(11, dtype=torch.int32), dtype=as_nl(FP32), lse_dtype=as_nl(FP32), **OPTIONS)
    assert logits.untyped_storage().resizable()
