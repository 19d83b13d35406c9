"""TRL's own trainers on the CPU, where they take the path that they take on Neuron: in float64, as they are, and ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.torch.trl.errors import errors, too_large
from tests.torch.trl.runs import Run, run
from tests.torch.trl.trainers import KINDS, Case

# Each of precisions, heads, options and outputs once; the sweep has all combinations.
QUICK = (
    Case("sft", "float32", tied=True),
    Case("sft", "autocast", options={"pad_to_multiple_of": 128}),
    Case("dpo", "autocast", tied=True, options={"use_weighting": True}),
    Case("kto", "bfloat16"),
    Case("grpo", "float32"),
    Case("grpo", "autocast", tied=True),
    Case("rloo", "bfloat16", lora=True),
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
ALL = [case for case in (*_PLAIN, *_ADAPTED, *_PADDED, *_OPTIONS) if case not in QUICK]


def products(case: Case) -> torch.dtype:
    """The type of the model's products."""
    return torch.float32 if case.precision == "float32" else torch.bfloat16


def three_runs(case: Case, directory: Path) -> tuple[Run, Run, Run]:
    """In float64, TRL's own and ours, each checked for whose code ran."""
    exact, theirs, ours = (run(case, directory, function) for function in ("exact", "trl", "ours"))
    assert theirs.tiles > 0, "the tiles are not counted"
    assert exact.tiles == ours.tiles == 0
    assert len(exact.losses) == len(exact.gradients) == case.steps
    return exact, theirs, ours


def assert_as_good(case: Case, directory: Path) -> None:
    """Ours errs at most twice as TRL does, or hardly at all."""
    exact, theirs, ours = three_runs(case, directory)
    bad = list(too_large(errors(ours, exact, products(case)), errors(theirs, exact, products(case))))
    assert not bad, "\n".join(bad)
    for results, truth in zip(ours.results, exact.results, strict=True):
        is_top1, expected = results[-1], truth[-1]
        assert (is_top1 is None) == (expected is None)
        assert is_top1 is None or torch.equal(is_top1, expected)


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_trainer_errs_no_more_than_with_trl(case: Case, tmp_path: Path) -> None:
    assert_as_good(case, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("case", ALL, ids=str)
def test_any_trainer_errs_no_more_than_with_trl(case: Case, tmp_path: Path) -> None:
    assert_as_good(case, tmp_path)
