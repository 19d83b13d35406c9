# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""docs/reference/torch_operators.md: its tables of tensors, constants, operators and variable values are right."""

from __future__ import annotations

import inspect
import re

import nkilib.torch
from nkilib.torch import (
    cross_entropy,
    linear_cross_entropy,
    linear_distillation_loss,
    linear_token_scores,
    token_scores,
    vocab_parallel_cross_entropy,
    vocab_parallel_linear_cross_entropy,
)
from nkilib.torch.dispatch.devices import _ALLOWED
from nkilib.torch.dispatch.register import OPERATORS
from tests.fresh_python import CHECKOUT

PAGE = (CHECKOUT / "docs" / "reference" / "torch_operators.md").read_text(encoding="utf-8")
OURS = [operator for name, operator in OPERATORS.items() if name.startswith(("cross_entropy", "linear_"))]


def section_of(heading: str) -> str:
    """The text from a heading to the next heading of any level."""
    return re.split(r"\n#+ ", PAGE.partition(f"# {heading}\n")[2])[0]


def table(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    section = section_of(heading)
    lines = section[section.index("\n|") + 1 :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def named(kind: str, column: int) -> set[str]:
    """Return the names in a column of the rows of tensors or of constants."""
    return {name for row in table("What recompiles") if row[1].startswith(kind) for name in names(row[column])}


def test_tensors_of_the_operators_are_called_tensors_and_their_options_constants() -> None:
    assert named("tensor", 2) == {entry.name for operator in OURS for entry in operator.inputs}
    assert named("constant", 2) == {keyword.name for operator in OURS for keyword in operator.keywords}


def test_every_argument_of_the_functions_has_its_row() -> None:
    functions = (
        cross_entropy,
        vocab_parallel_cross_entropy,
        token_scores,
        linear_cross_entropy,
        linear_token_scores,
        linear_distillation_loss,
        vocab_parallel_linear_cross_entropy,
    )
    arguments = {name for function in functions for name in inspect.signature(function).parameters}
    tensors = {"input", "logits", "logits_shard", "target", "weight", "normalizer"}
    tensors |= {"linear_weight", "linear_bias", "grad_weight_sum"}
    tensors |= {"teacher_input", "teacher_weight", "teacher_bias", "labels", "row_weight"}
    assert named("tensor", 0) == tensors
    assert named("constant", 0) == arguments - tensors - {"group"}


def test_the_values_of_the_variable_are_those_that_are_accepted() -> None:
    values = {name for row in table("Choice of the registration") for name in names(row[0])}
    assert values == set(_ALLOWED)


def test_the_operators_are_named() -> None:
    section = section_of("Operators")
    for operator in OURS:
        for overwrites in (False, True) if operator.may_overwrite else (False,):
            assert f"`{operator.unqualified(overwrites)}`" in section
    assert nkilib.torch.__all__
