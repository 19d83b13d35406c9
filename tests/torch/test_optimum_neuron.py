# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The page docs/how_to/optimum_neuron.md about Optimum Neuron 0.4.5, with a stand-in for its interface.

The wheel cannot be imported without ``neuronx_distributed``, which no CPU can have. ``optimum_stand_in`` has models,
loss and trainer of our own writing that take and return what those of the release do.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nkilib.torch import LogitsComputedWarning, fuse_linear_loss, fused_calls
from tests.torch.fresh import run_module
from tests.torch.optimum_stand_in import PROCESSES, CausalLM, batch, compute_loss, gradients, parallel, whole
from tests.torch.telling import UNIT


def _stock() -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the model with all classes on one rank."""
    model = whole()
    loss = compute_loss(model, batch())
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), gradients(model)


def _check(loss: Tensor, found: dict[str, Tensor], expected: tuple[Tensor, dict[str, Tensor]]) -> None:
    assert abs(loss.item() - expected[0].item()) <= 64 * UNIT * abs(expected[0].item())
    assert found.keys() == expected[1].keys()
    for name, exact in expected[1].items():
        assert exact.norm() > 0 and (found[name] - exact).norm() <= 64 * UNIT * exact.norm(), name


@pytest.mark.parametrize("logits_scaling", [1.0, 6.0])
def test_a_whole_linear_layer_is_fused(logits_scaling: float) -> None:
    """Granite has one, and divides its logits by a number."""
    stock = CausalLM(whole().lm_head, whole().classes, logits_scaling).train()
    ours = copy.deepcopy(stock)
    fuse_linear_loss(ours, on_compute="raise")
    losses = [compute_loss(model, batch()) for model in (stock, ours)]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    _check(losses[1].detach(), gradients(ours), (losses[0].detach(), gradients(stock)))
    assert fused_calls(ours).fused == {"cross_entropy": 1}


def test_a_column_parallel_layer_computes_logits_and_one_rank_may_exchange_it() -> None:
    model = parallel()
    with pytest.warns(LogitsComputedWarning, match="must be a torch.nn.Linear, .* got .*ColumnParallelLinear"):
        undo = fuse_linear_loss(model)
    loss = compute_loss(model, batch())
    loss.backward()  # type: ignore[no-untyped-call]
    _check(loss.detach(), gradients(model), _stock())
    undo()
    model.zero_grad()
    weight = model.lm_head.get_parameter("weight")
    head = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
    head.weight = weight
    model.lm_head = head
    fuse_linear_loss(model, on_compute="raise")
    loss = compute_loss(model, batch())
    loss.backward()  # type: ignore[no-untyped-call]
    _check(loss.detach(), gradients(model), _stock())
    assert weight.grad is not None and fused_calls(model).fused == {"cross_entropy": 1}


def test_losses_of_two_ranks_from_logits_and_from_hidden_states(tmp_path: Path) -> None:
    run_module("tests.torch.optimum_stand_in", str(tmp_path), OMP_NUM_THREADS="1")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(PROCESSES)]
    expected = _stock()
    for name in ("logits", "hidden states"):
        of_layer = torch.cat([rank[name][1]["lm_head.weight"] for rank in found])
        for rank in found:
            loss, own = rank[name]
            _check(loss, {**own, "lm_head.weight": of_layer}, expected)
