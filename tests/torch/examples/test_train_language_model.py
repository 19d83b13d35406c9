# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The training of a transformer, as a user runs it, in its short form."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import train_language_model
from examples._corpus import read_corpus
from examples._display import EXAMPLE_WIDTH, make_console
from examples._language_training import Learner, Plan
from examples._transformer import LanguageModel, Size
from nkilib import simulator
from nkilib.torch import cross_entropy
from tests.torch.operator_log import OperatorLog


def test_the_quick_form_trains_with_the_kernels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "loss.png"
    with simulator.recording() as record:
        assert train_language_model.main(["--quick", "--plot", str(picture)]) == 0
    assert sum(record.instruction_counts.values()) > 0
    shown = capsys.readouterr().out
    curve = [float(loss) for loss in re.findall(r"step +\d+ +loss (\d\.\d{6})", shown)]
    assert len(curve) == 11 and curve[-1] < curve[0] - 0.3
    assert "Model: 1 block of width 32, context 32; 12 steps of 2 windows" in shown
    assert "uniform guess, ln V: " in shown and "unigram entropy: " in shown
    assert "not hardware" in shown and "F.cross_entropy" not in shown
    assert max(map(len, shown.splitlines())) <= EXAMPLE_WIDTH and "\x1b" not in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("fused", "function"), [([], "cross_entropy"), (["--fused"], "linear_cross_entropy")])
def test_compared_it_follows_pytorch(fused: list[str], function: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_language_model.main(["--quick", "--compare", "--steps", "6", *fused]) == 0
    shown = capsys.readouterr().out
    assert "The training follows that with F.cross_entropy" in shown
    assert f"A transformer learns English with nkilib.torch.{function} " in shown


def test_fused_no_logits_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(50, Size(context=8, width=16, heads=2, blocks=1))
    words, following = (torch.randint(50, (2, 8)) for _ in range(2))
    monkeypatch.setattr(model.output, "forward", None)  # nothing may call the output layer
    with OperatorLog() as log:
        train_language_model.fused_loss(model, words, following).backward()
    assert not [shape for _, shape in log.calls if shape is not None and shape[-1:] == (50,)]
    assert model.output.weight.grad is not None and model.output.weight.grad.any()


@pytest.mark.parametrize(
    "change", [lambda loss: loss * 1.01, lambda loss: 2.0 * loss.detach() - loss], ids=["loss", "gradient"]
)
def test_compared_it_notices_a_wrong_loss(
    change: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        train_language_model,
        "cross_entropy",
        lambda *arguments, **options: change(cross_entropy(*arguments, **options)),
    )
    assert train_language_model.main(["--quick", "--compare", "--steps", "4"]) == 1
    assert "The training leaves that with F.cross_entropy" in capsys.readouterr().out


def test_compared_a_nan_at_a_later_step_does_not_agree() -> None:
    losses = {train_language_model.OURS: [2.0, math.nan, 1.0], train_language_model.PYTORCH: [2.0, 1.5, 1.0]}
    assert not train_language_model.report(make_console(), losses)


@pytest.mark.parametrize("device", ["xla", "neuron"])
def test_without_the_device_it_says_what_is_missing(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_language_model.main(["--quick", "--device", device]) == 2
    assert capsys.readouterr().out.startswith(f"--device {device} needs the Neuron SDK"), "before anything else"


def test_without_the_simulator_the_cpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_language_model, "SIMULATED", False)
    assert train_language_model.main(["--quick"]) == 2
    assert "set NKILIB_BACKEND=simulator" in " ".join(capsys.readouterr().out.split())


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message about arguments that are refused before anything else is shown."""
    with pytest.raises(SystemExit) as ended:
        train_language_model.main(arguments)
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    return shown.err


def test_steps_are_at_least_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--steps must be at least 1, got 0" in refusal(capsys, "--steps", "0")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("", "must name a file, got the directory '{root}': say '{root}/loss.png'"),
        (
            "absent/loss.png",
            "must name a file in an existing directory, got '{root}/absent/loss.png': make '{root}/absent'",
        ),
        ("loss.foo", "must end in a format that matplotlib writes, got '{root}/loss.foo': choose one of ."),
        ("loss", "must end in a format that matplotlib writes, got '{root}/loss': choose one of "),
        ("loss.pgf", "must end in a format that matplotlib writes, got '{root}/loss.pgf': choose one of "),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_training(
    file: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--plot " + message.format(root=tmp_path) in refusal(capsys, "--quick", "--plot", str(tmp_path / file))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["loss.svg", "loss.PNG"])
def test_a_picture_may_have_any_format_of_matplotlib(file: str, tmp_path: Path) -> None:
    assert train_language_model.parse_arguments(["--plot", str(tmp_path / file)]).plot == tmp_path / file


def test_a_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(train_language_model, "has_matplotlib", lambda: False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # nothing may ask for its formats
    assert "--plot needs matplotlib: pip install '.[plot]'" in refusal(capsys, "--plot", "loss.png")


def test_no_position_sees_the_words_that_it_is_to_predict() -> None:
    torch.manual_seed(0)
    model = LanguageModel(50, Size(context=8, width=16, heads=2, blocks=2))
    words = torch.randint(50, (2, 8))
    changed = words.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 50
    before, after = model(words), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_batches_are_windows_of_the_text_and_repeat() -> None:
    corpus = read_corpus(limit=100)
    plan = Plan(steps=3, batch_size=4, size=Size(context=8))
    batches = list(plan.batches(corpus))
    assert len(batches) == 3
    for (words, following), (again, _) in zip(batches, plan.batches(corpus), strict=True):
        assert words.shape == following.shape == (4, 8)
        assert torch.equal(words[:, 1:], following[:, :-1]) and torch.equal(words, again)
    with pytest.raises(ValueError, match="must have a window of 200 words, got 99"):
        next(Plan(size=Size(context=200)).batches(corpus))


def test_learners_start_with_the_same_parameters() -> None:
    plan = Plan(size=Size(context=8, width=16, heads=2, blocks=1))
    first, second = (
        Learner(train_language_model.our_loss, 50, plan, torch.device("cpu")).model.state_dict() for _ in range(2)
    )
    assert all(torch.equal(value, second[name]) for name, value in first.items())
