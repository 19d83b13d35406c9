# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``LinearCrossEntropyLoss`` beside PyTorch's: the constructor, the state dict, the loss."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch import LinearCrossEntropyLoss, linear_cross_entropy
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS
from tests.torch.inputs import make_logits, make_targets, make_weight
from tests.torch.of_pytorch import linear_only

pytestmark = linear_only

CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True, "reduction": "sum"},
    "everything": {"bias": True, "weight": make_weight(), "ignore_index": 3, "label_smoothing": 0.1},
    "several dimensions": {"bias": True, "out_features": (3, 2), "reduction": "none"},
}


@pytest.mark.parametrize("case", CONSTRUCTORS)
def test_state_dict_and_loss_are_pytorchs(case: str) -> None:
    arguments = CONSTRUCTORS[case]
    torch.manual_seed(0)
    theirs = torch.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, **arguments)
    torch.manual_seed(0)
    ours = LinearCrossEntropyLoss(FEATURES, CLASSES, **arguments)
    assert {name: (v.shape, v.dtype) for name, v in ours.state_dict().items()} == {
        name: (v.shape, v.dtype) for name, v in theirs.state_dict().items()
    }
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))
    ours.load_state_dict(theirs.state_dict())
    x, target = make_logits(POSITIONS, FEATURES), make_targets(POSITIONS, *arguments.get("out_features", ()))
    if "out_features" in arguments:
        with pytest.warns(UserWarning, match="linear_weight has 4 dimensions"):
            loss = ours(x, target)
    else:
        loss = ours(x, target)
    expected = theirs(x, target)
    torch.testing.assert_close(loss, expected)
    upstream = torch.ones_like(expected)
    for gradient, exact in zip(
        torch.autograd.grad(loss, list(ours.parameters()), upstream),
        torch.autograd.grad(expected, list(theirs.parameters()), upstream),
        strict=True,
    ):
        torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-5)
    assert ours.extra_repr().split(", ")[:3] == [part.strip() for part in theirs.extra_repr().split(", ")][:3]


def test_constructor_errors_are_pytorchs() -> None:
    for arguments in ({"weight": torch.ones(3)}, {"label_smoothing": 1.5}, {"label_smoothing": -0.1}):
        for module in (torch.nn.LinearCrossEntropyLoss, LinearCrossEntropyLoss):
            with pytest.raises(RuntimeError):
                module(FEATURES, CLASSES, **arguments)  # type: ignore[operator]


def test_it_takes_every_argument_of_pytorchs_module_and_of_the_function() -> None:
    ours, theirs = (
        inspect.signature(module).parameters for module in (LinearCrossEntropyLoss, torch.nn.LinearCrossEntropyLoss)
    )
    assert [(entry.name, entry.kind, entry.default) for entry in ours.values()][: len(theirs)] == [
        (entry.name, entry.kind, entry.default) for entry in theirs.values()
    ]
    function = set(inspect.signature(linear_cross_entropy).parameters)
    of_a_call = {"input", "linear_weight", "target", "linear_bias", "grad_weight_sum"}
    assert function - set(ours) == of_a_call


def test_a_normalizer_of_the_call_replaces_the_kept_one() -> None:
    x, target = make_logits(POSITIONS, FEATURES), make_targets(POSITIONS)
    seven = torch.tensor(7.0)
    kept = LinearCrossEntropyLoss(FEATURES, CLASSES, normalizer=seven, logit_softcap=5.0, memory_limit=0)
    weight = kept.linear.weight
    loss, doubled = kept(x, target), kept(x, target, normalizer=2.0 * seven)
    assert isinstance(loss, Tensor) and isinstance(doubled, Tensor)
    torch.testing.assert_close(loss, linear_cross_entropy(x, weight, target, normalizer=seven, logit_softcap=5.0))
    torch.testing.assert_close(doubled, loss / 2.0)
    assert "normalizer" not in kept.state_dict() and "memory_limit=0" in repr(kept)
