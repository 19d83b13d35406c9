# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``distillation_loss`` and ``DistillationLoss`` beside PyTorch's operators in float64, and under its machinery."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nkilib.torch import DistillationLoss, distillation_loss

ops = torch.ops.nkilib
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"direction": "reverse", "temperature": 2.0, "temperature_squared": True},
    {"beta": 0.5, "temperature": 0.5},
    {"beta": 0.1, "reduction": "batchmean"},
    {"beta": 1.0, "reduction": "sum"},
    {"reduction": "none"},
    {"temperature": torch.tensor([[0.5, 2.0, 1.0], [8.0, 0.7, 3.0]]), "temperature_squared": True, "beta": 0.3},
    {"temperature": torch.tensor([[0.5], [3.0]]), "direction": "reverse"},
    {"temperature": torch.tensor(2.0)},
)


def logits(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits of a student and a teacher, and labels, one of which is ignored."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(2, 3, 70, generator=generator).to(dtype) for _ in range(2))
    labels = torch.tensor([[0, -100, 5], [3, 3, 1]])
    return student.requires_grad_(), teacher, labels


def of_pytorch(student: Tensor, teacher: Tensor, labels: Tensor | None, **form: Any) -> Tensor:
    """The same from PyTorch's operators, in float64."""
    temperature = torch.as_tensor(form.get("temperature", 1.0), dtype=torch.float64)
    divisor = temperature[..., None] if temperature.dim() else temperature
    q, p = (F.log_softmax(tensor.double() / divisor, -1) for tensor in (student, teacher))
    beta = form.get("beta", 1.0 if form.get("direction") == "reverse" else 0.0)

    def kl(target: Tensor, input: Tensor) -> Tensor:
        return F.kl_div(input, target, reduction="none", log_target=True).sum(-1)

    if beta in (0.0, 1.0):
        loss = kl(p, q) if beta == 0.0 else kl(q, p)
    else:
        mixture = (beta * p.exp() + (1 - beta) * q.exp()).log()
        loss = beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)
    counts = torch.ones_like(loss, dtype=torch.bool) if labels is None else labels != -100
    loss = torch.where(counts, loss, 0.0) * (temperature**2 if form.get("temperature_squared") else 1.0)
    reduction = form.get("reduction", "mean")
    divisors = {"mean": counts.sum(), "batchmean": len(loss), "sum": 1}
    return loss if reduction == "none" else loss.sum() / divisors[reduction]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("has_labels", [True, False])
def test_values_and_gradients(form: dict[str, Any], has_labels: bool) -> None:
    student, teacher, labels = logits()
    inputs = labels if has_labels else None
    expected = of_pytorch(student, teacher, inputs, **form)
    (of_expected,) = torch.autograd.grad(expected.sum(), student)
    loss = distillation_loss(student, teacher, labels=inputs, **form)
    (gradient,) = torch.autograd.grad(loss.sum(), student)
    torch.testing.assert_close(loss, expected.float(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(gradient, of_expected, rtol=1e-5, atol=1e-6)
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_and_layouts(dtype: torch.dtype) -> None:
    student, teacher, labels = logits(dtype)
    moved = teacher.movedim(-1, 0).contiguous().movedim(0, -1).float()
    loss = distillation_loss(student, moved, labels=labels)
    torch.testing.assert_close(loss.double(), of_pytorch(student, teacher, labels), rtol=1e-5, atol=1e-6)
    loss.backward()
    assert student.grad is not None
    assert student.grad.dtype == dtype


def test_in_place_and_checkpointed() -> None:
    student, teacher, labels = logits()
    (expected,) = torch.autograd.grad(distillation_loss(student, teacher, labels=labels), student)
    computed = student * 1.0
    distillation_loss(computed, teacher, labels=labels, inplace=True).backward()
    assert torch.equal(student.grad, expected)
    assert torch.equal(computed.detach(), expected)
    student.grad = None
    module = DistillationLoss()
    checkpoint(lambda tensor: module(tensor, teacher, labels), student, use_reentrant=False).backward()
    assert torch.equal(student.grad, expected)


def test_compiled_and_under_autocast() -> None:
    student, teacher, labels = logits()
    module = DistillationLoss(beta=0.5)
    expected = module(student, teacher, labels)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(student, teacher, labels), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(student, teacher, labels), expected)


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient")
def test_gradcheck() -> None:
    """float32 alone: differences over steps of 1e-2 leave some 1e-4 of rounding and curvature."""
    student, teacher, _ = logits()
    leaf, teacher = student.detach()[0, :2, :5].clone().requires_grad_(), teacher[0, :2, :5].clone()
    for beta in (0.0, 1.0, 0.5):
        assert torch.autograd.gradcheck(
            lambda tensor, beta=beta: distillation_loss(tensor, teacher, beta=beta, reduction="sum"),
            (leaf,),
            eps=1e-2,
            atol=2e-3,
            rtol=2e-3,
            nondet_tol=0.0,
        )


def test_opcheck() -> None:
    student, teacher, labels = logits()
    rows = student.detach().reshape(6, 70).requires_grad_(), teacher.reshape(6, 70), labels.reshape(-1).int()
    options = {"beta": 0.5, "temperature": 2.0, "ignore_index": -100}
    torch.library.opcheck(ops.distillation_forward.default, rows, options)
    saved = ops.distillation_forward(*rows, **options)[1:]
    inputs = (rows[0].detach(), rows[1], *saved, torch.ones(6), rows[2])
    torch.library.opcheck(ops.distillation_backward.default, inputs, options)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ValueError, "is not a valid value for direction", {"direction": "backward"}),
        (ValueError, "is not a valid value for reduction", {"reduction": "avg"}),
        (ValueError, "beta must be from 0 to 1", {"beta": -0.1}),
        (ValueError, "temperature must be from", {"temperature": 0.0}),
        (TypeError, "'temperature' must be float", {"temperature": "1"}),
        (ValueError, "ignore_index must be an int32", {"ignore_index": 2**31}),
        (ValueError, "must have the shape of student_logits", {"teacher_logits": torch.ones(2, 3, 71)}),
        (
            TypeError,
            "in bfloat16, float16 or float32, got torch.float64",
            {"teacher_logits": torch.ones(2, 3, 70).double()},
        ),
        (RuntimeError, "teacher_logits.detach()", {"teacher_logits": torch.ones(2, 3, 70, requires_grad=True)}),
        (ValueError, "labels must have the shape of the positions", {"labels": torch.ones(2, dtype=torch.int64)}),
        (TypeError, "labels must be integers", {"labels": torch.ones(2, 3)}),
        (RuntimeError, "would overwrite a leaf", {"inplace": True}),
    ],
)
def test_refused(error: type[Exception], message: str, changes: dict[str, Any]) -> None:
    student, teacher, _ = logits()
    arguments = {"student_logits": student, "teacher_logits": teacher, **changes}
    with pytest.raises(error) as caught:
        distillation_loss(**arguments)
    assert str(caught.value).startswith("distillation_loss: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_a_mean_over_labels_is_that_of_liger(beta: float) -> None:
    generator = torch.Generator().manual_seed(5)
    student, teacher = (torch.randn(6, 40, generator=generator, requires_grad=True) for _ in range(2))
    labels = torch.tensor([1, -100, 2, 3, -100, 0])
    log_q, log_p = student.log_softmax(-1), teacher.detach().log_softmax(-1)
    mixture = beta * log_p.exp() + (1 - beta) * log_q.exp()
    terms = beta * log_p.exp() * log_p + (1 - beta) * log_q.exp() * log_q - mixture * mixture.log()
    if beta in (0.0, 1.0):  # where its mixture is one of the two, the divergence from the other
        weights, sign = (log_p, 1.0) if beta == 0.0 else (log_q, -1.0)
        terms = sign * weights.exp() * (log_p - log_q)
    expected = terms[labels != -100].sum() / (labels != -100).sum()
    (gradient,) = torch.autograd.grad(expected, student)
    loss = distillation_loss(student, teacher.detach(), labels=labels, beta=beta)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, student)[0], gradient)
