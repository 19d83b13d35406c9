# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A stand-in for the interface of Optimum Neuron 0.4.5: its models, their loss, and the loss of its trainer.

It was written for these tests from what the release's wheel takes and returns, because that imports
``neuronx_distributed``, of which the public package index has only a placeholder. As a program it trains on two
processes: ``python -m ... DIRECTORY``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import vocab_parallel_cross_entropy, vocab_parallel_linear_cross_entropy
from tests.hangs import RANKS_WAIT

PROCESSES: Final = 2
BATCH, LENGTH, FEATURES, VOCABULARY = 2, 6, 16, 38
# The functions of the package's loss_utils, which users may exchange.
LOSS_UTILS: Final[dict[str, Callable[..., Tensor]]] = {}


class ColumnParallelLinear(nn.Module):
    """A layer of this rank's classes without a bias, which sums the gradient of its input over the ranks."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes // _ranks(), features))

    def forward(self, inputs: Tensor) -> Tensor:
        copied: Tensor = _SummedGradient.apply(inputs) if _ranks() > 1 else inputs  # type: ignore[no-untyped-call]
        return F.linear(copied, self.weight)


class _SummedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        total = upstream[0].clone()
        dist.all_reduce(total)
        return total


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


class _Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, FEATURES)
        self.layer = nn.Linear(FEATURES, FEATURES)

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        return (self.layer(self.embedding(input_ids)),)


class CausalLM(nn.Module):
    """A causal model: ``model``, ``lm_head`` and a loss from labels, as all of the package have them.

    Args:
        head: the output layer.
        classes: the classes that its logits have.
        logits_scaling: a number by which logits are divided, as Granite does.
    """

    def __init__(self, head: nn.Module, classes: int, logits_scaling: float = 1.0) -> None:
        super().__init__()
        self.model = _Trunk()
        self.lm_head = head
        self.classes, self.logits_scaling = classes, logits_scaling

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, reduction: str = "mean") -> dict[str, Any]:
        logits = self.lm_head(self.model(input_ids)[0])
        if self.logits_scaling != 1.0:
            logits = logits / self.logits_scaling
        if labels is None:
            return {"logits": logits}
        shifted = logits.float()[..., :-1, :].contiguous().view(-1, self.classes)
        chosen = "parallel_cross_entropy" if _ranks() > 1 else "cross_entropy"
        loss = LOSS_UTILS[chosen](
            shifted, labels[..., 1:].contiguous().view(-1), ignore_index=-100, reduction=reduction
        )
        return {"loss": loss, "logits": logits}


LOSS_UTILS["cross_entropy"] = F.cross_entropy


def compute_loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The loss of the trainer: a sum, over the number of targets."""
    loss: Tensor = model(**inputs, reduction="sum")["loss"]
    return loss / _items(inputs)


def _items(inputs: dict[str, Tensor]) -> int:
    return int((inputs["labels"] != -100).sum())


def compute_loss_from_hidden_states(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The loss of the page docs/how_to/optimum_neuron.md, "The loss from hidden states"."""
    hidden = model.model(inputs["input_ids"])[0]
    loss = vocab_parallel_linear_cross_entropy(
        hidden[:, :-1], model.lm_head.weight, inputs["labels"][:, 1:], dist.group.WORLD, reduction="sum"
    )
    return loss / _items(inputs)


def parallel_cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    """The loss of the page, "The loss from logits"."""
    return vocab_parallel_cross_entropy(logits, target, dist.group.WORLD, inplace=True, **options)


def batch() -> dict[str, Tensor]:
    """Tokens, and labels of which some are ignored."""
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))
    labels = tokens.clone()
    labels[0, 3:5] = -100
    return {"input_ids": tokens, "labels": labels}


def whole() -> CausalLM:
    """A model with all classes on this rank, in a ``torch.nn.Linear``."""
    torch.manual_seed(0)
    return CausalLM(nn.Linear(FEATURES, VOCABULARY, bias=False), VOCABULARY).train()


def parallel() -> CausalLM:
    """The same model with this rank's classes in a ``ColumnParallelLinear``."""
    own, made = whole(), VOCABULARY // _ranks()
    head = ColumnParallelLinear(FEATURES, VOCABULARY)
    rank = dist.get_rank() if dist.is_initialized() else 0
    with torch.no_grad():
        head.weight.copy_(own.lm_head.get_parameter("weight")[rank * made : (rank + 1) * made])
    own.lm_head, own.classes = head, made
    return own


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of all parameters."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def main(rank: int, directory: Path) -> None:
    """Save what a rank has found as ``DIRECTORY/RANK.pt``."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, RANKS_WAIT, rank=rank, world_size=PROCESSES)
    LOSS_UTILS["parallel_cross_entropy"] = parallel_cross_entropy
    found = {}
    for name, of_trainer in (("logits", compute_loss), ("hidden states", compute_loss_from_hidden_states)):
        model = parallel()
        loss = of_trainer(model, batch())
        loss.backward()  # type: ignore[no-untyped-call]
        found[name] = loss.detach(), gradients(model)
    torch.save(found, directory / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(main, (Path(sys.argv[1]),), PROCESSES, start_method="fork")
