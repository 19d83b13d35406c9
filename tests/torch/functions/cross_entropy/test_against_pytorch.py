# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every combination of PyTorch's arguments gives PyTorch's losses and gradients, in float64 on the same inputs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from nkilib.torch import CrossEntropyLoss, cross_entropy
from tests.torch.inputs import (
    CLASSES,
    DTYPES,
    POSITIONS,
    exact,
    gradient_of,
    make_logits,
    make_probabilities,
    make_targets,
    make_weight,
)
from tests.torch.operator_log import OperatorLog
from tests.torch.telling import assert_gradient, assert_loss

REDUCTIONS = ["mean", "sum", "none"]
MAGNITUDE = 30.0  # of weights, at most 1.5, times the largest logit, below 14, plus log V


def assert_pytorchs(x: torch.Tensor, target: torch.Tensor, class_dim: int = 1, **arguments: Any) -> None:
    """Loss and gradient of ``cross_entropy`` are those of F.cross_entropy."""
    x = x.detach().requires_grad_()
    loss = cross_entropy(x, target, class_dim=class_dim, **arguments)
    upstream = None
    if arguments.get("reduction") == "none":
        upstream = make_logits(*loss.shape, seed=9) if loss.dim() else torch.tensor(1.7)
    classes_second = x if class_dim == 1 else x.movedim(-1, 1)
    soft = target.shape == x.shape and class_dim == -1
    expected, expected_gradient = exact(
        classes_second, target.movedim(-1, 1) if soft else target, upstream, **arguments
    )
    if class_dim == -1:
        expected_gradient = expected_gradient.movedim(1, -1)
    terms = loss.new_ones(()).item() if arguments.get("reduction") != "sum" else target.numel()
    assert_loss(loss.detach(), expected, MAGNITUDE * terms)
    gradient = gradient_of(loss, x, upstream)
    assert gradient.dtype == x.dtype
    assert_gradient(gradient, expected_gradient, 1.5 * (1.0 if upstream is None else upstream.abs().max().item()))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("ignore_index", "ignored"), [(-100, None), (-100, -100), (3, 3), (-1, -1)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_class_indices(
    dtype: torch.dtype, reduction: str, ignore_index: int, ignored: int | None, weighted: bool, smoothing: float
) -> None:
    assert_pytorchs(
        make_logits(POSITIONS, CLASSES, dtype=dtype),
        make_targets(POSITIONS, ignored=ignored),
        weight=make_weight() if weighted else None,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=smoothing,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_class_probabilities(dtype: torch.dtype, reduction: str, weighted: bool, smoothing: float) -> None:
    assert_pytorchs(
        make_logits(POSITIONS, CLASSES, dtype=dtype),
        make_probabilities(POSITIONS, CLASSES),
        weight=make_weight() if weighted else None,
        reduction=reduction,
        label_smoothing=smoothing,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    "shape", [(CLASSES,), (4, CLASSES), (2, CLASSES, 3), (2, CLASSES, 3, 2), (2, CLASSES, 1, 2, 3)]
)
def test_shapes_of_pytorch(shape: tuple[int, ...], soft: bool, reduction: str) -> None:
    axis = min(1, len(shape) - 1)
    positions = shape[:axis] + shape[axis + 1 :]
    target = make_probabilities(*shape, class_dim=axis) if soft else make_targets(*positions)
    assert_pytorchs(make_logits(*shape), target, reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("shape", [(4, CLASSES), (2, 3, CLASSES), (2, 3, 2, CLASSES)])
def test_classes_last(shape: tuple[int, ...], soft: bool, reduction: str) -> None:
    target = make_probabilities(*shape, class_dim=-1) if soft else make_targets(*shape[:-1])
    assert_pytorchs(make_logits(*shape), target, class_dim=-1, reduction=reduction)


def test_one_position_with_a_target_of_one_element() -> None:
    logits, target = make_logits(CLASSES), torch.tensor([4])
    for reduction in REDUCTIONS:
        ours, theirs = (f(logits, target, reduction=reduction) for f in (cross_entropy, F.cross_entropy))
        torch.testing.assert_close(ours, theirs)  # shapes too


def test_logits_that_are_not_contiguous() -> None:
    assert_pytorchs(make_logits(CLASSES, POSITIONS).t(), make_targets(POSITIONS))
    assert_pytorchs(make_logits(POSITIONS, 2 * CLASSES)[:, ::2], make_targets(POSITIONS))
    assert_pytorchs(make_logits(1, CLASSES).expand(POSITIONS, CLASSES), make_targets(POSITIONS), reduction="none")


INDEX_DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
def test_targets_of_any_integer_dtype(dtype: torch.dtype) -> None:
    assert_pytorchs(make_logits(POSITIONS, CLASSES), make_targets(POSITIONS, ignored=7).to(dtype), ignore_index=7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_class_probabilities_of_other_dtypes(dtype: torch.dtype) -> None:
    assert_pytorchs(make_logits(POSITIONS, CLASSES), make_probabilities(POSITIONS, CLASSES).to(dtype))


@pytest.mark.parametrize("ignore_index", [2**40, -(2**40), 2**31, 156])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ignore_index_that_no_target_has(ignore_index: int, dtype: torch.dtype) -> None:
    assert_pytorchs(make_logits(POSITIONS, CLASSES), make_targets(POSITIONS).to(dtype), ignore_index=ignore_index)


def test_ignore_index_beyond_int32_is_found() -> None:
    target = make_targets(POSITIONS, ignored=2**40)
    assert_pytorchs(make_logits(POSITIONS, CLASSES), target, ignore_index=2**40)


@pytest.mark.parametrize("arguments", [{}, {"label_smoothing": 0.1}, {"weight": make_weight()}])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_no_positions(reduction: str, arguments: dict[str, Any]) -> None:
    x = torch.empty(0, CLASSES, requires_grad=True)
    target = torch.empty(0, dtype=torch.int64)
    loss = cross_entropy(x, target, reduction=reduction, **arguments)
    torch.testing.assert_close(
        loss.detach(), F.cross_entropy(x, target, reduction=reduction, **arguments).detach(), equal_nan=True
    )
    assert gradient_of(loss, x).shape == (0, CLASSES)
    assert cross_entropy(x, target, reduction="none", **arguments).shape == (0,)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_classes_but_nothing_that_counts(reduction: str) -> None:
    x, target = torch.empty(3, 0), torch.full((3,), -100)
    ours, theirs = (f(x, target, reduction=reduction) for f in (cross_entropy, F.cross_entropy))
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_mean_by_weights_of_0_is_nan(smoothing: float) -> None:
    """PyTorch adds a mean of 0 / 0 to what smoothing spreads over classes whose weights are not 0."""
    x = torch.tensor([[1.0, 2.0], [3.0, 1.0]], requires_grad=True)
    target, weight = torch.tensor([0, 0]), torch.tensor([0.0, 1.0])
    losses = [f(x, target, weight, label_smoothing=smoothing) for f in (cross_entropy, F.cross_entropy)]
    assert all(loss.isnan() and gradient_of(loss, x).isnan().all() for loss in losses)


def test_ignored_rows_keep_a_gradient_of_0_beside_an_infinite_weight() -> None:
    """An ignored target is moved to class 0, whose weight must not count."""
    weight = torch.ones(CLASSES)
    weight[0] = torch.inf
    x, target = make_logits(3, CLASSES).requires_grad_(), torch.tensor([-100, 2, -100])
    gradients = [gradient_of(f(x, target, weight, reduction="sum"), x) for f in (cross_entropy, F.cross_entropy)]
    assert not gradients[0][[0, 2]].any()
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16])
def test_the_loss_is_float32_whatever_the_normalizer(dtype: torch.dtype) -> None:
    x, target = make_logits(POSITIONS, CLASSES), make_targets(POSITIONS)
    loss = cross_entropy(x, target, normalizer=torch.tensor(4, dtype=dtype))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(x, target, reduction="sum") / 4)


def test_only_what_depends_on_what_requires_grad_requires_grad() -> None:
    x, y = make_logits(POSITIONS, CLASSES), make_probabilities(POSITIONS, CLASSES).requires_grad_()
    outputs = cross_entropy(x, y, lse_square_scale=0.1, return_outputs=True)
    assert outputs.loss.requires_grad
    assert not (outputs.lse.requires_grad or outputs.z_loss.requires_grad)
    assert cross_entropy(x.requires_grad_(), y, return_outputs=True).lse.requires_grad


def test_the_module_is_the_function() -> None:
    x, target, weight = make_logits(2, CLASSES, 3), make_targets(2, 3, ignored=-1), make_weight()
    arguments: dict[str, Any] = {"ignore_index": -1, "reduction": "sum", "label_smoothing": 0.1}
    theirs = torch.nn.CrossEntropyLoss(weight, **arguments)
    ours = CrossEntropyLoss(weight, **arguments)
    torch.testing.assert_close(ours(x, target), theirs(x, target))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.load_state_dict(theirs.state_dict())
    further: dict[str, Any] = {"logit_softcap": 5.0, "lse_square_scale": 0.1, "class_dim": -1}
    rows = x.movedim(1, -1).contiguous()
    normalizer = torch.tensor(7.0)
    expected = cross_entropy(rows, target, weight, -1, "mean", 0.2, normalizer=normalizer, **further)
    assert torch.equal(
        CrossEntropyLoss(weight, -1, "mean", 0.2, **further)(rows, target, normalizer=normalizer), expected
    )
    kept = CrossEntropyLoss(weight, -1, "mean", 0.2, normalizer=normalizer, **further)
    assert torch.equal(kept(rows, target), expected)
    assert torch.equal(kept(rows, target, normalizer=2.0 * normalizer), expected / 2.0)
    assert "normalizer" not in kept.state_dict()


def test_the_module_takes_every_argument_of_the_function() -> None:
    function = list(inspect.signature(cross_entropy).parameters.values())[2:]
    module = list(inspect.signature(CrossEntropyLoss).parameters.values())
    assert [(entry.name, entry.default, entry.kind) for entry in module] == [
        (entry.name, entry.default, entry.kind) for entry in function
    ]


def test_statistics_and_loss_are_float32_for_bfloat16_logits() -> None:
    loss = cross_entropy(make_logits(POSITIONS, CLASSES, dtype=torch.bfloat16), make_targets(POSITIONS))
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_class_probabilities_and_their_weights_have_gradients(
    dtype: torch.dtype, reduction: str, weighted: bool, smoothing: float, inplace: bool
) -> None:
    values = [make_logits(POSITIONS, CLASSES, dtype=dtype), make_probabilities(POSITIONS, CLASSES)]
    values += [make_weight()] if weighted else []
    gradients = []
    for precision in (None, torch.float64):
        leaves = [value.to(precision or value.dtype).detach().requires_grad_() for value in values]
        x, target, *weight = leaves
        options: dict[str, Any] = {"weight": (weight or [None])[0], "label_smoothing": smoothing}
        loss = (
            F.cross_entropy(x, target, reduction=reduction, **options)
            if precision
            else cross_entropy(x * 1.0, target, reduction=reduction, inplace=inplace, **options)
        )
        upstream = make_logits(POSITIONS, seed=9).to(loss.dtype) if reduction == "none" else None
        gradients.append(torch.autograd.grad(loss, leaves, upstream))
    scale = 1.5 * 30.0  # a weight times lse - z
    for actual, expected in zip(*gradients, strict=True):
        assert_gradient(actual, expected, scale)


def test_gradients_of_probabilities_and_weights_beside_an_infinite_logit_are_nan() -> None:
    x, weight = torch.tensor([[0.0, torch.inf, 1.0], [0.0, 1.0, 2.0]]), make_weight(3).requires_grad_()
    target = make_probabilities(2, 3).requires_grad_()
    of_ours, of_pytorch = (
        torch.autograd.grad(f(x, target, weight), (target, weight)) for f in (cross_entropy, F.cross_entropy)
    )
    assert of_ours[0][0].isnan().all()
    torch.testing.assert_close(of_ours, of_pytorch, equal_nan=True)


def test_only_the_gradients_that_are_asked_for() -> None:
    target = make_probabilities(POSITIONS, CLASSES).requires_grad_()
    x, weight = make_logits(POSITIONS, CLASSES), make_weight()
    loss = cross_entropy(x, target, weight, logit_softcap=4.0, reduction="sum")
    expected = -weight.double() * (4.0 * torch.tanh(x.double() / 4.0)).log_softmax(1)
    with OperatorLog() as log:
        gradient = gradient_of(loss, target)
    assert_gradient(gradient, expected, 10.0)
    assert not any("sum" in name or "nkilib" in name for name in log.names), "of the weight, or of the logits"


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_checkpointing_gives_the_same_gradient(soft: bool, use_reentrant: bool, inplace: bool) -> None:
    x = make_logits(POSITIONS, CLASSES).requires_grad_()
    target = make_probabilities(POSITIONS, CLASSES) if soft else make_targets(POSITIONS)

    def loss_of(logits: torch.Tensor) -> torch.Tensor:
        return cross_entropy(2.0 * logits, target, inplace=inplace)

    expected = gradient_of(loss_of(x), x)
    checkpoint(loss_of, x, use_reentrant=use_reentrant).backward()
    assert x.grad is not None and torch.equal(x.grad, expected)


def test_a_second_derivative_by_the_logits_of_probabilities_gradient_is_refused() -> None:
    x, target = (
        make_logits(POSITIONS, CLASSES).requires_grad_(),
        make_probabilities(POSITIONS, CLASSES).requires_grad_(),
    )
    (gradient,) = torch.autograd.grad(cross_entropy(x, target), target, create_graph=True)
    with pytest.raises(NotImplementedError, match="has no derivative here"):
        gradient.square().sum().backward()
