# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bigram model, its optimizer, and the arithmetic that it is trained with."""

from __future__ import annotations

import math

import numpy as np
import pytest

from examples import _arithmetic
from examples._arithmetic import Float64Arithmetic, KernelArithmetic
from examples._bigram import BigramModel
from examples._corpus import TOKEN, read_corpus
from examples._training import Schedule, Trainee


def test_a_step_is_row_wise_adagrad() -> None:
    generator = np.random.default_rng(3)
    model = BigramModel(vocabulary_size=5, dtype=np.float64, learning_rate=0.7)
    table, squared_norms = np.zeros((5, 5)), np.zeros(5)
    for previous in (np.array([3, 1, 3, 3]), np.array([1, 0, 0, 1])):
        gradient = generator.normal(size=(4, 5))
        model.learn(previous, gradient)
        for row in range(5):
            of_row = gradient[previous == row].sum(axis=0)
            squared_norms[row] += (of_row**2).sum()
            if (previous == row).any():
                table[row] -= 0.7 * of_row / math.sqrt(squared_norms[row])
        np.testing.assert_allclose(model.table, table, rtol=1e-13)
    assert not model.table[[2, 4]].any(), "rows of words that did not occur stay at zero"


def test_a_row_without_gradient_stays_where_it_is() -> None:
    model = BigramModel(vocabulary_size=3, dtype=np.float32, learning_rate=1.0)
    model.learn(np.array([1]), np.zeros((1, 3), np.float32))
    assert not model.table.any()


def test_logits_are_a_copy_that_may_be_written_over() -> None:
    model = BigramModel(vocabulary_size=4, dtype=np.float32, learning_rate=1.0)
    model.logits(np.array([2]))[:] = 9.0
    assert not model.table.any()


@pytest.mark.parametrize("vocabulary", [7, 2048, 2500])
def test_kernels_and_float64_agree(vocabulary: int) -> None:
    generator = np.random.default_rng(vocabulary)
    logits = generator.normal(size=(9, vocabulary)).astype(np.float32)
    targets = generator.integers(0, vocabulary, 9, dtype=np.int32)
    exact_losses, exact_gradient = Float64Arithmetic().losses_and_gradient(logits.astype(np.float64), targets)
    kernels = KernelArithmetic(vocabulary)
    np.testing.assert_allclose(kernels.losses(logits, targets), exact_losses, rtol=2e-6)
    losses, gradient = kernels.losses_and_gradient(logits, targets)
    np.testing.assert_allclose(losses, exact_losses, rtol=2e-6)
    np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-5, atol=1e-12)
    assert gradient is logits, "the gradient is written over the logits"


def test_float64_gradient_is_the_slope_of_the_mean_loss() -> None:
    generator = np.random.default_rng(8)
    logits, targets = generator.normal(size=(3, 6)), np.array([0, 5, 2], np.int32)
    arithmetic = Float64Arithmetic()
    _, gradient = arithmetic.losses_and_gradient(logits, targets)
    for at in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[at] = 1e-6
        slope = arithmetic.losses(logits + step, targets).mean() - arithmetic.losses(logits - step, targets).mean()
        assert gradient[at] == pytest.approx(slope / 2e-6, abs=1e-9)


def test_a_pass_visits_every_pair_once_in_a_repeatable_order() -> None:
    corpus = read_corpus(limit=1001)
    schedule = Schedule(batch_size=300, passes=2)
    batches = list(schedule.batches(corpus))
    assert [len(previous) for previous, _ in batches] == [300, 300, 300, 100] * 2
    assert len(batches) == schedule.steps(corpus)

    def pairs(some: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[int, int]]:
        return [pair for p, f in some for pair in zip(p.tolist(), f.tolist(), strict=True)]

    whole = sorted(zip(corpus.previous.tolist(), corpus.following.tolist(), strict=True))
    assert sorted(pairs(batches[:4])) == sorted(pairs(batches[4:])) == whole
    assert pairs(batches[:4]) != pairs(batches[4:]), "each pass has an order of its own"
    assert pairs(list(schedule.batches(corpus))) == pairs(batches)


@pytest.fixture(scope="module")
def trained() -> Trainee:
    corpus = read_corpus(limit=3000)
    schedule = Schedule(passes=2)
    trainee = Trainee(KernelArithmetic(corpus.vocabulary_size), corpus.vocabulary_size, schedule)
    for previous, following in schedule.batches(corpus):
        trainee.step(previous, following)
    return trainee


def test_the_loss_falls_from_ln_v(trained: Trainee) -> None:
    corpus = read_corpus(limit=3000)
    assert trained.step_losses[0] == pytest.approx(math.log(corpus.vocabulary_size), rel=1e-6)
    assert trained.step_losses[-1] < trained.step_losses[0] - 2.0
    assert corpus.bigram_entropy() < trained.text_loss(corpus) < corpus.unigram_entropy()


def test_text_loss_is_the_mean_over_all_pairs(trained: Trainee) -> None:
    corpus = read_corpus(limit=3000)
    losses = Float64Arithmetic().losses(trained.model.logits(corpus.previous).astype(np.float64), corpus.following)
    assert trained.text_loss(corpus, rows=97) == pytest.approx(losses.mean(), rel=1e-6)


def test_training_repeats_to_the_last_bit(trained: Trainee) -> None:
    corpus = read_corpus(limit=3000)
    schedule = Schedule(passes=2)
    again = Trainee(KernelArithmetic(corpus.vocabulary_size), corpus.vocabulary_size, schedule)
    for previous, following in schedule.batches(corpus):
        again.step(previous, following)
    assert again.step_losses == trained.step_losses
    assert again.model.table.tobytes() == trained.model.table.tobytes()


def test_the_model_learns_from_the_kernels_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoGradient:
        def __getitem__(self, cores: int) -> object:
            return lambda logits, *arguments, **options: np.zeros_like(logits)

    monkeypatch.setattr(_arithmetic, "cross_entropy_backward", NoGradient())
    corpus = read_corpus(limit=600)
    trainee = Trainee(KernelArithmetic(corpus.vocabulary_size), corpus.vocabulary_size, Schedule())
    for previous, following in Schedule().batches(corpus):
        trainee.step(previous, following)
    assert not trainee.model.table.any()


# The text that the demo trains on.


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
