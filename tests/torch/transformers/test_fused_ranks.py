"""``fuse_linear_loss`` under DistributedDataParallel, on two processes."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.torch.fresh import run_module
from tests.torch.transformers.models import GRADIENT_BUDGET, LOSS_BUDGET, largest_share
from tests.torch.transformers.ranks_run import PROCESSES


def test_gradients_of_all_ranks_are_averaged_as_of_the_stock_model(tmp_path: Path) -> None:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    run_module("tests.torch.transformers.ranks_run", str(tmp_path), timeout=120.0, **one_thread)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(PROCESSES)]
    losses = []
    for (expected, _, exact), (loss, logits, gradients) in found:
        assert logits == "NoLogits"
        assert abs(loss.item() - expected.item()) <= LOSS_BUDGET
        assert largest_share(gradients, exact) <= GRADIENT_BUDGET[torch.float32]
        losses.append(loss)
    assert losses[0] != losses[1], "the ranks have tokens of their own"
    first, second = (ours[2] for _, ours in found)
    assert all(torch.equal(first[name], second[name]) for name in first)
