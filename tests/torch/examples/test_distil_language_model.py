# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The example of distillation, in its short form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples import distil_language_model
from examples._display import EXAMPLE_WIDTH
from examples._distillation_costs import QUICK_SHAPE, costs_of
from examples._language_training import Plan
from examples._transformer import LanguageModel
from examples.distil_language_model import FROM_LOGITS, FUSED, QUICK, QUICK_STUDENT_SIZE, Losses, main


@pytest.mark.parametrize("options", [[], ["--fused"]], ids=["from logits", "fused"])
def test_the_short_form_says_how_it_went(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "losses.png"
    assert main(["--quick", "--steps", "2", "--plot", str(plot), *options]) == 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines() if "Wrote" not in line) <= EXAMPLE_WIDTH
    for name in (distil_language_model.TEACHER, distil_language_model.FROM_TEXT, distil_language_model.FROM_TEACHER):
        assert f"{name}: " in printed
    assert plot.stat().st_size > 1000


def teacher_and_student() -> tuple[LanguageModel, LanguageModel]:
    torch.manual_seed(1)
    teacher = LanguageModel(50, QUICK.size)
    with torch.no_grad():
        teacher.output.weight.mul_(20.0)
    return teacher, LanguageModel(50, QUICK_STUDENT_SIZE)


@pytest.mark.parametrize("losses_from", [FROM_LOGITS, FUSED], ids=lambda item: item.name)
def test_a_student_comes_nearer_to_its_teacher(losses_from: Losses) -> None:
    teacher, student = teacher_and_student()
    loss = losses_from.of_teacher(teacher)
    words = torch.randint(50, (2, 32))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        result = loss(student, words, words)
        result.backward()
        optimizer.step()
        losses.append(float(result.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("name", ["text", "of_teacher"])
def test_the_fused_losses_are_those_of_logits(name: str) -> None:
    teacher, student = teacher_and_student()
    words = torch.randint(50, (2, 32))
    results = []
    for losses_from in (FROM_LOGITS, FUSED):
        loss = losses_from.text if name == "text" else losses_from.of_teacher(teacher)
        value = loss(student, words, words.roll(-1))
        results.append((value.detach(), *torch.autograd.grad(value, list(student.parameters()))))
    for result, other in zip(*results, strict=True):
        assert result.norm() > 0 and (result - other).norm() <= 1e-5 * result.norm()


def test_costs_are_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "costs.png"
    assert main(["--quick", "--costs", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines() if "Wrote" not in line) <= EXAMPLE_WIDTH
    assert all(f"{vocabulary:,} classes: from logits" in printed for vocabulary in QUICK_SHAPE.vocabularies)
    assert picture.stat().st_size > 1000


def test_memory_from_hidden_states_does_not_grow_with_the_vocabulary() -> None:
    first, second = costs_of(QUICK_SHAPE)
    assert second.vocabulary == 2 * first.vocabulary
    assert second.logits.mebibytes == 2 * first.logits.mebibytes == 2 * 4 * 256 * 1024 / 2**20
    assert second.hidden.mebibytes == first.hidden.mebibytes == 8 * 256 * 128 / 2**20
    for smaller, larger in ((first.logits, second.logits), (first.hidden, second.hidden)):
        assert 0 < smaller.milliseconds < larger.milliseconds


def test_sizes_of_the_plans_fit() -> None:
    assert Plan().size.context == distil_language_model.STUDENT_SIZE.context
    assert QUICK.size.context == QUICK_STUDENT_SIZE.context
