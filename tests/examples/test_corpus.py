# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The text that the demo trains on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from examples._corpus import TOKEN, read_corpus


def test_every_word_is_numbered_and_every_pair_is_there() -> None:
    corpus = read_corpus()
    assert corpus.vocabulary_size == len(set(corpus.words))
    assert np.array_equal(np.union1d(corpus.previous, corpus.following), np.arange(corpus.vocabulary_size))
    assert np.array_equal(corpus.following[:-1], corpus.previous[1:]), "neighbouring pairs share a word"
    assert corpus.previous.dtype == corpus.following.dtype == np.int32
    # Versions of Python differ in the text, not in what it is: a manual of some hundred pages in English.
    assert len(corpus) > 50_000
    assert 2_000 < corpus.vocabulary_size < 10_000


def test_case_and_punctuation_are_kept() -> None:
    words = set(read_corpus().words)
    assert {"The", "the", ".", ",", "statement"} <= words
    assert TOKEN.findall("It's x_1, isn't it?") == ["It", "'", "s", "x_1", ",", "isn", "'", "t", "it", "?"]


def test_limit_takes_words_from_the_start() -> None:
    corpus, longer = read_corpus(limit=100), read_corpus(limit=200)
    assert len(corpus) == 99
    text = [corpus.words[number] for number in corpus.previous]
    assert text == [longer.words[number] for number in longer.previous[:99]]


@pytest.mark.parametrize("limit", [1, 0, -3])
def test_a_limit_without_a_pair_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"^read_corpus: limit must be at least 2 .*got {limit}$"):
        read_corpus(limit=limit)


def test_distinct_pairs_are_counted() -> None:
    corpus = read_corpus(limit=500)
    counted: dict[tuple[int, int], int] = {}
    for pair in zip(corpus.previous.tolist(), corpus.following.tolist(), strict=True):
        counted[pair] = counted.get(pair, 0) + 1
    previous, following, counts = corpus.distinct_pairs()
    assert dict(zip(zip(previous.tolist(), following.tolist(), strict=True), counts.tolist(), strict=True)) == counted


def test_entropies_are_those_of_the_definition() -> None:
    corpus = read_corpus(limit=500)
    previous, following = corpus.previous.tolist(), corpus.following.tolist()
    pairs = list(zip(previous, following, strict=True))
    unigram = -sum(math.log(following.count(word) / len(pairs)) for word in following) / len(pairs)
    bigram = -sum(math.log(pairs.count(pair) / previous.count(pair[0])) for pair in pairs) / len(pairs)
    assert corpus.unigram_entropy() == pytest.approx(unigram, rel=1e-12)
    assert corpus.bigram_entropy() == pytest.approx(bigram, rel=1e-12)
    assert bigram < unigram < math.log(corpus.vocabulary_size)
