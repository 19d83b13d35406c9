# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Messages recommend something that exists instead of a function; shapes broadcast as torch has it, and errors say
which do not.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nkilib.torch import mse_loss
from nkilib.torch.dispatch.autograd import refuse_second
from nkilib.torch.dispatch.checks import Caller, broadcast_shape, counterpart
from nkilib.torch.dispatch.operator import Operator
from nkilib.torch.dispatch.register import OPERATORS
from nkilib.torch.losses import elementwise, rowwise

OWN = r"use the formula of log_cosh in operations of PyTorch, which has no function of that name$"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Operator]:
    """The operators that a loss describes, which are not registered with PyTorch."""
    results: list[Operator] = []

    def keep(operator: Operator) -> Operator:
        results.append(operator)
        return operator

    for module in (elementwise, rowwise):
        monkeypatch.setattr(module, "register", keep)
        monkeypatch.setattr(module, "differentiate", lambda forward, backward: None)
    return results


@pytest.mark.parametrize(
    "name", sorted(name for name, operator in OPERATORS.items() if operator.instead.startswith("torch."))
)
def test_operators_recommend_a_function_that_pytorch_has(name: str) -> None:
    instead = OPERATORS[name].instead
    result: Any = torch
    for part in instead.removeprefix("torch.").split("."):
        assert hasattr(result, part), f"{name} recommends {instead}, which PyTorch does not have; see counterpart"
        result = getattr(result, part)


@pytest.mark.parametrize(("name", "expected"), [("l1_loss", r"use torch\.nn\.functional\.l1_loss$"), ("log_cosh", OWN)])
def test_an_elementwise_loss_names_its_counterpart(name: str, expected: str, registered: list[Operator]) -> None:
    elementwise.elementwise_loss(name, "predictions")
    assert len(registered) == 2
    with pytest.raises(NotImplementedError, match=expected):
        refuse_second(registered[1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cosine_embedding_loss", r"use torch\.nn\.functional\.cosine_embedding_loss$"), ("log_cosh", OWN)],
)
def test_a_row_wise_loss_names_its_counterpart(name: str, expected: str, registered: list[Operator]) -> None:
    inputs = rowwise.RowInputs(("input1", "input2"), vectors=("target",))
    rowwise.rowwise_loss(Caller(name, "input1", "embeddings", counterpart(name)), inputs, {"margin": 0.0})
    assert len(registered) == 2
    with pytest.raises(NotImplementedError, match=expected):
        refuse_second(registered[1])


CALLER = Caller("loss", "input", "input", "torch")


@given(shapes=st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3), min_size=1, max_size=3))
def test_the_shapes_of_torch(shapes: list[list[int]]) -> None:
    named = {str(number): torch.Size(shape) for number, shape in enumerate(shapes)}
    try:
        expected = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        with pytest.raises(RuntimeError, match=r"^loss: shapes must broadcast, and sizes of dimension -\d do not, got"):
            broadcast_shape(CALLER, named)
    else:
        assert broadcast_shape(CALLER, named) == expected


def test_a_loss_says_which_shapes_do_not_broadcast() -> None:
    expected = (
        r"^mse_loss: shapes must broadcast, and sizes of dimension -2 do not, got input \(3, 4\), target \(5, 4\); "
        r"reshape them$"
    )
    with pytest.raises(RuntimeError, match=expected):
        mse_loss(torch.zeros(3, 4), torch.zeros(5, 4))
