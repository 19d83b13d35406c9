# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses with class indices, and what holds for those of margins alike."""

from __future__ import annotations

import pytest

from tests.torch.functions.losses import MULTI_MARGIN, MULTILABEL_MARGIN, Loss


@pytest.mark.parametrize("loss", [MULTI_MARGIN, MULTILABEL_MARGIN], ids=lambda loss: loss.name)
def test_no_rows(loss: Loss) -> None:
    """A mean is NaN and a sum 0; PyTorch's are not initialized."""
    empty, target = loss.inputs(0, 5)
    result = [loss.ours(empty, target, reduction=reduction) for reduction in ("none", "sum", "mean")]
    assert result[0].shape == (0,) and result[1].item() == 0.0 and result[2].isnan()
    result[1].backward()
    assert empty.grad is not None and empty.grad.shape == (0, 5)
