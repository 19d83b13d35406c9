# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""TRL's own trainers on the CPU, where they take the path of Neuron: in float64, as they are, and with ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.torch.trl.runs import Run, errors, run, too_large
from tests.torch.trl.trainers import COMPLETION, KINDS, Case

# Each of precisions, heads, options and outputs once; the sweep has all combinations.
QUICK = (
    Case("sft", "float32", tied=True),
    Case("sft", "autocast", options={"pad_to_multiple_of": 128}),
    Case("dpo", "autocast", tied=True, options={"use_weighting": True}),
    Case("kto", "bfloat16"),
    Case("grpo", "float32"),
    Case("grpo", "autocast", tied=True),
    Case("rloo", "bfloat16", lora=True),
    Case("distillation", "float32", tied=True, options={"beta": 0.0}, capped=True),
    Case("distillation", "bfloat16", options={"beta": 0.5}, teacher=torch.float32),
    Case("distillation", "autocast", options={"beta": 1.0}, capped=True),
)
PRECISIONS = ("float32", "autocast", "bfloat16")
_PLAIN = [Case(kind, precision, tied) for kind in KINDS for precision in PRECISIONS for tied in (False, True)]
_ADAPTED = [Case(kind, precision, lora=True) for kind in KINDS for precision in PRECISIONS]
_PADDED = [Case(kind, "autocast", tied=True, options={"pad_to_multiple_of": 128}) for kind in KINDS]
_OPTIONS = [
    Case("sft", precision, options={name: value})
    for precision in PRECISIONS
    for name, value in {"loss_type": "dft", "gradient_checkpointing": True}.items()
]
_OPTIONS += [Case("dpo", precision, options={"use_weighting": True}) for precision in PRECISIONS]
_OPTIONS += [Case("grpo", precision, options={"cast_lm_head_to_fp32": True}) for precision in PRECISIONS[1:]]
_DIVERGENCES = [
    Case("distillation", precision, options={"beta": beta, "temperature": temperature}, capped=capped)
    for precision in PRECISIONS
    for beta in (0.0, 0.1, 0.5, 1.0)
    for temperature in (0.5, 2.0)
    for capped in (False, True)
]
_MIXED = [
    Case("distillation", precision, options={"beta": beta}, teacher=teacher)
    for precision, teacher in (("float32", torch.bfloat16), ("bfloat16", torch.float32))
    for beta in (0.0, 0.5, 1.0)
]
ALL = [case for case in (*_PLAIN, *_ADAPTED, *_PADDED, *_OPTIONS, *_DIVERGENCES, *_MIXED) if case not in QUICK]


def products(case: Case) -> torch.dtype:
    """The type of the model's products."""
    if case.kind == "distillation" and case.precision == "autocast":
        return torch.float32  # its trainer calls the models' trunks outside of autocast
    return torch.float32 if case.precision == "float32" else torch.bfloat16


def later_budget(case: Case) -> float:
    """Return gradients' error from rounding log-probabilities alone, from the second step on, as a share of their norm.

    RLOO weighs a sequence by the ratio of its probabilities, now and at first: exp of twice ``COMPLETION``
    log-probabilities between 4 and 8, each rounded to a float32. Before, the ratio is 1 to the bit. The contributions
    of the sequences of a group cancel in part, by a factor of 2 or so.
    """
    half_a_step = 4 * 2.0**-24
    return 2 * 2 * COMPLETION * half_a_step if case.kind == "rloo" else 0.0


def three_runs(case: Case, directory: Path) -> tuple[Run, Run, Run]:
    """Run the trainer in float64, with TRL's own function and with ours, each checked for whose code ran."""
    exact, theirs, ours = (run(case, directory, function) for function in ("exact", "trl", "ours"))
    assert theirs.tiles > 0, "the tiles are not counted"
    assert exact.tiles == ours.tiles == 0
    assert len(exact.losses) == len(exact.gradients) == case.steps
    return exact, theirs, ours


def assert_as_good(case: Case, directory: Path) -> None:
    """Ours errs at most twice as TRL does, or hardly at all."""
    exact, theirs, ours = three_runs(case, directory)
    names = KINDS[case.kind].replaced.results
    ours_off, theirs_off = (errors(item, exact, names, products(case), later_budget(case)) for item in (ours, theirs))
    bad = list(too_large(ours_off, theirs_off))
    assert not bad, "\n".join(bad)
    for results, reference in zip(ours.results, exact.results, strict=True):
        for is_top1, expected in zip(results[len(names) :], reference[len(names) :], strict=True):
            assert (is_top1 is None) == (expected is None)
            assert is_top1 is None or torch.equal(is_top1, expected)


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_trainer_errs_no_more_than_with_trl(case: Case, tmp_path: Path) -> None:
    assert_as_good(case, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("case", ALL, ids=str)
def test_any_trainer_errs_no_more_than_with_trl(case: Case, tmp_path: Path) -> None:
    assert_as_good(case, tmp_path)


# What a faulty function could do to the gradients and values of a run.
FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "another sign": torch.neg,
    "the row before": lambda value: value.roll(1, 0),
    "one part in a thousand more": lambda value: value * 1.001,
}


class StockRuns(NamedTuple):
    """One trainer, in float64 and as TRL has it.

    Attributes:
        exact, theirs: the runs.
        names: the names of the function's results that are numbers.
    """

    exact: Run
    theirs: Run
    names: tuple[str, ...]


@pytest.fixture(scope="module", params=["grpo", "distillation"])
def stock_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StockRuns:
    case, directory = Case(request.param, "float32"), tmp_path_factory.mktemp("stock")
    return StockRuns(run(case, directory, "exact"), run(case, directory, "trl"), KINDS[case.kind].replaced.results)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_notices(fault: str, stock_runs: StockRuns) -> None:
    exact, theirs, names = stock_runs
    wrong = FAULTS[fault]
    gradients = [{name: wrong(grad) for name, grad in gradient.items()} for gradient in exact.gradients]
    results = [tuple(None if item is None else wrong(item) for item in call) for call in exact.results]
    expected = errors(theirs, exact, names, torch.float32)
    assert not list(too_large(errors(exact, exact, names, torch.float32), expected))
    of_gradients = list(too_large(errors(replace(exact, gradients=gradients), exact, names, torch.float32), expected))
    of_results = list(too_large(errors(replace(exact, results=results), exact, names, torch.float32), expected))
    assert any("lm_head.weight" in gradient for gradient in of_gradients)
    assert all(any(name in result for result in of_results) for name in (names[0], "entropy"))
