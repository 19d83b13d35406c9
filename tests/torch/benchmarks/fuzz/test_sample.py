# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A short sample of the fuzz: calls of every function, drawn from fixed seeds; and five minutes of new ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.fuzz.__main__ import main
from benchmarks.fuzz.draw import MIDDLE, SMALL
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
    assert line.shares.keys() >= {"logprob" if function in ("token_scores", "linear_token_scores") else "loss"}
    assert any(name.startswith("grad_") for name in line.shares)


# Seeds and numbers of middle calls of linear_cross_entropy in 16 bits, of the smallest whose W is [V, D] with a
# gradient, N and D are over 512 and V over 1,536: two launches of bfloat16, of float16, and one launch with a bias. If
# another order of draws makes other calls of them, `linear.sizes` of some thousand numbers names new ones.
KEPT_PIECES = ((2731, 71), (2742, 357), (2720, 162))


@pytest.mark.parametrize(("seed", "number"), KEPT_PIECES)
def test_a_weight_gradient_of_pieces_of_x_that_stay_on_chip(seed: int, number: int) -> None:
    """Several pieces of X of several stripes stay, and several groups of tiles of dW read them, in the default plan.

    Plans of small calls have one of each, where a group can not read the piece of another stripe.
    """
    line = run_call(seed, number, MIDDLE, ("linear_cross_entropy",))
    assert not line.failures, (line.failures, line.command, line.trace)
    is_one = line.settings["form"] == "one launch"
    (plan,) = line.plans["linear gradients in one launch" if is_one else "linear backward"]
    assert plan["keeps_pieces"] and plan["pieces_of_stripe"] > 1, "draw other calls"
    assert plan["features"] > plan["stripe"] and plan["class_tiles"] > plan["weight_group"][0], "draw other calls"
    assert line.shares.keys() >= {"loss", "grad_input", "grad_linear_weight"} and not line.blunt


@pytest.mark.sweep
def test_five_minutes_of_new_calls(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seconds", "300"])
    assert code == 0, capsys.readouterr().out
