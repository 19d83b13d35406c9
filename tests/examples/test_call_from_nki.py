# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernel that calls ours, as a user runs it, on small sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples import call_from_nki

SMALL = ["--width", "5", "--positions", "3"]


@pytest.mark.parametrize("vocabulary", [2, 512, 700, 9000])
def test_it_agrees_with_numpy(vocabulary: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_from_nki.main([*SMALL, "--vocabulary", str(vocabulary)]) == 0
    shown = capsys.readouterr().out
    assert f"weight [5, {vocabulary}]" in shown and "simulator" in shown
    assert "The results agree with float64." in shown


@pytest.mark.parametrize("wrong", [0, 1], ids=["loss", "gradient"])
def test_it_notices_wrong_results(
    wrong: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = call_from_nki.output_layer_loss

    def changed(*arguments: np.ndarray) -> Any:
        results = list(right(*arguments))
        results[wrong] = results[wrong] * np.float32(1.001)
        return results

    monkeypatch.setattr(call_from_nki, "output_layer_loss", changed)
    assert call_from_nki.main([*SMALL, "--vocabulary", "600"]) == 1
    assert "The results differ." in capsys.readouterr().out


def test_help_says_what_each_size_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_from_nki.main(["--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for meaning in ("width of the model, 1 to 128", "words to predict, 1 to 128", "words to choose from, 2 to 524288"):
        assert f"N {meaning} (default " in shown


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 129, "must be from 1 to 128, got 129: a matrix product takes no other"),
        ("positions", 0, "must be from 1 to 128, got 0: a matrix product takes no other"),
        ("vocabulary", 1, "must be from 2 to 524288, got 1: one shows nothing"),
        (
            "vocabulary",
            2**30,
            "must be from 2 to 524288, got 1073741824: one shows nothing, and more take 3 GB of memory",
        ),
    ],
)
def test_a_size_out_of_bounds(name: str, value: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_from_nki.main([f"--{name}", str(value)])
    assert ended.value.code == 2
    assert f"--{name} {message}" in capsys.readouterr().err
