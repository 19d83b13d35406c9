# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Training of the bigram model: the same batches and the same optimizer for any arithmetic of loss and gradient."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from examples._bigram import BigramModel
from examples._corpus import Corpus


class Arithmetic(Protocol):
    """An implementation of loss and gradient."""

    @property
    def dtype(self) -> DTypeLike:
        """Precision of the logits that it takes."""

    def losses(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The loss of each row: logits [B, V], targets [B] int32 -> [B]."""

    def losses_and_gradient(self, logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss of each row [B] and the gradient of their mean [B, V], which may be ``logits`` written over."""


@dataclass(frozen=True)
class Schedule:
    """The settings of a training.

    Attributes:
        batch_size: pairs of words in a step.
        passes: number of passes over the text, each in another order.
        learning_rate: learning rate of row-wise Adagrad.
        seed: seed of the orders.
    """

    batch_size: int = 512
    passes: int = 1
    learning_rate: float = 10.0
    seed: int = 0

    def steps(self, corpus: Corpus) -> int:
        return self.passes * -(-len(corpus) // self.batch_size)

    def batches(self, corpus: Corpus) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Previous and following words of each step, [B] int32 each; the last batch of a pass may be shorter."""
        generator = np.random.default_rng(self.seed)
        for _ in range(self.passes):
            order = generator.permutation(len(corpus))
            for start in range(0, len(corpus), self.batch_size):
                chosen = order[start : start + self.batch_size]
                yield corpus.previous[chosen], corpus.following[chosen]


class Trainee:
    """A bigram model that learns with one arithmetic.

    Args:
        arithmetic: computes loss and gradient.
        vocabulary_size: V.
        schedule: gives the learning rate.
    """

    def __init__(self, arithmetic: Arithmetic, vocabulary_size: int, schedule: Schedule) -> None:
        self.arithmetic = arithmetic
        self.model = BigramModel(vocabulary_size, arithmetic.dtype, schedule.learning_rate)
        self.step_losses: list[float] = []
        self.seconds = 0.0

    def step(self, previous: np.ndarray, following: np.ndarray) -> float:
        """Learn from one batch; returns its mean loss before the step, in nats."""
        start = time.perf_counter()
        losses, gradient = self.arithmetic.losses_and_gradient(self.model.logits(previous), following)
        self.model.learn(previous, gradient)
        self.step_losses.append(float(np.mean(losses, dtype=np.float64)))
        self.seconds += time.perf_counter() - start
        return self.step_losses[-1]

    def text_loss(self, corpus: Corpus, rows: int = 2048) -> float:
        """Mean loss over the whole text, in nats.

        Every distinct pair is computed once and weighted by its count.

        Args:
            corpus: the text.
            rows: pairs in one call, which bounds the memory.
        """
        previous, following, counts = corpus.distinct_pairs()
        total = 0.0
        for start in range(0, len(counts), rows):
            part = slice(start, start + rows)
            losses = self.arithmetic.losses(self.model.logits(previous[part]), following[part])
            total += float(np.dot(losses.astype(np.float64), counts[part]))
        return total / len(corpus)
