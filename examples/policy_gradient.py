# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Reinforcement learning with log-probability and entropy from the kernels, on this computer's CPU:

    python -m examples.policy_gradient

A policy answers each of a few questions with a word, and is rewarded if the word is among the question's good words. It
learns by the clipped surrogate of PPO (arXiv 1707.06347) with an entropy bonus; log-probabilities and entropies come
from ``nkilib.torch.token_scores``. For comparison, the same policy learns from the same answers with PyTorch's
log-probabilities and entropies.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples._curve import curve_line, progress_bar, shown_steps
from examples._display import EXAMPLE_WIDTH, counted, heading, make_console, takes
from examples._steps import parse_steps
from nkilib.nki import NOT_SIMULATED, SIMULATED
from nkilib.torch import TokenScores, token_scores

QUESTIONS, WORDS, HIDDEN = 16, 512, 32
# One word of eight is good, another one for each question.
GOOD_SHARE = 8
ANSWERS = 32
# Updates from the same answers: in the second one the policy is not that any more which gave them.
UPDATES = 2
CLIP = 0.2
# What a nat of entropy is worth.
ENTROPY_BONUS = 1e-3
LEARNING_RATE = 10.0
SEED = 0
STEPS, QUICK_STEPS = 20, 3
# Seconds on two cores: of the start, and of a step.
_START, _STEP = 4.0, 0.05
# Nats that losses and entropies may be apart: both are float32, and a step moves the weights by what rounding leaves.
LARGEST_DIFFERENCE = 1e-4

Scores = Callable[[Tensor, Tensor], TokenScores]


@dataclass(frozen=True)
class Answers:
    """Answers of a policy: ``words`` [QUESTIONS, ANSWERS], their log-probabilities when drawn, and their rewards."""

    words: Tensor
    logprob: Tensor
    reward: Tensor


class Policy(nn.Module):
    """Logits [QUESTIONS, WORDS] of the answers to every question."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(SEED)
        self.questions = nn.Parameter(torch.randn(QUESTIONS, HIDDEN, generator=generator))
        self.output = nn.Parameter(0.1 * torch.randn(WORDS, HIDDEN, generator=generator))

    def forward(self) -> Tensor:
        return self.questions @ self.output.T


def scores_of_pytorch(logits: Tensor, words: Tensor) -> TokenScores:
    """Compute the results of ``token_scores`` with PyTorch's operators."""
    every = functional.log_softmax(logits, -1)
    entropy = -(every.exp() * every).sum(-1)
    return TokenScores(every.gather(-1, words[..., None])[..., 0], entropy)


@torch.no_grad()
def answers_of(policy: Policy, good: Tensor, generator: torch.Generator) -> Answers:
    """Draw words from the policy's distribution; ``good`` [QUESTIONS, WORDS] is 1 for rewarded words, else 0."""
    logits = policy()
    words = torch.multinomial(logits.softmax(-1), ANSWERS, replacement=True, generator=generator)
    logprob = token_scores(_repeated(logits), words, entropy=False).logprob
    return Answers(words, logprob, good.gather(1, words))


def learn(policy: Policy, scores_of: Scores, answers: Answers) -> tuple[float, float]:
    """One update; returns the loss and the mean entropy before it, in nats."""
    scores = scores_of(_repeated(policy()), answers.words)
    advantage = answers.reward - answers.reward.mean(1, keepdim=True)
    ratio = torch.exp(scores.logprob - answers.logprob)
    clipped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
    loss = -surrogate - ENTROPY_BONUS * scores.entropy.mean()
    loss.backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            assert parameter.grad is not None
            parameter.sub_(LEARNING_RATE * parameter.grad)
            parameter.grad = None
    return loss.item(), scores.entropy.mean().item()


def _repeated(logits: Tensor) -> Tensor:
    """Repeat the logits to [QUESTIONS, ANSWERS, WORDS]: a row for each answer, like a language model's positions."""
    return logits[:, None].expand(-1, ANSWERS, -1).contiguous()


def seconds_of(steps: int) -> float:
    """The time that the training takes on the simulator."""
    return _START + steps * _STEP


def train(steps: int) -> bool:
    """Train both policies on the same answers, show reward and entropy, and return whether the two agree."""
    console, generator = make_console(EXAMPLE_WIDTH), torch.Generator().manual_seed(SEED)
    good = (torch.rand(QUESTIONS, WORDS, generator=generator) < 1.0 / GOOD_SHARE).float()
    policy, twin = Policy(), Policy()
    console.print(
        heading(
            "A policy that is rewarded for good words: simulated, not hardware",
            "Shows log-probabilities and entropies of nkilib.torch.token_scores in PPO's loss.",
            f"{QUESTIONS} questions, {ANSWERS} answers to each, of {WORDS} words; one word in {GOOD_SHARE} is good.",
            f"{counted(steps, 'step')} of {UPDATES} updates; the bar is the entropy, of nkilib beside PyTorch.",
            takes(seconds_of(steps)),
        )
    )
    differences, rewards, shown, uniform = [], [], shown_steps(steps), math.log(WORDS)
    with progress_bar(console) as progress:
        task = progress.add_task("training", total=steps, loss=uniform)
        for step in range(1, steps + 1):
            answers = answers_of(policy, good, generator)
            for _ in range(UPDATES):
                ours, entropy = learn(policy, token_scores, answers)
                theirs, their_entropy = learn(twin, scores_of_pytorch, answers)
                differences += [abs(ours - theirs), abs(entropy - their_entropy)]
            rewards.append(answers.reward.mean().item())
            progress.update(task, advance=1, loss=ours)
            if step in shown:
                line = {"entropy": entropy, "PyTorch's": their_entropy, "reward": rewards[-1]}
                console.print(curve_line(step, line, uniform))
    largest = torch.tensor(differences).max().item()  # which is NaN if one is; Python's max may pass over it
    agrees = largest <= LARGEST_DIFFERENCE
    verdict = "[green]Losses and entropies agree[/]" if agrees else "[bold red]Losses or entropies differ[/]"
    console.print(f"{verdict}: at most {largest:.1e} nats apart. Reward {rewards[0]:.3f} -> {rewards[-1]:.3f}.")
    return agrees


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None for the command line of this process."""
    return parse_steps(
        arguments,
        "python -m examples.policy_gradient",
        "Train a small policy by rewards, with log-probability and entropy from the kernels.",
        STEPS,
        QUICK_STEPS,
        quick="few steps",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; returns 0, 1 if it does not agree with PyTorch, or 2 where there is no simulator."""
    options = parse_arguments(arguments)
    if not SIMULATED:
        make_console(EXAMPLE_WIDTH).print(NOT_SIMULATED)
        return 2
    return 0 if train(options.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
