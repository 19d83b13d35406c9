# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Lazy logits that leave a model under DistributedDataParallel or FSDP2, on two processes, for a loss outside of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.torch.fresh import run_module
from tests.torch.lazy_logits.ranks_run import CASES, PROCESSES
from tests.torch.telling import UNIT

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found_by_ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("lazy_ranks")
    run_module("tests.torch.lazy_logits.ranks_run", str(directory), OMP_NUM_THREADS="1")
    return [torch.load(directory / f"{rank}.pt") for rank in range(PROCESSES)]


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_of_the_stock_model(name: str, found_by_ranks: Found) -> None:
    for rank in found_by_ranks:
        stock, ours = rank[name]["stock"], rank[name]["ours"]
        for (expected, _), (loss, _) in zip(stock["steps"], ours["steps"], strict=True):
            assert abs(loss.item() - expected.item()) <= 64 * UNIT * 40
        for parameter, exact in stock["gradients"].items():
            assert exact.norm() > 0
            assert (ours["gradients"][parameter] - exact).norm() <= 64 * UNIT * exact.norm()
        assert rank[name]["fused"] == {"cross_entropy": 3, "logsumexp": 2}
        (expected, exact_gradients), (loss, gradients) = stock["computed"], ours["computed"]
        assert rank[name]["places"] == ["square"] and abs(loss.item() - expected.item()) <= 64 * UNIT * 40
        for parameter, exact in exact_gradients.items():
            assert (gradients[parameter] - exact).norm() <= 64 * UNIT * exact.norm()
    losses = [rank[name]["ours"]["steps"][0][0] for rank in found_by_ranks]
    assert losses[0] != losses[1], "the ranks have inputs of their own"


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("FSDP2")])
def test_weights_are_gathered_as_often_as_by_the_stock_model(name: str, found_by_ranks: Found) -> None:
    """A call of a head that is sharded alone gathers nothing; the kernel of the loss gathers, and its backward. A
    second function of the logits is a second call.
    """
    for rank in found_by_ranks:
        stock, ours = rank[name]["stock"], rank[name]["ours"]
        assert stock["gathers"] > 0
        if name != "FSDP2, head in a root that reshards":  # whose head is sharded when the loss is computed
            assert ours["gathers"] == stock["gathers"]
        if name == "FSDP2, head alone":
            assert ours["steps"][1][1] == stock["steps"][1][1] + 2
