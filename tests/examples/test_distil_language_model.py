"""The example of distillation, in its short form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples import distil_language_model
from examples._language_training import Plan
from examples._transformer import LanguageModel
from examples.distil_language_model import QUICK, QUICK_STUDENT_SIZE, loss_of_teacher, main


def test_the_short_form_says_how_it_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "losses.png"
    assert main(["--quick", "--steps", "2", "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    for name in (distil_language_model.TEACHER, distil_language_model.FROM_TEXT, distil_language_model.FROM_TEACHER):
        assert f"{name}: " in printed
    assert plot.stat().st_size > 1000


def test_a_student_comes_nearer_to_its_teacher() -> None:
    torch.manual_seed(1)
    teacher = LanguageModel(50, QUICK.size)
    with torch.no_grad():
        teacher.output.weight.mul_(20.0)
    student = LanguageModel(50, QUICK_STUDENT_SIZE)
    loss = loss_of_teacher(teacher)
    words = torch.randint(50, (2, 32))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        found = loss(student, words, words)
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_sizes_of_the_plans_fit() -> None:
    assert Plan().size.context == distil_language_model.STUDENT_SIZE.context
    assert QUICK.size.context == QUICK_STUDENT_SIZE.context
