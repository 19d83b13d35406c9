# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""English text that every CPython carries, as a sequence of word numbers.

The text is the reference manual behind ``help("for")`` and its like: ``pydoc_data.topics``. It differs a little
from one Python version to the next, so the size of the vocabulary is counted and never assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pydoc_data.topics import topics

import numpy as np

# A run of letters, digits and underscores, or one punctuation mark. Case matters, white space does not.
TOKEN = re.compile(r"\w+|[^\w\s]")
# What the short forms of the examples read.
QUICK_WORDS = 4000


@dataclass(frozen=True)
class Corpus:
    """Every pair of neighbouring words of a text.

    Attributes:
        words: [V] the distinct words in sorted order; a word's number is its index here.
        previous: [T] int32, the number of each pair's first word.
        following: [T] int32, the number of each pair's second word.
    """

    words: tuple[str, ...]
    previous: np.ndarray
    following: np.ndarray

    @property
    def vocabulary_size(self) -> int:
        return len(self.words)

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.previous)

    @cached_property
    def _pairs_and_counts(self) -> tuple[np.ndarray, np.ndarray]:
        pairs = self.previous.astype(np.int64) * self.vocabulary_size + self.following
        return np.unique(pairs, return_counts=True)

    def distinct_pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The distinct pairs: first words [D] int32, second words [D] int32, how often each occurs [D] int64."""
        pairs, counts = self._pairs_and_counts
        previous, following = np.divmod(pairs, self.vocabulary_size)
        return previous.astype(np.int32), following.astype(np.int32), counts

    def unigram_entropy(self) -> float:
        """The least mean loss, in nats, of a model that ignores the previous word."""
        counts = np.bincount(self.following)
        counts = counts[counts > 0]
        return float(-(counts * np.log(counts / len(self))).sum() / len(self))

    def bigram_entropy(self) -> float:
        """The least mean loss, in nats, of a model that knows the previous word and no more."""
        previous, _, counts = self.distinct_pairs()
        share = counts / np.bincount(self.previous)[previous]
        return float(-(counts * np.log(share)).sum() / len(self))


def read_corpus(limit: int | None = None) -> Corpus:
    """Cut the text of ``pydoc_data.topics`` into words.

    Args:
        limit: take only that many words from the start; None takes all, about 114,000.

    Raises:
        ValueError: ``limit`` leaves fewer than the two words that make a pair.
    """
    if limit is not None and limit < 2:
        raise ValueError(f"read_corpus: limit must be at least 2 (one pair of words), got {limit}")
    text = "\n\n".join(topics[name] for name in sorted(topics))
    tokens = TOKEN.findall(text)[:limit]
    words = tuple(sorted(set(tokens)))
    number_of = {word: number for number, word in enumerate(words)}
    numbers = np.array([number_of[token] for token in tokens], dtype=np.int32)
    return Corpus(words=words, previous=numbers[:-1].copy(), following=numbers[1:].copy())
