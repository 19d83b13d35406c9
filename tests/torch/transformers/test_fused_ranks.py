# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``fuse_linear_loss`` under DistributedDataParallel and FSDP2, on two processes, and under FSDP2 on four."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.fresh import run_module
from tests.torch.transformers.fsdp_cases import CASES
from tests.torch.transformers.models import GRADIENT_BUDGET, LOSS_BUDGET, largest_share

Found = list[dict[str, Any]]
PROCESSES = 2
FLOAT32 = [name for name, case in CASES.items() if not case.policy]
MIXED = [name for name in CASES if name not in FLOAT32]
IN_ROOT = "mixed, in the root"


def _found_by(processes: int, directory: Path) -> Found:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    arguments = (str(directory), str(processes))
    run_module("tests.torch.transformers.ranks_run", *arguments, **one_thread)
    return [torch.load(directory / f"{rank}.pt") for rank in range(processes)]


@pytest.fixture(scope="module", params=[PROCESSES, pytest.param(4, marks=pytest.mark.sweep)])
def found_by_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return _found_by(request.param, tmp_path_factory.mktemp("fused_ranks"))


def test_gradients_of_all_ranks_are_averaged_as_of_the_stock_model(found_by_ranks: Found) -> None:
    if len(found_by_ranks) > PROCESSES:
        return
    results = [rank["DistributedDataParallel"] for rank in found_by_ranks]
    losses = []
    for (expected, _, exact), (loss, logits, gradients) in results:
        assert logits == "LazyLogits"
        assert abs(loss.item() - expected.item()) <= LOSS_BUDGET
        assert largest_share(gradients, exact) <= GRADIENT_BUDGET[torch.float32]
        losses.append(loss)
    assert losses[0] != losses[1], "the ranks have tokens of their own"
    first, second = (ours[2] for _, ours in results)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", FLOAT32)
def test_losses_and_gradients_under_fsdp_are_those_of_the_unsharded_stock_model(
    name: str, found_by_ranks: Found
) -> None:
    for item in found_by_ranks:
        stock, ours = item[name]["stock"], item[name]["ours"]
        for actual, expected in zip(ours["losses"], stock["losses"], strict=True):
            assert actual.dtype == torch.float32 and abs(actual.item() - expected.item()) <= LOSS_BUDGET
        assert largest_share(ours["gradients"], stock["gradients"]) <= GRADIENT_BUDGET[torch.float32]
        assert largest_share(ours["gradients"], {at: -it for at, it in stock["gradients"].items()}) > 1.0
    assert len({rank[name]["ours"]["losses"][0] for rank in found_by_ranks}) > 1, "the ranks have tokens of their own"


@pytest.mark.parametrize("name", MIXED)
def test_gradients_under_mixed_precision_are_as_exact_as_those_of_the_sharded_stock_model(
    name: str, found_by_ranks: Found
) -> None:
    for rank in found_by_ranks:
        stock, ours, exact = (rank[name][kind]["gradients"] for kind in ("stock", "ours", "exact"))
        assert all(gradient.dtype == torch.float32 for gradient in ours.values())
        assert largest_share(ours, stock) <= 2.0 * largest_share(stock, exact)


@pytest.mark.parametrize("name", [name for name in MIXED if name != IN_ROOT])
def test_losses_and_gradients_do_not_depend_on_the_group_or_the_output_dtype_of_the_head(
    name: str, found_by_ranks: Found
) -> None:
    """A loss of a head whose policy casts outputs to bfloat16 would be rounded to 8 bits, and its gradients differ."""
    for rank in found_by_ranks:
        rooted, ours = rank[IN_ROOT]["ours"], rank[name]["ours"]
        for actual, expected in zip(ours["losses"], rooted["losses"], strict=True):
            assert actual.dtype == torch.float32 and torch.equal(actual, expected)
            assert actual != actual.bfloat16().float(), "it would show"
        assert all(torch.equal(ours["gradients"][at], rooted["gradients"][at]) for at in rooted["gradients"])


@pytest.mark.parametrize("name", CASES)
def test_autograd_keeps_the_weight_that_is_freed_after_the_forward(name: str, found_by_ranks: Found) -> None:
    case = CASES[name]
    for rank in found_by_ranks:
        (size,) = rank[name]["saved"]
        if case.memory_limit is None:  # otherwise the forward leaves the gradient of the weight
            assert (size == 0) == case.reshard


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.micro_batches == 1])
def test_an_evaluation_between_two_steps_has_the_loss_of_training(name: str, found_by_ranks: Found) -> None:
    """Without a graph there are logits, which the layer rounds to its dtype."""
    rounding = 8 * 2.0**-9 if CASES[name].policy else 0.0
    for rank in found_by_ranks:
        (loss,) = rank[name]["ours"]["losses"]
        assert abs(loss.item() - rank[name]["evaluated"].item()) <= LOSS_BUDGET + rounding
