# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The example of reinforcement learning, in its short form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from examples import policy_gradient
from examples.policy_gradient import Policy, answers_of
from nkilib.torch import TokenScores, token_scores


def test_it_learns_and_agrees_with_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    assert policy_gradient.main(["--steps", "4"]) == 0
    printed = capsys.readouterr().out
    assert "4 steps of 2 updates" in printed and "Losses and entropies agree" in printed
    first, last = printed.rsplit("Reward ", 1)[1].strip().rstrip(".").split(" -> ")
    assert float(last) > float(first) + 0.05


def _of_the_word_before(logits: Tensor, target: Tensor) -> TokenScores:
    return token_scores(logits, target.roll(1, -1))


def _without_entropy(logits: Tensor, target: Tensor) -> TokenScores:
    return TokenScores(token_scores(logits, target).logprob, torch.full(target.shape, torch.nan))


@pytest.mark.parametrize("wrong", [_of_the_word_before, _without_entropy])
def test_it_notices_wrong_scores(wrong: Callable[..., TokenScores], monkeypatch: pytest.MonkeyPatch) -> None:
    good = torch.zeros(policy_gradient.QUESTIONS, policy_gradient.WORDS)
    good[:, ::8] = 1.0
    answers = answers_of(Policy(), good, torch.Generator().manual_seed(1))
    monkeypatch.setattr(policy_gradient, "answers_of", lambda *_: answers)
    monkeypatch.setattr(policy_gradient, "token_scores", wrong)
    assert not policy_gradient.train(1)


@pytest.mark.parametrize(("arguments", "steps"), [([], 20), (["--quick"], 3), (["--quick", "--steps", "7"], 7)])
def test_steps_are_those_asked_for(arguments: list[str], steps: int) -> None:
    assert policy_gradient.parse_arguments(arguments).steps == steps


def test_no_step_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        policy_gradient.parse_arguments(["--steps", "0"])
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err
