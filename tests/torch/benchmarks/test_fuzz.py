# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The command of the fuzz: every public name, calls that repeat, failures, the table, and the log with the plans that
kernels took.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import nkilib.torch
from benchmarks.fuzz import registry, workers
from benchmarks.fuzz.__main__ import main, parse_arguments
from benchmarks.fuzz.call import Call, Results
from benchmarks.fuzz.draw import LIMITS, MIDDLE, SMALL, Draw, Limits
from benchmarks.fuzz.families import distillation, softmax
from benchmarks.fuzz.one_call import Line, run_call
from benchmarks.fuzz.plans import CHOOSERS, described_plan, recorded
from benchmarks.fuzz.registry import EXCLUDED, FUZZED
from nkilib.experimental.softmax import choose_softmax_tiling
from nkilib.experimental.softmax.columns.plan import Layout
from nkilib.simulator import UninitializedReadError
from nkilib.torch import kl_div
from tests.fresh_python import run_fresh

# One call of each worker.
SHORT = ["--seconds", "0.000001"]
QUICK = ["--seed", "5", "--workers", "1", "--limits", "small", "--function", "nll_loss"]


def test_every_public_name_is_drawn_or_excluded_for_a_reason() -> None:
    modules = [module for fuzzed in FUZZED.values() for module in fuzzed.modules]
    known = [*FUZZED, *modules, *EXCLUDED]
    assert sorted(known) == sorted(nkilib.torch.__all__)
    assert all(reason for reason in EXCLUDED.values())


@pytest.mark.parametrize("function", [name for name, fuzzed in FUZZED.items() if fuzzed.modules])
def test_some_calls_go_through_the_modules(function: str) -> None:
    missing = set(FUZZED[function].modules)
    for number in range(400):
        if not missing:
            break
        missing.discard(str(FUZZED[function].drawn(Draw(1, number, SMALL), function).module))
    assert not missing


def test_every_function_is_drawn() -> None:
    drawn = {registry.function_of(Draw(3, number, MIDDLE, part=2)) for number in range(2000)}
    assert drawn == set(FUZZED)


def test_sizes_reach_edges_and_stay_within_their_limits() -> None:
    drawn = [Draw(1, number, MIDDLE).sizes((1, 3000), (1, 60000)) for number in range(300)]
    assert all(rows * columns <= MIDDLE.elements for rows, columns in drawn)
    assert {127, 128, 129} & {rows for rows, _ in drawn}
    assert sum(rows * columns > MIDDLE.elements // 100 for rows, columns in drawn) > 150


def test_a_call_repeats_and_the_log_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    assert main([*QUICK, *SHORT, "--log", str(log)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("seed 5, 1 workers") and "0 failed" in shown
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    last = lines[-1]
    assert [line["call"] for line in lines] == list(range(len(lines)))
    assert last["settings"]["shape"] and last["shares"]["loss"] <= 1.0 and last["instructions"] > 0
    assert main(last["command"].split()[3:]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["shares"] == last["shares"] and again["settings"] == last["settings"]


def test_every_worker_draws_a_call_however_late_it_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    arguments = ["--seed", "5", "--workers", "2", "--first", "6", *SHORT, "--limits", "small", "--function", "nll_loss"]
    assert main([*arguments, "--log", str(log)]) == 0
    numbers = [json.loads(line)["call"] for line in log.read_text(encoding="utf-8").splitlines()]
    assert sorted(numbers) == [6, 7]
    assert "2 calls, 0 failed" in capsys.readouterr().out


def test_the_time_starts_when_the_processes_of_a_group_have_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: no second of it is one of the calls."""
    now = [0.0]
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: now[0]))

    @contextmanager
    def slow() -> Iterator[None]:
        now[0] += 100.0
        yield

    def call(seed: int, number: int, limits: Limits, functions: tuple[str, ...]) -> Line:
        now[0] += 1.0
        return Line(seed, number, limits.name, "nll_loss")

    monkeypatch.setattr(workers, "one_rank", slow)
    monkeypatch.setattr(workers, "run_call", call)
    assert [line.call for line in workers.lines_of(workers.Plan(5, 2.5, 1, first=3))] == [3, 4, 5]


def test_a_wrong_result_and_an_exception_are_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = Call.run

    def flipped(self: Call, draw: Draw) -> Any:
        results = right(self, draw)
        results.values["loss"] = np.negative(results.values["loss"])
        return results

    monkeypatch.setattr(Call, "run", flipped)
    assert main([*QUICK, *SHORT]) == 1
    shown = capsys.readouterr().out
    assert "FAILED nll_loss: loss is wrong at" in shown
    assert "python -m benchmarks.fuzz --seed 5 --call 0 --limits small --function nll_loss" in shown

    def raising(self: Call, draw: Draw) -> Any:
        raise KeyError("inner")

    monkeypatch.setattr(Call, "run", raising)
    assert main([*QUICK, "--call", "0"]) == 1
    assert "raised KeyError: 'inner'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (ValueError("nll_loss: input must be dense, got gaps; pass another"), True),
        (TypeError("nll_loss: argument 'input' must be Tensor, not int"), True),
        (NotImplementedError("NLLLoss: not implemented for float64"), True),
        (IndexError("nll_loss: dim must be from -1 to 0, got 3"), True),
        (AssertionError("nll_loss: both passes wait for buffers"), False),
        (AssertionError("nll_loss_backward: chunk_size must fit a partition, got 9; pass None"), False),
        (ValueError("nll_loss_backward: chunk_size must fit a partition, got 9; pass None"), False),
        (ValueError("the plan of nll_loss: has no room"), False),
        (RuntimeError("nll_loss: an element was read that nothing has written"), False),
        (UninitializedReadError("core 0 reads 128 elements that nothing has written, in nll_loss: line 3"), False),
    ],
    ids=str,
)
def test_only_a_refusal_by_the_public_name_is_no_failure(
    error: Exception, is_refused: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raising(self: Call, draw: Draw) -> Any:
        raise error

    monkeypatch.setattr(Call, "run", raising)
    assert main([*QUICK, "--call", "0"]) == (0 if is_refused else 1)
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    assert bool(line["refusal"]) == is_refused and bool(line["failures"]) != is_refused


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--workers", "0"], ["--call", "3"], ["--limits", "huge"]])
def test_arguments_that_do_not_fit_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments)
    assert ended.value.code == 2


def test_it_runs_under_a_pytorch_that_graphs_do_not() -> None:
    code = "import torch; torch.__version__ = '2.11.0'; from benchmarks.fuzz.__main__ import main; "
    outcome = run_fresh(code + "main(['--seed', '5', '--call', '0', '--limits', 'small', '--function', 'nll_loss'])")
    assert outcome.error == "" and json.loads(outcome.output)["failures"] == []


def test_the_defaults() -> None:
    options = parse_arguments([])
    assert (options.seconds, options.limits, options.seed) == (60.0, "middle", None)
    assert LIMITS[options.limits] is MIDDLE


SEED_OF_PLANS = 2713


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((300, 400), "softmax of rows"),
        ((3, 40, 50), "softmax of short columns"),
        ((3, 700, 50), "softmax of columns"),
    ],
    ids=str,
)
def test_softmax_by_the_kind_of_its_columns(shape: tuple[int, ...], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "_shape", lambda draw: (shape, 1))
    monkeypatch.setattr(softmax, "laid_out", lambda draw, tensor: (tensor, "contiguous"))
    line = run_call(SEED_OF_PLANS, 0, SMALL, ("softmax",))
    assert not line.failures and line.plans.keys() == {name, f"backward of {name}"}
    if name == "softmax of columns":
        plan = line.plans["softmax of columns"][0]["plan"]
        assert plan["layout"] in [layout.value for layout in Layout] and not plan["is_read_twice"]
    json.dumps(line.plans)


def test_it_is_the_plan_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "_shape", lambda draw: ((3, 20_000), 1))
    monkeypatch.setattr(softmax, "dtype_of", lambda draw: ("fp32", torch.float32))
    monkeypatch.setattr(Draw, "chance", lambda self, probability: False)
    line = run_call(SEED_OF_PLANS, 0, SMALL, ("softmax",))
    taken = [plan["piece_size"] for plan in line.plans["softmax of rows"]]
    assert taken == [choose_softmax_tiling((3, 20_000), 1, "float32", "forward").chunk_size]


def test_a_mixture_has_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "_labels", lambda draw, shape: None)
    for number in range(20):
        line = run_call(SEED_OF_PLANS, number, SMALL, ("distillation_loss",))
        if line.settings["beta"] in (0.5, 0.1):
            assert line.plans.keys() == {
                "tiling of a distillation",
                "mixture",
                "chunks at a time of a mixture's gradient",
            }
            return
    raise AssertionError("no mixture was drawn")


def test_a_call_that_fails_has_its_plans_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Call.run

    def failing(self: Call, draw: Draw) -> Results:
        run(self, draw)
        raise AssertionError("both passes wait for buffers")

    monkeypatch.setattr(Call, "run", failing)
    line = run_call(SEED_OF_PLANS, 0, SMALL, ("softmax",))
    assert line.failures and line.plans


def test_nothing_is_recorded_outside() -> None:
    with recorded() as plans:
        pass
    kl_div(torch.zeros(3), torch.zeros(3), reduction="sum")
    assert plans == {}
    with recorded() as plans:
        for _ in range(2):
            kl_div(torch.zeros(3), torch.zeros(3), reduction="sum")
    assert list(plans) == ["tiling of elements"] and len(plans["tiling of elements"]) == 1
    assert plans.keys() <= CHOOSERS.keys()


def test_how_a_plan_is_written() -> None:
    assert described_plan((1, 2, 3, 4)) == [1, 2, 3, 4]
    assert described_plan([0] * 5) == "5 of them"
    assert described_plan([[0] * 7, [0] * 2]) == [7, 2]
    for layout in Layout:
        assert described_plan(layout) == layout.value
    written: Any = described_plan(choose_softmax_tiling((3, 50), 1, "float32", "forward"))
    assert written == {"chunk_size": 1024, "partitions_per_row": None}
