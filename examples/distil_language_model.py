# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A small transformer learns from a larger one: ``python -m examples.distil_language_model``.

The teacher is trained on English text first. Then two students of half its width see the same batches: one learns from
the text alone, the other from the teacher's distributions. With ``--fused`` the losses take hidden states and the
weights of the output layers, and no logits of either model are computed. On the CPU the kernels are simulated.

``--costs FILE.png`` trains nothing: it draws memory and modelled time of loss and gradient for a large vocabulary, from
logits and from hidden states.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from examples._corpus import QUICK_WORDS, Corpus, read_corpus
from examples._display import EXAMPLE_WIDTH, counted, heading, make_console, takes
from examples._distillation_costs import QUICK_SHAPE, SHAPE, costs_of, draw_costs
from examples._language_training import Learner, LossFunction, Plan
from examples._learning import LAST_STEPS
from examples._loss_plot import draw_losses, fault_of, has_matplotlib
from examples._transformer import LanguageModel, Size
from nkilib.torch import cross_entropy, distillation_loss, linear_cross_entropy, linear_distillation_loss

TEMPERATURE = 2.0
TEACHER, FROM_TEXT, FROM_TEACHER = "teacher", "student, from text", "student, from the teacher"
# Seconds on two cores: of the start, of a step of all three trainings, of a step with --quick, and of --costs.
_START, _STEP, _QUICK_STEP, _COSTS, _QUICK_COSTS = 5.0, 2.1, 0.8, 270.0, 5.0
STUDENT_SIZE = Size(width=64, heads=2, blocks=1)
QUICK = Plan(steps=12, batch_size=2, learning_rate=3e-3, size=Size(context=32, width=32, heads=2, blocks=1))
QUICK_STUDENT_SIZE = Size(context=32, width=16, heads=2, blocks=1)


def text_loss(model: LanguageModel, words: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of the words that follow."""
    return cross_entropy(model(words), following, class_dim=-1)


def loss_of_teacher(teacher: LanguageModel) -> LossFunction:
    """Return a loss: the mean divergence from a teacher's distributions, independent of the words that follow."""

    def loss(model: LanguageModel, words: Tensor, following: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logits = teacher(words)
        return distillation_loss(
            model(words), teacher_logits, labels=following, temperature=TEMPERATURE, temperature_squared=True
        )

    return loss


def fused_text_loss(model: LanguageModel, words: Tensor, following: Tensor) -> Tensor:
    """Return :func:`text_loss` from hidden states [batch, length, width], without logits in memory."""
    return linear_cross_entropy(model.hidden(words), model.output.weight, following)


def fused_loss_of_teacher(teacher: LanguageModel) -> LossFunction:
    """Return :func:`loss_of_teacher` from the hidden states of both models."""

    def loss(model: LanguageModel, words: Tensor, following: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_hidden = teacher.hidden(words)
        return linear_distillation_loss(
            model.hidden(words),
            model.output.weight,
            teacher_hidden,
            teacher.output.weight.detach(),
            following,
            temperature=TEMPERATURE,
            temperature_squared=True,
        )

    return loss


@dataclass(frozen=True)
class Losses:
    """The loss functions of teacher and students.

    Attributes:
        name: the function of nkilib.torch that the second student learns with.
        text: the loss of a text.
        of_teacher: a function from a teacher to the loss for its student.
    """

    name: str
    text: LossFunction
    of_teacher: Callable[[LanguageModel], LossFunction]


FROM_LOGITS = Losses("distillation_loss", text_loss, loss_of_teacher)
FUSED = Losses("linear_distillation_loss", fused_text_loss, fused_loss_of_teacher)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None for the command line of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.distil_language_model",
        description="Distil a transformer into a smaller one with nkilib.torch.distillation_loss.",
    )
    parser.add_argument(
        "--fused", action="store_true", help="output layers and loss in one, nkilib.torch.linear_distillation_loss"
    )
    parser.add_argument(
        "--costs", type=Path, metavar="FILE.png", help="train nothing; draw memory and modelled time of both forms"
    )
    parser.add_argument("--steps", type=int, help=f"of each training (default {Plan.steps}, or {QUICK.steps})")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the loss curves (needs matplotlib)")
    parser.add_argument("--quick", action="store_true", help="tiny models on a few pages, for a first look")
    options = parser.parse_args(arguments)
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")
    for name, path in (("--plot", options.plot), ("--costs", options.costs)):
        if path and not has_matplotlib():
            parser.error(f"{name} needs matplotlib: pip install '.[plot]' in the checkout")
        if path and (fault := fault_of(path)):
            parser.error(f"{name} {fault}")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    """The sizes of the teacher, and the steps of each training."""
    plan = QUICK if options.quick else Plan()
    return plan if options.steps is None else replace(plan, steps=options.steps)


def seconds_of(options: argparse.Namespace) -> float:
    """The time that the program takes on the simulator."""
    if options.costs:
        return _QUICK_COSTS if options.quick else _COSTS
    return _START + plan_of(options).steps * (_QUICK_STEP if options.quick else _STEP)


def train(corpus: Corpus, plan: Plan, loss_function: LossFunction) -> tuple[LanguageModel, list[float]]:
    """Train a model; return it with its cross-entropy on the text at every step, before the step."""
    learner = Learner(loss_function, corpus.vocabulary_size, plan, torch.device("cpu"))
    losses = []
    for words, following in plan.batches(corpus):
        with torch.no_grad():
            losses.append(float(text_loss(learner.model, words, following)))
        learner.step(words, following)
    return learner.model, losses


def report(console: Console, losses: dict[str, list[float]]) -> None:
    """Print the mean of the last steps of each training."""
    for name, of_steps in losses.items():
        last = of_steps[-LAST_STEPS:]
        mean = math.fsum(last) / len(last)
        console.print(f"{name}: {mean:.4f} nats of cross-entropy, mean of the last {counted(len(last), 'step')}.")


def show_costs(console: Console, options: argparse.Namespace) -> None:
    """Draw the costs of both forms, and print a line for each vocabulary."""
    console.print(
        heading(
            "A loss of distillation from logits and from hidden states: modelled, not measured",
            "Shows memory and time of loss and gradients on two cores of trn2; trains nothing.",
            takes(seconds_of(options)),
        )
    )
    costs = costs_of(QUICK_SHAPE if options.quick else SHAPE)
    for cost in costs:
        console.print(cost.line(), highlight=False)
    draw_costs(options.costs, costs)
    console.print(f"Wrote {options.costs}.", soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train all three, or draw what a loss costs; returns 0."""
    options = parse_arguments(arguments)
    console = make_console(EXAMPLE_WIDTH)
    if options.costs:
        show_costs(console, options)
        return 0
    losses_from = FUSED if options.fused else FROM_LOGITS
    plan = plan_of(options)
    of_student = replace(plan, size=QUICK_STUDENT_SIZE if options.quick else STUDENT_SIZE)
    corpus = read_corpus(limit=QUICK_WORDS if options.quick else None)
    console.print(
        heading(
            f"A transformer learns from a larger one with nkilib.torch.{losses_from.name}",
            "Shows a student that learns from a teacher, beside one that learns from the text.",
            f"Text: pydoc_data.topics of this Python, {len(corpus) + 1:,} words, {corpus.vocabulary_size:,} distinct.",
            f"Teacher: width {plan.size.width}; students: width {of_student.size.width}; temperature {TEMPERATURE}.",
            "Device: cpu, kernels simulated, not hardware.",
            takes(seconds_of(options)),
        )
    )
    start = time.perf_counter()
    losses: dict[str, list[float]] = {}
    teacher, losses[TEACHER] = train(corpus, plan, losses_from.text)
    _, losses[FROM_TEXT] = train(corpus, of_student, losses_from.text)
    _, losses[FROM_TEACHER] = train(corpus, of_student, losses_from.of_teacher(teacher))
    report(console, losses)
    if options.plot:
        marks = {
            "uniform guess, ln V": math.log(corpus.vocabulary_size),
            "unigram entropy": corpus.unigram_entropy(),
        }
        draw_losses(options.plot, losses, marks)
        console.print(f"Wrote {options.plot}.", soft_wrap=True)
    console.print(f"{time.perf_counter() - start:.1f} s in all.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
