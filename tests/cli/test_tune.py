# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m nkilib tune`: tilings in the order of their modelled time, the chooser's among them."""

from __future__ import annotations

import pytest

from nkilib.cli.arguments import MOST_COLUMNS
from nkilib.cli.main import main
from nkilib.cli.tune import _heads
from nkilib.experimental.loss import Tiling, choose_linear_tiling, choose_tiling, cross_entropy_forward
from nkilib.experimental.loss.profiling import profile_launch
from nkilib.nki import nl
from nkilib.simulator import profile, spec


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    """Exit code, lines of the output, and what went to the other stream."""
    code = main(("tune", *arguments))
    printed = capsys.readouterr()
    return code, printed.out.splitlines(), printed.err


def rows(lines: list[str]) -> list[list[str]]:
    (first,) = (number for number, line in enumerate(lines, 1) if line.endswith(" us times bound"))
    return [line.split() for line in lines[first:-1]]


def test_the_fastest_comes_first_and_the_choice_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, errors = command(capsys, "--positions", "512", "--vocab", "32128")
    assert (code, errors) == (0, "")
    assert lines[0] == "cross_entropy_forward on 2 cores of trn2: modelled, not measured"
    times = [float(row[2].replace(",", "")) for row in rows(lines)]
    assert len(times) >= 10 and times == sorted(times) and times[0] < times[-1]
    (marked,) = (row for row in rows(lines) if row[-1] == "choose_tiling")
    chosen = choose_tiling(512, 32128, "bfloat16", "forward")
    assert (int(marked[0]), int(marked[1])) == chosen[:2]
    arguments = spec((512, 32128), nl.bfloat16), spec((512,), nl.int32)
    profiled = profile(cross_entropy_forward[2], *arguments, **chosen._asdict())
    assert marked[2] == f"{profiled.time_us:,.1f}" and marked[3] == f"{profiled.fraction_of_bound:.3f}"


def test_the_longest_names_fit_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--family", "linear_distillation", "--features", "128", "--teacher-features", "128")
    sizes = ("--position-block", "128", "--class-block", "256")
    code, lines, _ = command(capsys, "--positions", "128", "--vocab", "256", *options, *sizes)
    assert code == 0 and any(line.endswith("  choose_linear_distillation_tiling") for line in lines)
    assert max(map(len, lines)) <= MOST_COLUMNS


def test_names_of_sizes_take_several_lines_if_one_is_too_long() -> None:
    names = ("positions_per_batch", "chunk_size", "partitions_per_position", "positions_per_partition")
    assert _heads(names[:2], "choose_tiling") == [[name] for name in names[:2]]
    assert _heads(names, "choose_tiling") == [
        ["positions_", "per_batch"],
        ["chunk_size"],
        ["partitions_", "per_position"],
        ["positions_", "per_partition"],
    ]


def test_every_tiling_that_is_asked_for_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--direction", "backward", "--dtype", "float32", "--target", "trn3")
    tilings = ("--positions-per-batch", "32", "64", "--chunk-size", "500", "700", "9000")
    code, lines, _ = command(capsys, "--positions", "100", "--vocab", "3000", *options, *tilings)
    assert code == 0
    assert lines[0] == "cross_entropy_backward on 2 cores of trn3: modelled, not measured"
    tried = {(int(row[0]), int(row[1])) for row in rows(lines)}
    chosen = tuple(choose_tiling(100, 3000, "float32", "backward", "trn3"))
    assert tried == {(32, 500), (32, 700), (64, 500), (64, 700), chosen}
    assert lines[-1] == "5 tilings modelled, 2 not accepted by the kernel"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--vocab", "3000", "--chunk-size", "9000"), "chunk_size must be at most the vocabulary size 3000, got 9000"),
        (("--vocab", str(2**31)), "vocab_size must be at most"),
    ],
)
def test_what_cannot_be_tuned(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    code, lines, errors = command(capsys, "--positions", "100", *arguments)
    assert (code, lines) == (1, [])
    assert errors.startswith("python -m nkilib tune: error: ") and said in errors


def test_the_extended_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--extended", "--arg", "label_smoothing=0.1", "--arg", "class_weight_hbm=f32[3000]")
    code, lines, errors = command(capsys, "--positions", "100", "--vocab", "3000", "--chunk-size", "700", *options)
    assert (code, errors) == (0, "")
    assert lines[0] == "extended_cross_entropy_forward on 2 cores of trn2: modelled, not measured"
    profiled = profile_launch(
        *(100, 3000, "bfloat16", "forward"),
        Tiling(128, 700),
        extended=True,
        trips="none",
        label_smoothing=0.1,
        class_weight_hbm=spec((3000,), nl.float32),
    )
    assert f"{profiled.time_us:,.1f}" in [row[2] for row in rows(lines) if row[1] == "700"]
    chosen = choose_tiling(100, 3000, "bfloat16", "forward", extended=True)
    assert [row[:2] for row in rows(lines) if row[-1] == "choose_tiling"] == [[str(size) for size in chosen]]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("softcap=30.0", "did you mean 'logit_softcap'?"),
        ("label_smoothing=2.0", "label_smoothing must be a number from 0 to 1, got 2.0"),
        ("chunk_size=700", "chunk_size"),
    ],
)
def test_options_that_the_extended_kernels_do_not_take(
    capsys: pytest.CaptureFixture[str], argument: str, said: str
) -> None:
    code, lines, errors = command(capsys, "--positions", "64", "--vocab", "3000", "--extended", "--arg", argument)
    assert (code, lines) == (1, [])
    assert len(errors.splitlines()) == 1 and said in errors


def test_values_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command(capsys, "--positions", "64", "--vocab", "3000", "--extended", "--arg", "label_smoothing")
    assert "--arg must be NAME=VALUE" in capsys.readouterr().err


def test_options_of_the_extended_kernels_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command(capsys, "--positions", "64", "--vocab", "3000", "--arg", "label_smoothing=0.1")
    assert "add --extended" in capsys.readouterr().err


def test_the_linear_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--positions", "256", "--features", "128", "--vocab", "1500", "--dtype", "float32")
    tilings = ("--position-block", "128", "256", "--class-block", "128", "256", "640")
    code, lines, errors = command(capsys, *sizes, *tilings)
    assert (code, errors) == (0, "")
    assert lines[0] == "linear_cross_entropy_forward on 2 cores of trn2: modelled, not measured"
    tried = {(int(row[0]), int(row[1])) for row in rows(lines)}
    chosen = choose_linear_tiling(256, 128, 1500, "float32", "forward")
    assert tried == {(128, 128), (128, 256), (256, 128), (256, 256), tuple(chosen)}
    assert [row[:2] for row in rows(lines) if row[-1] == "choose_linear_tiling"] == [[str(size) for size in chosen]]
    assert lines[-1].endswith("tilings modelled, 2 not accepted by the kernel")
