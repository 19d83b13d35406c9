# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Divergence and entropy of all classes from those of shards: the formulas, on float64 results of each shard."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nkilib.torch.functions.linear_distillation.results import MixtureSums, ShardResults
from nkilib.torch.functions.linear_distillation.statistics import (
    Share,
    divergence_term,
    entropy_term,
    log_sum_below,
    masked_logits,
    mixed,
    share_of,
)
from tests.torch.formula import entropy_of
from tests.torch.functions.linear_distillation.problem import divergence_of
from tests.torch.inputs import make_logits
from tests.torch.telling import UNIT

# What kernels make of a masked class without a scale.
LOWEST = -(2.0**116)
SIZES = ((5, 3, 12), (7, 0, 13), (1, 1, 18), (20,))
POSITIONS, CLASSES = 6, 20


def results_of(z_s: Tensor, z_t: Tensor, beta: float) -> ShardResults:
    """Return the results of kernels for a shard, rounded to float32."""
    if z_s.shape[1] == 0:
        none = torch.zeros(len(z_s))
        low, nothing = none + torch.finfo(torch.float32).min, none - torch.inf
        return ShardResults(none, none, low, nothing, low, nothing, none[:0])
    statistics = []
    for z in (z_s, z_t):
        maximum = z.amax(-1).float()
        statistics += [maximum, (z - maximum[:, None].double()).logsumexp(-1).float()]
    divergence = divergence_of(z_s, z_t, beta).value
    divergence = torch.where(divergence > 2.0**40, torch.inf, divergence)
    return ShardResults(divergence.float(), entropy_of(z_s).float(), *statistics, divergence.float()[:0])


class Ranks:
    """The shards of ``sizes`` classes each, and what the ranks find together."""

    def __init__(self, z_s: Tensor, z_t: Tensor, beta: float, sizes: tuple[int, ...]) -> None:
        parts = zip(z_s.split(sizes, -1), z_t.split(sizes, -1), strict=True)
        self.own = [results_of(*part, beta) for part in parts]
        self.beta = beta
        self.students = self._shares("student")
        self.teachers = self._shares("teacher")

    def _shares(self, model: str) -> list[Share]:
        maxima, log_sums = (
            torch.stack([getattr(own, f"{model}_{name}") for own in self.own]) for name in ("maximum", "log_sum")
        )
        masked = getattr(masked_logits(1.0, 1.0, 1.0), model)
        below = log_sum_below(maxima, log_sums, maxima.amax(0), masked)
        return [share_of(item, below.exp().sum(0).log()) for item in below]

    @property
    def divergence(self) -> Tensor:
        """The divergence of all classes."""
        shares = zip(self.own, self.students, self.teachers, strict=True)
        return torch.stack([divergence_term(*share, self.beta) for share in shares]).sum(0)

    @property
    def entropy(self) -> Tensor:
        """The entropy of the student, of all classes."""
        return torch.stack([entropy_term(*item) for item in zip(self.own, self.students, strict=True)]).sum(0)


def logits(spread: float = 3.0) -> tuple[Tensor, Tensor]:
    z_s, z_t = (make_logits(POSITIONS, CLASSES, seed=seed, spread=spread).double() for seed in (0, 1))
    return z_s, z_t


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("spread", [1.0, 10.0, 1e4])
def test_chain_rule(spread: float, sizes: tuple[int, ...], beta: float) -> None:
    z_s, z_t = logits(spread)
    ranks, exact = Ranks(z_s, z_t, beta, sizes), divergence_of(z_s, z_t, beta).value
    units = 16.0 * UNIT * (1.0 + exact)
    assert ((ranks.divergence - exact).abs() <= units).all() and exact.mean() > 0.1
    assert ((ranks.entropy - entropy_of(z_s)).abs() <= 16.0 * UNIT * 3.0).all()


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("distance", [0.0, 1e-4, 1e-2])
def test_near_models_keep_the_digits_of_a_small_divergence(distance: float, beta: float) -> None:
    """A divergence of 5e-9 of shares that are rounded to 6e-8."""
    z_s, noise = logits()
    z_t = z_s + distance * noise
    result, exact = Ranks(z_s, z_t, beta, (5, 3, 12)).divergence, divergence_of(z_s, z_t, beta).value
    assert (result >= 0.0).all()
    assert ((result - exact).abs() <= 4.0 * UNIT * distance + 4.0 * UNIT * exact).all()
    assert (result == 0.0).all() == (distance == 0.0)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_shard_whose_share_is_too_small_for_float32_counts_by_its_logarithm(beta: float) -> None:
    z_s, z_t = logits()
    (z_s if beta == 0.0 else z_t)[:, 5:8] -= 200.0
    result, exact = Ranks(z_s, z_t, beta, (5, 3, 12)).divergence, divergence_of(z_s, z_t, beta).value
    assert exact.gt(1e-2).all() and exact.max() > 20.0
    assert ((result - exact).abs() <= 16.0 * UNIT * (1.0 + exact)).all()


def test_masked_logits_of_small_units_and_high_temperatures() -> None:
    """-2^116 of the largest unit of three: 1, the model's, and of the teacher the quotient of both models' units."""
    for student in (1e-6, 1.0, 30.0):
        for teacher in (1e-6, 1.0, 30.0):
            for temperature in (1e-3, 1e6):
                result = masked_logits(student, teacher, temperature)
                lowest = LOWEST / max(1.0, student) * student / temperature
                of_teacher = LOWEST / max(1.0, teacher, teacher / student) * teacher / temperature
                assert result == pytest.approx((0.5 * lowest, 0.5 * of_teacher))


MASKED = {"both": (True, True), "student": (True, False), "teacher": (False, True)}


@pytest.mark.parametrize("model", MASKED)
@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("first", [5, 6])
def test_masked_classes_of_a_shard_or_all_of_them(first: int, beta: float, model: str) -> None:
    """Kernels have a low number for -inf."""
    z_s, z_t = logits()
    for z, is_masked in zip((z_s, z_t), MASKED[model], strict=True):
        if is_masked:
            z[:, first:8] = LOWEST
    ranks = Ranks(z_s, z_t, beta, (5, 3, 12))
    exact = divergence_of(*(torch.where(z == LOWEST, -torch.inf, z) for z in (z_s, z_t)), beta).value
    if (model, beta) in (("student", 0.0), ("teacher", 1.0)):
        assert ranks.divergence.isposinf().all() and exact.isposinf().all()
        return
    assert ((ranks.divergence - exact).abs() <= 16.0 * UNIT * (1.0 + exact)).all()
    assert ((ranks.entropy - entropy_of(z_s)).abs() <= 48.0 * UNIT).all()


@pytest.mark.parametrize("beta", [1e-3, 0.5, 1.0 - 1e-3])
@pytest.mark.parametrize("distance", [0.0, 1e-2, 3.0])
def test_a_mixed_divergence_is_free_of_the_rounding_of_probabilities(distance: float, beta: float) -> None:
    """Here they are off by 1e-5 of themselves, a hundred times more than a rounded log-sum-exp costs."""
    z_s, noise = logits()
    z_t = z_s + distance * noise
    q, p = z_s.softmax(-1) * (1.0 + 1e-5), z_t.softmax(-1) * (1.0 - 1e-5)
    m = beta * p + (1.0 - beta) * q
    sums = MixtureSums((q * (q / m).log()).sum(-1), (p * (p / m).log()).sum(-1), q.sum(-1), p.sum(-1))
    result, exact = mixed(sums, beta), divergence_of(z_s, z_t, beta).value
    assert (result.divergence >= 0.0).all()
    assert (
        (result.divergence - exact).abs() <= 1e-9 + 1e-4 * beta * (1.0 - beta) * distance * 1e-2 + 1e-6 * exact
    ).all()
    assert ((result.moment - divergence_moment(z_s, z_t, beta)).abs() <= 2.1e-5).all()


def divergence_moment(z_s: Tensor, z_t: Tensor, beta: float) -> Tensor:
    """KL(Q || M)."""
    q, p = z_s.softmax(-1), z_t.softmax(-1)
    return (q * (q / (beta * p + (1.0 - beta) * q)).log()).sum(-1)
