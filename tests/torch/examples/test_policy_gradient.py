# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The examples of reinforcement learning, and of TRL's GRPO trainer, in their short forms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples import grpo, policy_gradient
from examples._display import EXAMPLE_WIDTH
from examples.policy_gradient import Policy, answers_of
from nkilib import simulator
from nkilib.torch import TokenScores, token_scores
from nkilib.torch import trl as ours


def test_it_learns_and_agrees_with_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    assert policy_gradient.main(["--steps", "4"]) == 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines() if "Wrote" not in line) <= EXAMPLE_WIDTH
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


def test_it_learns_on_the_kernels_and_draws_the_reward(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = pytest.importorskip("trl.kernels.chunked_logprob", reason="TRL wants Python 3.11 or later")
    import huggingface_hub

    picture = tmp_path / "reward.png"
    with simulator.recording() as record, pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "_forward_tile", None)  # TRL's own code does not run
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        patch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True)  # if that was imported before
        assert grpo.main(["--quick", "--plot", str(picture)]) == 0
    assert sum(record.instruction_counts.values()) > 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines() if "Wrote" not in line) <= EXAMPLE_WIDTH
    assert "20 steps of 24 answers" in printed and "It learned" in printed
    first, last = printed.split("mean reward of 10 steps ")[1].split(".\n")[0].split(" -> ")
    assert float(last) >= 2.0 * float(first) > 0.0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("rewards", "learned"),
    [([0.1] * 10 + [0.2] * 10, True), ([0.1] * 10 + [0.19] * 10, False), ([0.2, 0.1], False), ([0.1, 0.3], True)],
)
def test_the_reward_has_to_double(rewards: list[float], learned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert grpo.report(grpo.make_console(), rewards) is learned
    assert ("It learned" in capsys.readouterr().out) is learned


def test_a_reward_is_the_share_of_good_words() -> None:
    assert grpo.reward(["w0 w8 w9", "", "w1 " * 12, "w16 " * 12]) == [2 / 12, 0.0, 0.0, 1.0]


def test_without_trl_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grpo, "find_spec", lambda name: None)
    monkeypatch.setattr(ours, "install", None)
    assert grpo.main(["--steps", "1"]) == 2
    assert "pip install 'trl==1.16.*'" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "steps"), [([], 40), (["--quick"], 20), (["--quick", "--steps", "7"], 7)])
def test_steps_of_grpo_are_those_asked_for(arguments: list[str], steps: int) -> None:
    assert grpo.parse_arguments(arguments).steps == steps


def test_no_step_of_grpo_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        grpo.parse_arguments(["--steps", "0"])
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err
