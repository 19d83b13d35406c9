# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Training of the transformer: the same parameters and batches for any loss function, on the CPU or a Neuron device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from examples._corpus import Corpus
from examples._transformer import LanguageModel, Size

# The mean loss of a model for words and the words that follow them, [batch, length] each.
LossFunction = Callable[[LanguageModel, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """The settings of a training.

    Attributes:
        steps: number of steps of the optimizer, AdamW.
        batch_size: number of windows of the text in a step, each as long as the model's context.
        learning_rate: constant learning rate.
        size: sizes of the model.
        seed: seed of parameters and batches.
    """

    steps: int = 200
    batch_size: int = 8
    learning_rate: float = 1e-3
    size: Size = field(default_factory=Size)
    seed: int = 0

    def batches(self, corpus: Corpus) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the words and the words that follow them for each step: [batch_size, context] int64 each.

        Raises:
            ValueError: the text is shorter than a window.
        """
        starts = len(corpus) - self.size.context + 1
        if starts < 1:
            raise ValueError(f"Plan: the text must have a window of {self.size.context} words, got {len(corpus)}")
        generator = np.random.default_rng(self.seed)
        for _ in range(self.steps):
            windows = generator.integers(starts, size=(self.batch_size, 1)) + np.arange(self.size.context)
            words, following = corpus.previous[windows], corpus.following[windows]
            yield torch.from_numpy(words).long(), torch.from_numpy(following).long()


class Learner:
    """A transformer that learns with one loss function.

    Args:
        loss_function: the line that a user changes.
        vocabulary_size: V.
        plan: gives sizes, learning rate and seed.
        device: where the model lives.
    """

    def __init__(self, loss_function: LossFunction, vocabulary_size: int, plan: Plan, device: torch.device) -> None:
        torch.manual_seed(plan.seed)  # every learner starts with the same parameters
        self.loss_function = loss_function
        self.model = LanguageModel(vocabulary_size, plan.size).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=plan.learning_rate)

    def step(self, words: Tensor, following: Tensor) -> Tensor:
        """Learn from one batch; returns its loss before the step. Nothing here waits for the device."""
        self.optimizer.zero_grad()
        loss = self.loss_function(self.model, words, following)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
