# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m nkilib profile`: what it prints and writes, and what it says to mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nkilib.cli.main import main
from nkilib.experimental.loss import (
    choose_linear_tiling,
    choose_tiling,
    cross_entropy_backward,
    cross_entropy_forward,
)
from nkilib.experimental.loss.profiling import profile_linear_launch
from nkilib.nki import nl
from nkilib.simulator import profile, spec, using

SIZES = ("--positions", "64", "--vocab", "3000")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code and what was printed to both streams."""
    try:
        code = main(("profile", *arguments))
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_it_prints_the_profile_of_the_forward(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, errors = command(capsys, *SIZES)
    arguments = spec((64, 3000), nl.bfloat16), spec((64,), nl.int32)
    tiling = choose_tiling(64, 3000, "bfloat16", "forward")._asdict()
    expected = profile(cross_entropy_forward[2], *arguments, **tiling)
    message = ", ".join(f"{name}={value}" for name, value in tiling.items())
    assert (code, printed, errors) == (0, f"{message}\n{expected}\n", "")
    assert "2 cores of trn2" in printed and "modelled, not measured" in printed


def test_every_option_reaches_the_profile(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--dtype", "fp32", "--direction", "backward", "--target", "trn3", "--cores", "1")
    code, printed, _ = command(capsys, *SIZES, *options, "--positions-per-batch", "16", "--chunk-size", "700")
    arguments = spec((64, 3000), nl.float32), spec((64,), nl.int32), spec((64,), nl.float32)
    with using(target="trn3"):
        expected = profile(
            cross_entropy_backward[1], *arguments, positions_per_batch=16, chunk_size=700, dtype=nl.float32
        )
    layout = "partitions_per_position=1, positions_per_partition=1"
    assert (code, printed) == (0, f"positions_per_batch=16, chunk_size=700, {layout}\n{expected}\n")


def test_a_layout_reaches_the_profile(capsys: pytest.CaptureFixture[str]) -> None:
    _, printed, _ = command(capsys, *SIZES)
    assert "partitions_per_position=4, positions_per_partition=1" in printed and "forward.py" in printed
    _, printed, _ = command(capsys, *SIZES, "--positions-per-partition", "2", "--chunk-size", "700")
    assert "chunk_size=700, partitions_per_position=1, positions_per_partition=2" in printed


def test_trips_of_the_library_s_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = (
        "--positions",
        "4096",
        "--vocab",
        "32128",
        "--chunk-size",
        "16064",
        "--arg",
        "exact_maximum=false",
        "--extended",
    )
    for trips in ("all", "recompute_rows=2"):
        code, printed, errors = command(capsys, *sizes, "--trips", trips)
        assert (code, errors) == (0, "")
        assert "recompute_rows (recomputation.py" in printed and "the most iterations that" not in printed
        assert "target_logits_hbm" in printed
    code, _, errors = command(capsys, *sizes, "--trips", "other=2")
    assert code == 1 and "trips names 'other'" in errors


def test_a_picture_without_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nkilib.cli.profile._has_matplotlib", lambda: False)
    code, printed, errors = command(capsys, *SIZES, "--plot", "picture.png")
    expected = "--plot needs matplotlib, and there is none; install nkilib with its extra 'plot': pip install '.[plot]'"
    assert (code, printed) == (1, "") and expected in errors


def test_trace_and_picture_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install '.[plot]'")
    trace, picture = tmp_path / "trace.json", tmp_path / "picture.png"
    code, _, _ = command(capsys, *SIZES, "--trace", str(trace), "--plot", str(picture))
    assert code == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(("--vocab", "9"), 2, "the following arguments are required: --positions", id="no positions"),
        pytest.param((*SIZES, "--positions", "0"), 2, "--positions: must be a positive integer, got '0'", id="none"),
        pytest.param((*SIZES, "--dtype", "float64"), 2, "invalid choice: 'float64'", id="type"),
        pytest.param((*SIZES, "--features", "64", "--extended"), 2, "--extended: is for kernels without", id="two"),
        pytest.param((*SIZES, "--class-block", "128"), 2, "--class-block: is for kernels with", id="block"),
        pytest.param((*SIZES, "--direction", "forward_backward"), 2, "add --features", id="linear direction"),
        pytest.param((*SIZES, "--trace", "absent/t.json"), 2, "there is no directory 'absent'", id="no directory"),
        pytest.param((*SIZES, "--plot", "."), 2, "must name a file, got the directory '.'", id="a directory"),
        pytest.param((*SIZES, "--chunk-size", "3001"), 1, "pass chunk_size=3000", id="refused by the kernel"),
        pytest.param((*SIZES, "--vocab", str(2**31)), 1, "vocab_size must be at most", id="refused by the chooser"),
        pytest.param((*SIZES, "--target", "trn1"), 2, "invalid choice: 'trn1'", id="trn1"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str) -> None:
    output, printed, errors = command(capsys, *arguments)
    assert (output, printed) == (code, "")
    assert "python -m nkilib profile: error: " in errors and said in errors


@pytest.mark.parametrize("direction", ["forward", "backward", "forward_backward"])
def test_the_linear_kernels(capsys: pytest.CaptureFixture[str], direction: str) -> None:
    sizes = ("--positions", "200", "--features", "96", "--vocab", "700", "--direction", direction)
    options = ("--weight-layout", "dv", "--class-block", "256", "--arg", "bias_hbm=f32[700]")
    code, printed, errors = command(capsys, *sizes, *options)
    tiling = choose_linear_tiling(200, 96, 700, "bfloat16", direction, weight_layout="dv")._replace(class_block=256)
    expected = profile_linear_launch(
        *(200, 96, 700, "bfloat16", direction), tiling, weight_layout="dv", bias_hbm=spec((700,), nl.float32)
    )
    message = ", ".join(f"{name}={value}" for name, value in tiling._asdict().items())
    assert (code, printed, errors) == (0, f"{message}\n{expected}\n", "")
