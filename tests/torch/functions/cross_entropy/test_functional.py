# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses and gradients for every combination of PyTorch's arguments, on PyTorch's own samples, and with the options and
outputs that PyTorch lacks, in float64 on the same inputs.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nkilib.torch import CrossEntropyLoss, CrossEntropyOutputs, cross_entropy
from tests.torch.formula import capped, entropy_of, formula
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
from tests.torch.opinfo import DTYPES as SAMPLED_DTYPES
from tests.torch.opinfo import Checked, Difference, module_samples, op_samples
from tests.torch.reduced import SUMS_OF_PYTORCH
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


SCALE = 0.05
SOFTCAP = 4.0


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
@pytest.mark.parametrize("scale", [0.0, SCALE])
@pytest.mark.parametrize("extras", [{"temperature": 0.6}, {"label_smoothing": 0.1, "weight": make_weight()}])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap_and_z_loss(
    dtype: torch.dtype, reduction: str, soft: bool, extras: dict[str, Any], scale: float, softcap: float | None
) -> None:
    x = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    target = make_probabilities(POSITIONS, CLASSES) if soft else make_targets(POSITIONS, ignored=-100)
    upstream = make_logits(POSITIONS, seed=9) if reduction == "none" else torch.tensor(1.0)
    expected = formula(x, target, softcap, scale, reduction, **extras)
    actual = cross_entropy(x, target, reduction=reduction, logit_softcap=softcap, lse_square_scale=scale, **extras)
    assert_loss(actual.detach(), expected.detach(), 30.0 * POSITIONS)
    expected_gradient = gradient_of(expected, x, upstream.double()).double()
    # The exact gradient comes back through the cast in the type of x; in float32 that costs half a unit.
    x64 = x.detach().double().requires_grad_()
    expected_gradient = gradient_of(formula(x64, target, softcap, scale, reduction, **extras), x64, upstream.double())
    assert_gradient(gradient_of(actual, x, upstream), expected_gradient, 12.0)


def test_minus_inf_stays_minus_inf_under_a_softcap() -> None:
    x = make_logits(POSITIONS, CLASSES)
    x[:, -3:] = -torch.inf
    x.requires_grad_()
    target = make_targets(POSITIONS, classes=CLASSES - 3)
    loss = cross_entropy(x, target, logit_softcap=SOFTCAP)
    unpadded = x.detach()[:, :-3].double().requires_grad_()
    expected = formula(unpadded, target, SOFTCAP, 0.0)
    assert_loss(loss.detach(), expected.detach(), 10.0)
    gradient = gradient_of(loss, x)
    assert_gradient(gradient[:, :-3], gradient_of(expected, unpadded), 1.0)
    assert torch.equal(gradient[:, -3:], torch.zeros(POSITIONS, 3))


def test_the_normalizer_replaces_the_divisor() -> None:
    x, target = make_logits(POSITIONS, CLASSES).requires_grad_(), make_targets(POSITIONS, ignored=-100)
    normalizer = torch.tensor(37)
    loss = cross_entropy(x, target, make_weight(), normalizer=normalizer)
    x64 = x.detach().double().requires_grad_()
    expected = formula(x64, target, None, 0.0, "sum", weight=make_weight()) / 37
    assert_loss(loss.detach(), expected.detach(), 5.0)
    assert_gradient(gradient_of(loss, x), gradient_of(expected, x64), 0.1)


def outputs_of(x: Tensor, target: Tensor, **arguments: Any) -> CrossEntropyOutputs:
    return cross_entropy(x, target, return_outputs=True, **arguments)


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_outputs_are_what_their_names_say(dtype: torch.dtype, softcap: float | None) -> None:
    x, target = make_logits(POSITIONS, CLASSES, dtype=dtype), make_targets(POSITIONS, ignored=-100)
    outputs = outputs_of(x, target, logit_softcap=softcap, lse_square_scale=SCALE)
    z = capped(x, softcap)
    logprobs, valid = z.log_softmax(1), target != -100
    chosen = logprobs.gather(1, target.clamp(min=0)[:, None])[:, 0]
    assert_loss(outputs.lse, z.logsumexp(1), 15.0)
    assert_loss(outputs.entropy, -(logprobs.exp() * logprobs).sum(1), 30.0)
    assert outputs.logprob is not None
    assert_loss(outputs.logprob, torch.where(valid, chosen, 0.0), 15.0)
    assert_loss(outputs.z_loss, SCALE * z.logsumexp(1).square()[valid].sum() / valid.sum(), 10.0)
    assert torch.equal(outputs.argmax, z.argmax(1))
    assert torch.equal(outputs.loss, cross_entropy(x, target, logit_softcap=softcap, lse_square_scale=SCALE))


def test_the_outputs_have_the_shape_of_the_targets() -> None:
    x, target = make_logits(2, CLASSES, 3), make_targets(2, 3)
    outputs = outputs_of(x, target)
    shapes = [tensor.shape for tensor in outputs if tensor is not None]
    assert shapes == [(), (2, 3), (), (2, 3), (2, 3), (2, 3)]
    assert outputs.argmax.dtype == torch.int64
    assert outputs_of(x, target, reduction="none", lse_square_scale=SCALE).z_loss.shape == (2, 3)
    unbatched = outputs_of(x[0, :, 0], target[0, 0])
    assert [tensor.shape for tensor in unbatched if tensor is not None] == [()] * 6


def test_class_probabilities_have_no_logprob() -> None:
    outputs = outputs_of(make_logits(POSITIONS, CLASSES), make_probabilities(POSITIONS, CLASSES))
    assert outputs.logprob is None


@pytest.mark.parametrize("softcap", [None, SOFTCAP])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lse_logprob_z_loss_and_entropy_are_differentiable(
    dtype: torch.dtype, soft: bool, softcap: float | None
) -> None:
    x = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    target = make_probabilities(POSITIONS, CLASSES) if soft else make_targets(POSITIONS, ignored=-100)
    factors = make_logits(3, POSITIONS, seed=9)
    recipe: dict[str, Any] = {"label_smoothing": 0.1, "temperature": 1.5}
    outputs = outputs_of(x, target, logit_softcap=softcap, lse_square_scale=SCALE, **recipe)
    mixed = 2.0 * outputs.loss + (factors[0] * outputs.lse).sum() + 3.0 * outputs.z_loss
    mixed = mixed + (factors[2] * outputs.entropy).sum()
    x64 = x.detach().double().requires_grad_()
    z, counted = capped(x64, softcap, 1.5), torch.ones(POSITIONS) if soft else (target != -100).double()
    z_loss = SCALE * (counted * z.logsumexp(1).square()).sum() / counted.sum()
    expected = 2.0 * formula(x64, target, softcap, SCALE, **recipe) + (factors[0] * z.logsumexp(1)).sum()
    expected = expected + 3.0 * z_loss + (factors[2] * entropy_of(z)).sum()
    if outputs.logprob is not None:
        mixed = mixed + (factors[1] * outputs.logprob).sum()
        logprob = z.log_softmax(1).gather(1, target.clamp(min=0)[:, None])[:, 0]
        expected = expected + (factors[1] * counted * logprob).sum()
    assert_gradient(gradient_of(mixed, x), gradient_of(expected, x64), 20.0)


def test_the_argmax_is_a_constant() -> None:
    x = make_logits(POSITIONS, CLASSES).requires_grad_()
    outputs = outputs_of(x, make_targets(POSITIONS))
    assert not outputs.argmax.requires_grad and outputs.entropy.requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_entropy_alone_and_of_masked_classes(dtype: torch.dtype) -> None:
    """Where a class is -inf, p log p and its gradient are 0; ignored positions have an entropy, too."""
    x = make_logits(POSITIONS, CLASSES, dtype=dtype)
    x[:, -3:], x[0, 1:4] = -torch.inf, -torch.inf
    x.requires_grad_()
    target, upstream = make_targets(POSITIONS, ignored=-100), make_logits(POSITIONS, seed=9)
    target[1] = CLASSES - 1  # itself masked: its loss is infinite, and nobody uses it
    outputs = outputs_of(x, target)
    x64 = x.detach().double().requires_grad_()
    exact = entropy_of(x64)
    assert_loss(outputs.entropy.detach(), exact.detach(), 10.0)
    gradient = gradient_of(outputs.entropy, x, upstream)
    assert_gradient(gradient, gradient_of(exact, x64, upstream.double()), 10.0)
    assert not gradient[:, -3:].any() and gradient[target == -100].any()


def test_outputs_in_place() -> None:
    leaf = make_logits(POSITIONS, CLASSES).requires_grad_()
    target = make_targets(POSITIONS)
    gradients = []
    for inplace in (False, True):
        outputs = outputs_of(leaf.clone(), target, inplace=inplace)
        assert outputs.logprob is not None
        gradients.append(gradient_of(outputs.loss + outputs.lse.sum() + outputs.logprob[0], leaf))
    assert torch.equal(*gradients)


_IS_ROUNDED = Difference(
    "losses are float32 whatever the type of the logits",
    lambda sample: sample.dtype != torch.float32,
    result_dtype=torch.float32,
)
_NAME = "nn.functional.cross_entropy"


def _checked(ours: Any, theirs: Any, dtype: torch.dtype) -> Checked:
    return Checked(ours, theirs, values=SUMS_OF_PYTORCH, differences=[_IS_ROUNDED] if dtype != torch.float32 else [])


@pytest.mark.parametrize("dtype", SAMPLED_DTYPES)
def test_samples(dtype: torch.dtype) -> None:
    of_function = _checked(cross_entropy, F.cross_entropy, dtype)
    of_function.check(op_samples(_NAME, dtype))
    of_function.check_each_difference_is_met(op_samples(_NAME, dtype))
    _checked(CrossEntropyLoss, nn.CrossEntropyLoss, dtype).check(module_samples("CrossEntropyLoss", dtype))


def test_float64_is_refused_with_the_remedy() -> None:
    Checked(cross_entropy, F.cross_entropy).check_float64_is_refused(op_samples(_NAME, torch.float64))
