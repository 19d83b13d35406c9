# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Output layer and loss in chunks of tokens, against both in one piece in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing.reductions import StorageWeakRef

from nkilib.torch import cross_entropy
from nkilib.torch.functions.chunks import chunked_loss
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, make_logits, make_targets
from tests.torch.telling import assert_gradient, assert_loss

SHAPE, WIDTH = (2, 7), 6
TOKENS = 14
HIDDEN, TARGET = make_logits(*SHAPE, WIDTH, spread=1.0), make_targets(*SHAPE, ignored=-100)
UPSTREAM = 0.25
# A gradient of hidden is a sum over classes of |weight| < 4, one of the weight a sum over tokens of |hidden| < 4.
SCALE = 4.0 * TOKENS


def sum_of_losses(logits: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(logits, target, reduction="sum", inplace=True)


def new_head(dtype: torch.dtype = torch.float32) -> nn.Linear:
    head = nn.Linear(WIDTH, CLASSES)
    head.load_state_dict({"weight": make_logits(CLASSES, WIDTH, seed=5, spread=1.0), "bias": make_logits(CLASSES)})
    return head.to(dtype)


class Seen(nn.Module):
    """An output layer that knows how many tokens it was given, and that their logits are gone before the next ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.tokens: list[int] = []
        self.logits: list[StorageWeakRef] = []

    def forward(self, hidden: Tensor) -> Tensor:
        self.tokens.append(hidden.shape[0])
        assert all(item.expired() for item in self.logits)
        logits: Tensor = self.layer(hidden)
        self.logits.append(StorageWeakRef(logits.untyped_storage()))
        return logits


@pytest.mark.parametrize("num_chunks", [1, 2, 4, 20])
def test_loss_and_gradients_are_those_of_one_piece(num_chunks: int) -> None:
    head, hidden = Seen(new_head()), HIDDEN.clone().requires_grad_()
    exact_head, exact = new_head().double(), HIDDEN.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact_head(exact).flatten(0, 1), TARGET.flatten(), reduction="sum")
    (UPSTREAM * expected).backward()
    loss = chunked_loss(1.0 * hidden, TARGET, head, sum_of_losses, num_chunks)
    assert head.layer.weight.grad is None, "gradients come with the backward"
    (UPSTREAM * loss).backward()
    assert max(head.tokens) == max(1, -(-TOKENS // num_chunks)) and sum(head.tokens) == TOKENS
    assert_loss(loss.detach(), expected.detach(), 20.0 * TOKENS)
    pairs = [(hidden, exact), *zip(head.parameters(), exact_head.parameters(), strict=True)]
    for actual, of_whole in pairs:
        assert actual.grad is not None and of_whole.grad is not None
        rows = actual.shape[-1]
        assert_gradient(actual.grad.view(-1, rows), of_whole.grad.view(-1, rows), UPSTREAM * SCALE)


def test_the_gradient_of_weights_is_summed_up_in_float32() -> None:
    """A bfloat16 sum loses 2^-9 after 1; 128 of them are a quarter."""
    head = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    tokens = torch.full((129, 1), 2.0**-9, dtype=torch.bfloat16)
    tokens[0] = 1.0

    def total(logits: Tensor, _: Tensor) -> Tensor:
        return logits.float().sum()

    chunked_loss(tokens, torch.zeros(129, dtype=torch.int64), head, total, 129).backward()
    assert head.weight.grad is not None and head.weight.grad.item() == 1.25


@pytest.mark.parametrize("frozen", ["hidden", "head"])
def test_what_needs_no_gradient_has_none(frozen: str) -> None:
    hidden, head = HIDDEN.clone(), new_head()
    hidden.requires_grad_(frozen == "head")
    head.requires_grad_(frozen == "hidden")
    chunked_loss(hidden, TARGET, head, sum_of_losses, 3).backward()
    assert [tensor.grad is None for tensor in (hidden, head.weight)] == [frozen == "hidden", frozen == "head"]


def test_without_gradients_there_is_the_loss_alone() -> None:
    hidden, head = HIDDEN.clone().requires_grad_(), new_head()
    expected = chunked_loss(hidden, TARGET, head, sum_of_losses, 3).detach()
    with torch.no_grad():
        validated = chunked_loss(hidden, TARGET, head, sum_of_losses, 3)
    assert torch.equal(validated, expected) and not validated.requires_grad


def test_a_second_backward_is_refused() -> None:
    loss = chunked_loss(HIDDEN.clone().requires_grad_(), TARGET, new_head(), sum_of_losses, 2)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="its gradients have been passed on, and their memory with them"):
        loss.backward()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with two_ranks():
        yield init_device_mesh("cpu", (2,), mesh_dim_names=("chunks",))


def test_what_it_refuses(mesh: DeviceMesh) -> None:
    from torch.distributed.tensor import DTensor, Shard

    head = new_head()
    with pytest.raises(ValueError, match="num_chunks must be 1 or more, got 0"):
        chunked_loss(HIDDEN, TARGET, head, sum_of_losses, 0)
    with pytest.raises(ValueError, match="a target for each of the 14 tokens of this rank, got 7"):
        chunked_loss(HIDDEN, TARGET[0], head, sum_of_losses, 2)
    in_parts = DTensor.from_local(HIDDEN, mesh, [Shard(2)], run_check=False)
    with pytest.raises(NotImplementedError, match=r"replicated or sharded by tokens, got .*; pass hidden.redistribute"):
        chunked_loss(in_parts, TARGET, head, sum_of_losses, 2)
    head.weight._is_flat_param = True  # type: ignore[attr-defined]  # as FullyShardedDataParallel marks its own
    with pytest.raises(NotImplementedError, match=r"use torch\.distributed\.fsdp\.fully_shard"):
        chunked_loss(HIDDEN, TARGET, head, sum_of_losses, 2)
