# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Modules with the names and signatures of verl 0.9.1, and its formulas in plain PyTorch, that run on the CPU.

verl itself brings ray, and its kernel runs on CUDA alone. Its functions are in
``verl/utils/kernel/linear_cross_entropy.py`` and ``verl/utils/experimental/torch_functional.py``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

KERNEL = "verl.utils.kernel.linear_cross_entropy"
FUSED = "verl.utils.experimental.torch_functional"
BY_NAME = "verl.models.mcore.model_forward_fused"


def scores(hidden: Tensor, weight: Tensor, labels: Tensor, temperature: Any) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy, in the type of the operands."""
    z = hidden @ weight.T / temperature
    logprob = z.log_softmax(-1)
    return logprob.gather(-1, labels[..., None])[..., 0], -(logprob.exp() * logprob).sum(-1)


class LinearCrossEntropy:
    """A class with the arguments of verl's autograd Function; it notes that it ran."""

    calls = 0

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        temperature: float | None = 1.0,
        reduction: str | None = "none",
        dist_process_group: Any = None,
    ) -> tuple[Tensor, Tensor]:
        LinearCrossEntropy.calls += 1
        return scores(hidden.flatten(0, -2), weight, labels.flatten(), temperature)

    @classmethod
    def apply(cls, *args: Any) -> tuple[Tensor, Tensor]:
        """Take arguments by position alone, like ``torch.autograd.Function.apply``."""
        return cls.forward(None, *args)


class FusedLinearForPPO(nn.Module):
    """A module with the arguments of verl's; it notes that it ran."""

    calls = 0

    def __init__(self, chunk_size: int = 512, impl_backend: str = "torch") -> None:
        super().__init__()
        self.chunk_size, self.impl_backend = chunk_size, impl_backend

    def forward(
        self,
        hidden_states: torch.FloatTensor,
        vocab_weights: torch.FloatTensor,
        input_ids: torch.LongTensor,
        temperature: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        FusedLinearForPPO.calls += 1
        return scores(hidden_states, vocab_weights, input_ids, temperature)


def put_in_place(monkeypatch: pytest.MonkeyPatch, version: str = "0.9.1") -> dict[str, Any]:
    """Make ``import verl`` find these, and one module that has imported the function by name."""
    parents = {".".join(name.split(".")[:n]) for name in (KERNEL, FUSED, BY_NAME) for n in range(1, 5)}
    modules: dict[str, Any] = {name: ModuleType(name) for name in sorted(parents)}
    for name, module in modules.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    modules["verl"].__version__ = version
    # Classes of their own, for what is installed is set on them.
    kernel: Any = type("LinearCrossEntropy", (LinearCrossEntropy,), {})
    module = type("FusedLinearForPPO", (FusedLinearForPPO,), {"forward": FusedLinearForPPO.forward})
    LinearCrossEntropy.calls = FusedLinearForPPO.calls = 0
    modules[KERNEL].LinearCrossEntropy, modules[KERNEL].linear_cross_entropy = kernel, kernel.apply
    modules[FUSED].FusedLinearForPPO = module
    modules[BY_NAME].linear_cross_entropy = modules[KERNEL].linear_cross_entropy
    return modules
