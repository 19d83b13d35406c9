# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``token_scores`` against log-softmax and entropy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch import TokenScores, token_scores
from tests.torch.fake_group import two_ranks
from tests.torch.formula import capped, entropy_of
from tests.torch.inputs import CLASSES, DTYPES, gradient_of, make_logits, make_probabilities, make_targets
from tests.torch.operator_log import OperatorLog
from tests.torch.telling import assert_gradient, assert_loss

SHAPE = (2, 5)
X, T = make_logits(*SHAPE, CLASSES), make_targets(*SHAPE)
# The largest distance of a logit from the maximum, plus log V.
MAGNITUDE = 20.0


def exact_scores(
    x: Tensor, target: Tensor, softcap: float | None, ignored: int, temperature: float = 1.0
) -> TokenScores:
    z = capped(x, softcap, temperature)
    counts = target != ignored
    logprob = z.log_softmax(-1).gather(-1, torch.where(counts, target, 0)[..., None])[..., 0]
    return TokenScores(torch.where(counts, logprob, 0.0), entropy_of(z))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("softcap", "ignored", "temperature"), [(None, -100, 1.0), (None, 3, 0.7), (4.0, 3, 1.0), (4.0, 3, 1.6)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_and_gradient_are_those_of_float64(
    dtype: torch.dtype, softcap: float | None, ignored: int, temperature: float, inplace: bool
) -> None:
    leaf = X.clone().to(dtype).requires_grad_()
    target = make_targets(*SHAPE, ignored=ignored).to(torch.int32)
    x = leaf.detach().double().requires_grad_()
    expected = exact_scores(x, target.long(), softcap, ignored, temperature)
    logits = 1.0 * leaf
    options: dict[str, Any] = {"ignore_index": ignored, "logit_softcap": softcap, "temperature": temperature}
    scores = token_scores(logits, target, **options, inplace=inplace)
    assert_loss(scores.logprob.detach(), expected.logprob.detach(), MAGNITUDE)
    assert_loss(scores.entropy.detach(), expected.entropy.detach(), MAGNITUDE)
    upstream = make_logits(2, *SHAPE, seed=9)
    total, exact_total = (
        (upstream[0] * item.logprob).sum() + (upstream[1] * item.entropy).sum() for item in (scores, expected)
    )
    gradient, exact = gradient_of(total, leaf), gradient_of(exact_total, x)
    assert_gradient(gradient.flatten(0, 1), exact.flatten(0, 1), 10.0 * upstream.abs().max().item())
    assert torch.equal(logits, gradient) == inplace


def test_one_pass_over_the_logits_gives_both() -> None:
    with OperatorLog() as log:
        token_scores(X, T)
    kernels = [name for name in log.names if name.startswith("nkilib::")]
    assert kernels == ["nkilib::cross_entropy_forward"]
    assert all(shape is None or len(shape) < 3 for _, shape in log.calls[1:]), "nothing of the size of the logits"


def test_entropy_may_be_left_out() -> None:
    scores = token_scores(X, T, entropy=False)
    assert torch.equal(scores.logprob, token_scores(X, T).logprob)
    assert scores.entropy.shape == (0,)


def test_ignored_positions_have_a_positive_zero() -> None:
    scores = token_scores(X, torch.full(SHAPE, -100))
    assert torch.equal(scores.logprob.signbit(), torch.zeros(SHAPE, dtype=torch.bool))
    assert (scores.entropy > 0.0).all()


def test_a_full_graph_gives_equal_results() -> None:
    def total(x: Tensor) -> Tensor:
        scores = token_scores(2.0 * x, T)
        return scores.logprob.sum() + scores.entropy.sum()

    leaf = X.clone().requires_grad_()
    expected, actual = total(leaf), torch.compile(total, backend="aot_eager", fullgraph=True)(leaf)
    assert torch.equal(expected, actual)
    assert torch.equal(gradient_of(expected, leaf), gradient_of(actual, leaf))


REFUSED: dict[str, tuple[type[Exception], Callable[[], Any], str]] = {
    "probabilities": (
        RuntimeError,
        lambda: token_scores(X[0], make_probabilities(*X[0].shape)),
        "token_scores: expected target dtype to be an integer type, but got torch.float32; probabilities have no",
    ),
    "sizes without a group": (
        ValueError,
        lambda: token_scores(X, T, shard_sizes=[6, 5]),
        "which classes the ranks of a group have, got no group; pass group, or slice the logits",
    ),
    "another shape": (
        ValueError,
        lambda: token_scores(X, T[:1]),
        r"token_scores: .* batch_size \(2\) to match target batch_size \(1\)",
    ),
    "out of range": (IndexError, lambda: token_scores(X, T + CLASSES), "Target 1[0-9] is out of bounds"),
    "a leaf in place": (
        RuntimeError,
        lambda: token_scores(X.clone().requires_grad_(), T, inplace=True),
        "token_scores: .* would overwrite a leaf that requires grad",
    ),
    "float64": (TypeError, lambda: token_scores(X.double(), T), r"token_scores: .* pass logits.float\(\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_refuses(case: str) -> None:
    error, call, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


def test_a_group_has_the_vocabulary_in_shards() -> None:
    """This rank has all classes and the other one, a pretended one, none."""
    with two_ranks():
        group = torch.distributed.group.WORLD
        scores = token_scores(X, T, group, shard_sizes=[CLASSES, 0])
    expected = token_scores(X, T)
    assert torch.equal(scores.logprob, expected.logprob)
    torch.testing.assert_close(scores.entropy, expected.entropy)
