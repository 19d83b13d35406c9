"""A short sample of the fuzz: calls of every function, drawn from a fixed seed; and five minutes of new ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.fuzz.__main__ import main
from benchmarks.fuzz.draw import SMALL
from benchmarks.fuzz.one_call import run_call
from benchmarks.fuzz.registry import FUZZED
from benchmarks.fuzz.workers import one_rank

SEED = 2711
CALLS = 3


@pytest.fixture(scope="module", autouse=True)
def _rank() -> Iterator[None]:
    with one_rank():
        yield


@pytest.mark.parametrize("number", range(CALLS))
@pytest.mark.parametrize("function", FUZZED)
def test_results_and_gradients_are_within_their_bounds(function: str, number: int) -> None:
    line = run_call(SEED, number, SMALL, (function,))
    assert not line.failures, (line.failures, line.command, line.trace)
    assert not line.refusal, "a call of the sample has to run"
    assert line.plans, "no chooser of this function is known: add it to benchmarks.fuzz.plans.CHOOSERS"
    assert line.shares.keys() >= {"logprob" if function == "token_scores" else "loss"}
    assert any(name.startswith("grad_") for name in line.shares)


@pytest.mark.sweep
def test_five_minutes_of_new_calls(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seconds", "300"])
    assert code == 0, capsys.readouterr().out
