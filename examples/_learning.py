# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second half of the demo: a bigram model is trained twice, with the kernels and in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Console, RenderableType

from examples._arithmetic import Float64Arithmetic, KernelArithmetic
from examples._corpus import Corpus
from examples._curve import curve_line, progress_bar, shown_steps
from examples._display import plain_table
from examples._training import Schedule, Trainee

# Steps that the loss "of the last steps" is averaged over.
LAST_STEPS = 20
# Nats that the two trainings may end apart: rounding moves a float32 loss by some 1e-6, and a convex model keeps it so.
LARGEST_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Losses:
    """Mean losses of one training, in nats.

    Attributes:
        first: loss of the first batch, where every word is equally likely.
        last: mean loss of the last ``last_steps`` batches, each before its step.
        text: loss of the whole text after the last step.
        seconds: wall-clock time of the steps.
    """

    first: float
    last: float
    last_steps: int
    text: float
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The losses of the two trainings."""

    kernels: Losses
    float64: Losses

    @property
    def agrees(self) -> bool:
        """Whether the kernels' training ended where float64 did."""
        return abs(self.kernels.text - self.float64.text) <= LARGEST_DIFFERENCE


def train(console: Console, corpus: Corpus, schedule: Schedule) -> Outcome:
    """Train both models side by side on the same batches, showing the progress on ``console``."""
    kernels = Trainee(KernelArithmetic(corpus.vocabulary_size), corpus.vocabulary_size, schedule)
    float64 = Trainee(Float64Arithmetic(), corpus.vocabulary_size, schedule)
    steps = schedule.steps(corpus)
    shown = shown_steps(steps)
    uniform = math.log(corpus.vocabulary_size)
    with progress_bar(console) as progress:
        task = progress.add_task("training", total=steps, loss=uniform)
        for step, (previous, following) in enumerate(schedule.batches(corpus), start=1):
            loss = kernels.step(previous, following)
            exact = float64.step(previous, following)
            progress.update(task, advance=1, loss=loss)
            if step in shown:
                console.print(curve_line(step, {"loss": loss, "float64": exact}, uniform))
    return Outcome(_losses(kernels, corpus), _losses(float64, corpus))


def outcome_table(outcome: Outcome, corpus: Corpus) -> RenderableType:
    """Return a table of the losses of both trainings, with three marks to compare them with."""
    table = plain_table("Mean loss in nats")
    table.add_column("")
    table.add_column("kernels", justify="right")
    table.add_column("float64", justify="right")
    table.add_column("difference", justify="right")
    rows = {
        "first step": (outcome.kernels.first, outcome.float64.first),
        f"last {outcome.kernels.last_steps} steps": (outcome.kernels.last, outcome.float64.last),
        "whole text, after training": (outcome.kernels.text, outcome.float64.text),
    }
    for name, (ours, exact) in rows.items():
        table.add_row(name, f"{ours:.7f}", f"{exact:.7f}", f"{ours - exact:+.1e}")
    table.add_row("seconds of training", f"{outcome.kernels.seconds:.1f}", f"{outcome.float64.seconds:.1f}")
    table.add_section()
    table.add_row("to compare: uniform guess, ln V", "", f"{math.log(corpus.vocabulary_size):.7f}", style="dim")
    table.add_row("unigram entropy", "", f"{corpus.unigram_entropy():.7f}", style="dim")
    table.add_row("the least a bigram model can reach", "", f"{corpus.bigram_entropy():.7f}", style="dim")
    return table


def _losses(trainee: Trainee, corpus: Corpus) -> Losses:
    last = trainee.step_losses[-LAST_STEPS:]
    return Losses(
        first=trainee.step_losses[0],
        last=math.fsum(last) / len(last),
        last_steps=len(last),
        text=trainee.text_loss(corpus),
        seconds=trainee.seconds,
    )
