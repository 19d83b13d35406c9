# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Lazy logits of an output layer whose classes are sharded by PyTorch's ``ColwiseParallel``, on two processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.torch.fresh import run_module
from tests.torch.lazy_logits.tensor_parallel_run import LOSSES, OUTPUTS, PARALLEL, PROCESSES
from tests.torch.telling import UNIT

Found = list[dict[Any, Any]]
FUSED = {
    "cross_entropy of the scores of a shift": {"cross_entropy": 1},
    "scores of tokens": {"gather": 1, "logsumexp": 1},
    "a loss and an accuracy": {"cross_entropy": 1, "argmax": 1},
    "cross_entropy of nkilib": {"nkilib_cross_entropy": 1},
    "a function without a kernel": {},
}


@pytest.fixture(scope="module")
def found_by_ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("tensor_parallel")
    run_module("tests.torch.lazy_logits.tensor_parallel_run", str(directory), OMP_NUM_THREADS="1")
    return [torch.load(directory / f"{rank}.pt") for rank in range(PROCESSES)]


def _check_is_stock(found: dict[str, Any]) -> None:
    stock, ours = found["stock"], found["ours"]
    assert ours["kind"] == stock["kind"]
    assert abs(ours["loss"].item() - stock["loss"].item()) <= 64 * UNIT * abs(stock["loss"].item())
    assert ours["gradients"].keys() == stock["gradients"].keys()
    for parameter, exact in stock["gradients"].items():
        assert exact.norm() > 0
        assert (ours["gradients"][parameter] - exact).norm() <= 64 * UNIT * exact.norm(), parameter


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_losses_and_gradients_are_those_of_the_stock_model(output: str, loss: str, found_by_ranks: Found) -> None:
    for rank in found_by_ranks:
        found = rank[output, loss]
        _check_is_stock(found)
        assert found["fused"] == FUSED[loss]
        assert found["computed"] == ([] if FUSED[loss] else ["square"])


def test_the_loss_in_the_context_of_pytorch_for_sharded_logits(found_by_ranks: Found) -> None:
    for rank in found_by_ranks:
        _check_is_stock(rank[PARALLEL])
        assert rank[PARALLEL]["fused"] == {"cross_entropy": 1} and not rank[PARALLEL]["computed"]


def test_the_classes_of_one_rank_are_computed(found_by_ranks: Found) -> None:
    for rank in found_by_ranks:
        found = rank["this rank's classes"]
        _check_is_stock(found)
        assert found["computed"] == ["to_local"] and not found["fused"]


def test_other_dtensors_compute_logits_and_the_warning_names_the_function_for_them(found_by_ranks: Found) -> None:
    for rank in found_by_ranks:
        assert "is a DTensor; nkilib.torch.vocab_parallel_linear_cross_entropy takes hidden states" in rank["refused"]
