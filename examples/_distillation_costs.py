# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cost of loss and gradient of a distillation, from logits and from hidden states: memory and modelled time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nkilib import simulator
from nkilib.experimental.loss import (
    choose_linear_distillation_tiling,
    distillation_backward,
    distillation_forward,
    linear_distillation_backward,
    linear_distillation_forward,
)
from nkilib.experimental.loss.linear.tiling import backward_bytes

CORES = 2
_BFLOAT16_BYTES = 2
_MICROSECONDS_PER_MILLISECOND = 1e3
# Vectors [N] in float32 that the backward of either form takes: statistics of both models, and the upstream gradient.
_VECTORS = 6
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """A student and a teacher in bfloat16.

    Attributes:
        positions: N.
        student, teacher: widths of the hidden states, Ds and Dt.
        vocabularies: every V.
    """

    positions: int
    student: int
    teacher: int
    vocabularies: tuple[int, ...]


# Of Qwen3 0.6B and 1.7B, up to their vocabulary.
SHAPE = Problem(2048, 1024, 2048, (32128, 64000, 100352, 151936))
QUICK_SHAPE = Problem(256, 128, 256, (1024, 2048))


class Cost(NamedTuple):
    """The cost of one form.

    Attributes:
        mebibytes: HBM in addition to hidden states, weights and their gradients.
        milliseconds: modelled time of loss and gradients on two cores of trn2.
    """

    mebibytes: float
    milliseconds: float


class Costs(NamedTuple):
    """The costs of both forms for a vocabulary.

    Attributes:
        vocabulary: V.
        logits: the cost from logits, whose gradient is written over them.
        hidden: the cost from hidden states.
    """

    vocabulary: int
    logits: Cost
    hidden: Cost

    def line(self) -> str:
        """A line of text with both costs, the times as modelled."""
        forms = (
            f"{name} {cost.mebibytes:,.0f} MiB, {cost.milliseconds:.1f} ms"
            for name, cost in (("from logits", self.logits), ("from hidden states", self.hidden))
        )
        return f"{self.vocabulary:,} classes: {'; '.join(forms)}."


def costs_of(problem: Problem) -> list[Costs]:
    """The costs of each vocabulary."""
    return [_costs(problem, vocabulary) for vocabulary in problem.vocabularies]


def _costs(problem: Problem, vocabulary: int) -> Costs:
    positions, student, teacher = problem.positions, problem.student, problem.teacher
    operands = _tensors((positions, student), (vocabulary, student), (positions, teacher), (vocabulary, teacher))
    tiling = choose_linear_distillation_tiling(positions, student, teacher, vocabulary, "bfloat16", "backward")
    vectors = [simulator.spec((positions,), "float32")] * _VECTORS
    forward = simulator.profile(linear_distillation_forward[CORES], *operands)
    backward = simulator.profile(linear_distillation_backward[CORES], *operands, *vectors)

    # From logits, products of output layers run at their bound: those of both models, dX and dW of the student.
    products = forward.bounds_us["tensor"] * (1.0 + 2.0 * student / (student + teacher))
    logits = _tensors((positions, vocabulary), (positions, vocabulary))
    of_logits = simulator.profile(distillation_forward[CORES], *logits).time_us
    of_logits += simulator.profile(distillation_backward[CORES], *logits, *vectors).time_us
    return Costs(
        vocabulary,
        Cost(
            2 * _BFLOAT16_BYTES * positions * vocabulary / 2**20, (products + of_logits) / _MICROSECONDS_PER_MILLISECOND
        ),
        Cost(
            backward_bytes(positions, student, *tiling, cores=CORES) / 2**20,
            (forward.time_us + backward.time_us) / _MICROSECONDS_PER_MILLISECOND,
        ),
    )


def _tensors(*shapes: Shape) -> list[simulator.Spec]:
    return [simulator.spec(shape, "bfloat16") for shape in shapes]


def draw_costs(path: Path, costs: Sequence[Costs]) -> None:
    """Write a picture of memory and modelled time over the vocabulary, both forms in either panel.

    Raises:
        ImportError: without matplotlib, which the extra ``plot`` brings.
    """
    from matplotlib.figure import Figure  # optional, and slow to import

    figure = Figure(figsize=(9, 4), layout="constrained")
    of_memory, of_time = figure.subplots(1, 2)
    vocabularies = [cost.vocabulary for cost in costs]
    for name, marker, forms in (
        ("from logits", "o", [cost.logits for cost in costs]),
        ("from hidden states", "s", [cost.hidden for cost in costs]),
    ):
        of_memory.plot(vocabularies, [form.mebibytes for form in forms], marker=marker, label=name)
        of_time.plot(vocabularies, [form.milliseconds for form in forms], marker=marker, label=name)
    of_memory.set(xlabel="classes", ylabel="MiB beside operands and gradients", yscale="log")
    of_time.set(xlabel="classes", ylabel="ms of loss and gradients, modelled", ylim=(0, None))
    for axes in (of_memory, of_time):
        axes.legend()
    figure.savefig(path)
