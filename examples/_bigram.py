# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A word-level bigram model and its optimizer, in numpy of any precision.

The model is one table [V, V]: row w holds the logits of the word that follows w. It starts at zero, where every
word is equally likely and the loss is exactly ln V.

The optimizer is row-wise Adagrad, usual for embedding tables: a row's step is its gradient divided by the norm of
all gradients that the row has seen, so frequent and rare words learn at their own pace and one number a row is all
the state there is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike


class BigramModel:
    """Logits of the next word, looked up by the previous one.

    Args:
        vocabulary_size: V.
        dtype: precision of the table and of the optimizer, float32 or float64.
        learning_rate: length of a row's first step, in nats.
    """

    def __init__(self, vocabulary_size: int, dtype: DTypeLike, learning_rate: float) -> None:
        self.table = np.zeros((vocabulary_size, vocabulary_size), dtype=dtype)
        self.learning_rate = learning_rate
        self._squared_norms = np.zeros(vocabulary_size, dtype=dtype)

    def logits(self, previous: np.ndarray) -> np.ndarray:
        """A fresh [B, V] array of logits for the words after ``previous`` [B]."""
        return self.table[previous]

    def learn(self, previous: np.ndarray, gradient: np.ndarray) -> None:
        """Take one step.

        Args:
            previous: [B] the words that the logits were looked up for.
            gradient: [B, V] gradient of the loss with respect to those logits.
        """
        # A word that occurs k times in the batch owns k rows of the gradient: sort by word, add up each run.
        order = np.argsort(previous, kind="stable")
        rows, starts = np.unique(previous[order], return_index=True)
        row_gradient = np.add.reduceat(gradient[order], starts, axis=0)
        self._squared_norms[rows] += np.einsum("rv,rv->r", row_gradient, row_gradient)
        norms = np.sqrt(self._squared_norms[rows])
        # A row whose gradient has been nothing but zeros has norm 0 and stays where it is.
        step = np.divide(self.learning_rate, norms, out=np.zeros_like(norms), where=norms > 0)
        row_gradient *= step[:, None]
        self.table[rows] -= row_gradient
