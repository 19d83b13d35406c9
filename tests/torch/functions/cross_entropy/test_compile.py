# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""torch.compile, functional_call and tensors without data: nothing depends on a value, and results are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from nkilib.torch import CrossEntropyLoss, cross_entropy
from tests.torch.inputs import (
    CLASSES,
    DTYPES,
    POSITIONS,
    gradient_of,
    make_logits,
    make_probabilities,
    make_targets,
    make_weight,
)

pytestmark = pytest.mark.usefixtures("compile_afresh")

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "none": {"reduction": "none"},
    "everything": {
        "weight": make_weight(),
        "ignore_index": 3,
        "label_smoothing": 0.1,
        "logit_softcap": 5.0,
        "lse_square_scale": 0.1,
    },
    "normalizer": {"normalizer": torch.tensor(7.0)},
}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES[:2])  # on which graph and schema do not depend
def test_a_full_graph_gives_equal_results(dtype: torch.dtype, options: str, soft: bool) -> None:
    arguments = OPTIONS[options]
    if soft and "ignore_index" in arguments:
        arguments = {**arguments, "ignore_index": -100}
    x = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    target = make_probabilities(POSITIONS, CLASSES) if soft else make_targets(POSITIONS, ignored=-100)
    target = make_targets(POSITIONS, ignored=3) if not soft and "ignore_index" in arguments else target
    loss = cross_entropy(x, target, **arguments)
    upstream = torch.ones_like(loss)
    compiled = torch.compile(cross_entropy, fullgraph=True, backend="aot_eager")(x, target, **arguments)
    assert torch.equal(compiled, loss)
    assert torch.equal(gradient_of(compiled, x, upstream), gradient_of(loss, x, upstream))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_full_graph_with_all_outputs(dynamic: bool) -> None:
    def outputs(x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return tuple(cross_entropy(x, target, lse_square_scale=0.1, return_outputs=True, class_dim=-1))  # type: ignore[arg-type]

    compiled = torch.compile(outputs, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch in (2, 5):
        x, target = make_logits(batch, 3, CLASSES).requires_grad_(), make_targets(batch, 3, ignored=-100)
        expected, actual = outputs(x, target), compiled(x, target)
        assert all(torch.equal(e, a) for e, a in zip(expected, actual, strict=True))
        losses = [r[0] + r[1].sum() + r[2] + r[3].sum() for r in (expected, actual)]
        torch.testing.assert_close(gradient_of(losses[1], x), gradient_of(losses[0], x))


class Model(nn.Module):
    """Hidden states to a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, CLASSES)
        self.criterion = CrossEntropyLoss(make_weight(), label_smoothing=0.1)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.criterion(self.head(hidden), target)
        return loss


def test_functional_call_gives_equal_results() -> None:
    model, hidden, target = Model(), make_logits(POSITIONS, 8), make_targets(POSITIONS)
    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    tensors = {**parameters, **dict(model.named_buffers())}
    expected = model(hidden, target)
    actual = torch.func.functional_call(model, tensors, (hidden, target))
    assert torch.equal(actual, expected)
    expected.backward()
    actual.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.equal(parameters[name].grad, parameter.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_value_is_looked_at(reduction: str, device: str) -> None:
    """Fake tensors have no values: .item(), a branch on one and a shape that depends on one all raise."""
    with FakeTensorMode():
        x = torch.empty(2, 3, CLASSES, device=device, dtype=torch.bfloat16, requires_grad=True)
        for target in (torch.empty(2, 3, device=device, dtype=torch.int64), torch.empty_like(x, requires_grad=False)):
            outputs = cross_entropy(
                x,
                target,
                torch.empty(CLASSES, device=device),
                reduction=reduction,
                label_smoothing=0.1,
                logit_softcap=30.0,
                lse_square_scale=1e-4,
                return_outputs=True,
                class_dim=-1,
            )
            (gradient,) = torch.autograd.grad(outputs.loss.sum() + outputs.lse.sum(), x)
            assert (gradient.shape, gradient.dtype, gradient.device.type) == (x.shape, x.dtype, device)
            assert outputs.loss.shape == ((2, 3) if reduction == "none" else ())
            assert outputs.loss.device.type == device
