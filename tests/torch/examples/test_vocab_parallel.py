# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The vocabulary-parallel example as a user runs it, in its short form."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from examples import vocab_parallel
from examples._corpus import read_corpus
from examples._display import make_console
from tests.fresh_python import CHECKOUT, with_checkout
from tests.hangs import HANG_SECONDS


def test_two_processes_lose_what_one_does() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]  # which takes a free port
    ended = subprocess.run(
        [*torchrun, "--nproc_per_node", "2", "-m", "examples.vocab_parallel", "--quick", "--steps", "2"],
        cwd=CHECKOUT,
        env=with_checkout(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "2 processes" in ended.stdout and "padding" in ended.stdout and "2 steps of 64 words" in ended.stdout
    for name in ("step    1  sharded ", "step    2  sharded ", "The losses agree"):
        assert ended.stdout.count(name) == 1, "one process speaks for all"


@pytest.fixture
def _one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("arguments", "steps"), [([], 20), (["--quick"], 3), (["--steps", "7"], 7), (["--quick", "--steps", "7"], 7)]
)
def test_steps_are_those_asked_for(arguments: list[str], steps: int) -> None:
    assert vocab_parallel.parse_arguments(arguments).steps == steps


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("factor", [1.0, 1.001, float("nan")])
def test_it_notices_a_wrong_loss(
    factor: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loss_of = vocab_parallel.vocab_parallel_cross_entropy
    monkeypatch.setattr(
        vocab_parallel, "vocab_parallel_cross_entropy", lambda *args, **options: factor * loss_of(*args, **options)
    )
    agrees = vocab_parallel.train(make_console(), read_corpus(limit=200), steps=2, size=16)
    assert agrees == (factor == 1.0)
    assert ("The losses agree" in capsys.readouterr().out) == agrees


def test_without_torchrun_it_says_how_to_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert vocab_parallel.main([]) == 2
    assert "torchrun --nproc_per_node 2 -m examples.vocab_parallel" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), [(["--help"], ""), (["--steps", "0"], "must be at least 1, got 0")])
def test_help_and_a_bad_argument(arguments: list[str], message: str, capsys: pytest.CaptureFixture[Any]) -> None:
    with pytest.raises(SystemExit) as ended:
        vocab_parallel.parse_arguments(arguments)
    assert ended.value.code == (2 if message else 0)
    assert message in capsys.readouterr().err
