# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modules with the names and signatures of TorchTitan 0.3.0, and its formulas in plain PyTorch.

TorchTitan itself wants a nightly PyTorch and a dozen packages. Its functions are in ``torchtitan/components/loss.py``
and ``torchtitan/experiments/rl/losses/``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

LOSSES = "torchtitan.components.loss"
DAPO = "torchtitan.experiments.rl.losses.dapo"


def cross_entropy_loss(pred: Tensor, labels: Tensor, *, global_vocab_size: int | None = None) -> Tensor:
    return F.cross_entropy(pred.flatten(0, 1), labels.flatten(0, 1), reduction="sum", ignore_index=-100)


def compute_logprobs(logits: Tensor, labels: Tensor, *, return_entropy: bool = False) -> Any:
    logprobs = -F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none", ignore_index=-100)
    p = logits.detach().softmax(-1)
    return (logprobs, -(p * p.log()).sum(-1)) if return_entropy else logprobs


class CrossEntropyLoss:
    """A loss with the call of TorchTitan's, without its configuration."""

    def __call__(
        self, pred: Tensor, labels: Tensor, global_valid_tokens: Any = None, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = cross_entropy_loss(pred, labels)
        return (loss if global_valid_tokens is None else loss / global_valid_tokens), {}


class ChunkedLossWrapper:
    """A wrapper with the call of TorchTitan's, in one piece, without its configuration; it notes that it ran."""

    calls = 0

    def __init__(self, loss_fn: Any) -> None:
        self.loss_fn = loss_fn
        self.lm_head: Any = None

    def set_lm_head(self, lm_head: Any) -> None:
        self.lm_head = lm_head

    def __call__(
        self, pred: Any, labels: Any, global_valid_tokens: Any = None, **loss_inputs: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ChunkedLossWrapper.calls += 1
        result: tuple[Tensor, dict[str, Tensor]]
        logits = tuple(map(self.lm_head, pred)) if isinstance(pred, tuple) else self.lm_head(pred)
        result = self.loss_fn(logits, labels, global_valid_tokens, **loss_inputs)
        return result


class DAPOLoss:
    """A clipped surrogate that asks ``compute_logprobs`` of its own module."""

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        global_valid_tokens: Any = None,
        *,
        generator_logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logprobs, entropy = sys.modules[DAPO].compute_logprobs(logits, labels, return_entropy=True)
        ratio = torch.where(loss_mask, logprobs - generator_logprobs, 0.0).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        metrics = {"trainer/entropy/mean": (entropy * loss_mask).sum() / global_valid_tokens}
        return -(surrogate * loss_mask).sum() / global_valid_tokens, metrics


DAPOLoss.__module__ = DAPO


class MTPLoss:
    """The loss of multi-token prediction, from tuples of logits and labels."""

    mtp_scale = 0.5

    def __call__(
        self, pred: Any, labels: Any, global_valid_tokens: Any = None, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        first, *others = map(cross_entropy_loss, pred, labels)
        loss = first + sum(others) * self.mtp_scale / len(others)
        return (loss if global_valid_tokens is None else loss / global_valid_tokens), {}


MTPLoss.__module__ = "torchtitan.models.deepseek_v3.mtp"


def put_in_place(monkeypatch: pytest.MonkeyPatch, version: str = "0.3.0") -> dict[str, Any]:
    """Make ``import torchtitan`` find these; the module of DAPO has ``compute_logprobs`` by name."""
    parents = {".".join(name.split(".")[:n]) for name in (LOSSES, DAPO) for n in range(1, 6)}
    modules: dict[str, Any] = {name: ModuleType(name) for name in sorted(parents)}
    for name, module in modules.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    modules["torchtitan"].__version__ = version
    ChunkedLossWrapper.calls = 0
    # A class of its own, for what is installed is set on it.
    wrapper = type("ChunkedLossWrapper", (ChunkedLossWrapper,), {"__call__": ChunkedLossWrapper.__call__})
    of_losses = {"CrossEntropyLoss": CrossEntropyLoss, "ChunkedLossWrapper": wrapper}
    functions = {"cross_entropy_loss": cross_entropy_loss, "compute_logprobs": compute_logprobs}
    vars(modules[LOSSES]).update(of_losses | functions)
    vars(modules[DAPO]).update(DAPOLoss=DAPOLoss, compute_logprobs=compute_logprobs)
    return modules
