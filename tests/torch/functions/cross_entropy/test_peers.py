# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Complaints of users of other cross-entropy kernels, each by name: none of it may happen here. Statements of
docs/evidence/peers.md about PyTorch's own losses: a release that changes one changes the page.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from inspect import signature
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from nkilib.torch import CrossEntropyLoss, CrossEntropyOutputs, cross_entropy
from tests.torch.inputs import (
    CLASSES,
    DTYPES,
    POSITIONS,
    exact,
    gradient_of,
    make_logits,
    make_probabilities,
    make_targets,
)
from tests.torch.of_pytorch import linear_only
from tests.torch.operator_log import OperatorLog
from tests.torch.telling import GRADIENT_UNITS, ROUNDING, UNIT, assert_gradient, assert_loss


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_not_overwritten_unless_asked_for(dtype: torch.dtype) -> None:
    x = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    before = x.detach().clone()
    loss = cross_entropy(x, make_targets(POSITIONS), label_smoothing=0.1, logit_softcap=5.0)
    loss.backward()
    assert torch.equal(x, before) and x._version == 0


def test_every_position_has_its_own_upstream_gradient() -> None:
    x, target = make_logits(POSITIONS, CLASSES).requires_grad_(), make_targets(POSITIONS)
    upstream = torch.tensor([1.0, -2.0, 0.0, 0.5, 100.0, -0.01])
    gradient = gradient_of(cross_entropy(x, target, reduction="none"), x, upstream)
    expected = exact(x, target, upstream, reduction="none")[1]
    for row in range(POSITIONS):
        if upstream[row]:
            assert_gradient(gradient[row], expected[row], float(upstream[row].abs()))
        else:
            assert not gradient[row].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.999, 0.9999, 0.9])
def test_the_gradient_at_a_confident_target_is_not_rounded_before_the_subtraction(p: float, dtype: torch.dtype) -> None:
    """p - 1 from a p rounded to bfloat16 is 0 at p = 0.999: all of it lost."""
    x = torch.zeros(POSITIONS, CLASSES)
    x[:, 2] = math.log(p / (1 - p) * (CLASSES - 1))
    x = x.to(dtype).requires_grad_()
    target = torch.full((POSITIONS,), 2)
    gradient = gradient_of(cross_entropy(x, target, reduction="sum"), x)
    expected = exact(x, target, reduction="sum")[1]
    # p - 1 keeps float32's accuracy of p: 16 u, relative to 1 - p.
    rounding = ROUNDING[dtype]
    tolerance = (rounding + 16 * UNIT / (1 - p)) * expected[:, 2].abs()
    assert ((gradient[:, 2].double() - expected[:, 2]).abs() <= tolerance).all()
    assert (gradient[:, 2] < 0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.usefixtures("compile_afresh")
def test_ignored_rows_are_right_under_torch_compile(reduction: str) -> None:
    x = make_logits(POSITIONS, CLASSES).requires_grad_()
    target = make_targets(POSITIONS, ignored=-100)
    loss = torch.compile(cross_entropy, fullgraph=True, backend="aot_eager")(x, target, reduction=reduction)
    upstream = make_logits(POSITIONS, seed=9) if reduction == "none" else None
    expected, expected_gradient = exact(x, target, upstream, reduction=reduction)
    assert_loss(loss.detach(), expected, 20.0 * POSITIONS)
    gradient = gradient_of(loss, x, upstream)
    assert_gradient(gradient, expected_gradient, 10.0)
    assert not gradient[target == -100].any()


def test_gradient_accumulation_with_a_normalizer_equals_one_large_batch() -> None:
    x, target = make_logits(12, CLASSES), make_targets(12, ignored=-100)
    target[:3] = -100  # micro-batches with unlike counts: a mean of means would be wrong
    target[3] = 1
    whole = x.clone().requires_grad_()
    parts = x.clone().requires_grad_()
    cross_entropy(whole, target).backward()
    count = (target != -100).sum()
    for rows in torch.arange(12).split(4):
        cross_entropy(parts[rows], target[rows], normalizer=count).backward()
    assert whole.grad is not None and parts.grad is not None
    torch.testing.assert_close(parts.grad, whole.grad, rtol=4 * UNIT, atol=0.0)
    assert_gradient(parts.grad, exact(x, target)[1], 1.0)


def test_accuracy_and_logprobs_come_with_the_loss() -> None:
    x, target = make_logits(POSITIONS, CLASSES), make_targets(POSITIONS)
    outputs = cross_entropy(x, target, return_outputs=True)
    assert isinstance(outputs, CrossEntropyOutputs)
    assert torch.equal(outputs.argmax == target, x.argmax(1) == target)
    assert outputs.logprob is not None
    assert_loss(outputs.logprob, -exact(x, target, torch.ones(POSITIONS), reduction="none")[0], 10.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_no_logprob_is_positive_and_no_loss_or_entropy_negative(scale: float, dtype: torch.dtype) -> None:
    x = make_logits(64, CLASSES, dtype=dtype, spread=scale)
    x[::2, 3] = x[::2].max(1).values + torch.tensor(scale, dtype=dtype)
    target = torch.where(torch.arange(64) % 2 == 0, 3, make_targets(64))
    outputs = cross_entropy(x, target, reduction="none", return_outputs=True)
    assert outputs.logprob is not None
    assert (outputs.logprob <= 0).all()
    assert (outputs.loss >= 0).all()
    assert (outputs.entropy >= 0).all()


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mixed_dtypes_have_defined_results(dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    x = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    weight = (torch.arange(CLASSES) / 8 + 0.5).to(weight_dtype)  # exact in every type
    for target in (make_targets(POSITIONS), make_probabilities(POSITIONS, CLASSES)):
        loss = cross_entropy(x, target, weight)
        expected, expected_gradient = exact(x, target, weight=weight)
        assert_loss(loss.detach(), expected, 50.0)
        gradient = gradient_of(loss, x)
        assert gradient.dtype == dtype
        assert_gradient(gradient, expected_gradient, 2.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_a_float32_loss_of_its_logits(dtype: torch.dtype) -> None:
    head, hidden, target = nn.Linear(8, CLASSES), make_logits(POSITIONS, 8), make_targets(POSITIONS)
    with torch.autocast("cpu", dtype=dtype):
        logits = head(hidden)
        loss = cross_entropy(logits, target)
    assert logits.dtype == dtype and loss.dtype == torch.float32
    assert_loss(loss.detach(), exact(logits, target)[0], 10.0)
    assert_gradient(gradient_of(loss, logits), exact(logits, target)[1], 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8.0, 1000.0])
def test_a_large_bias_of_the_output_layer_gives_no_negative_loss(size: float, dtype: torch.dtype) -> None:
    """A bias that counts at the target more often than in the log-sum-exp makes the loss negative, by about itself."""
    hidden, target = make_logits(POSITIONS, 8), make_targets(POSITIONS)
    bias = (size + make_logits(CLASSES, seed=4, spread=0.5)).requires_grad_()
    logits = F.linear(hidden, make_logits(CLASSES, 8, seed=5, spread=0.3), bias).to(dtype)
    loss = cross_entropy(logits, target, reduction="none")
    upstream = make_logits(POSITIONS, seed=9)
    expected, expected_gradient = exact(logits, target, upstream, reduction="none")
    assert (loss >= 0).all()
    assert_loss(loss.detach(), expected, 10.0)
    scale = upstream.abs().max().item()
    gradients = torch.autograd.grad(loss, (logits, bias), upstream)
    assert_gradient(gradients[0], expected_gradient, scale)
    # The bias sums what each position rounded, to bfloat16 where the logits are.
    rounded = expected_gradient.abs().sum(0).max().item() * ROUNDING[dtype]
    assert_gradient(gradients[1], expected_gradient.sum(0), POSITIONS * scale + rounded / (GRADIENT_UNITS * UNIT))


def test_gradients_are_exact_and_small_ones_are_not_dropped() -> None:
    x = make_logits(POSITIONS, CLASSES, spread=1.0)
    x[:, 0] += 25.0
    x = x.requires_grad_()
    gradient = gradient_of(cross_entropy(x, torch.zeros(POSITIONS, dtype=torch.int64), reduction="sum"), x)
    expected = exact(x, torch.zeros(POSITIONS, dtype=torch.int64), reduction="sum")[1]
    assert (expected[:, 1:] < 1e-6).all()
    torch.testing.assert_close(gradient[:, 1:].double(), expected[:, 1:], rtol=64 * UNIT, atol=0.0)


def test_minus_inf_padding_is_masked_after_the_softcap() -> None:
    x = make_logits(POSITIONS, CLASSES)
    x[:, -1] = -torch.inf
    target = make_targets(POSITIONS, classes=CLASSES - 1)
    capped = cross_entropy(x, target, logit_softcap=3.0, reduction="none")
    unpadded = cross_entropy(x[:, :-1], target, logit_softcap=3.0, reduction="none")
    torch.testing.assert_close(capped, unpadded, rtol=0.0, atol=8 * UNIT)


def test_shapes_do_not_depend_on_what_is_ignored_and_nothing_is_read_back() -> None:
    recorded = []
    for ignored in (None, -100):
        x, target = make_logits(POSITIONS, CLASSES).requires_grad_(), make_targets(POSITIONS, ignored=ignored)
        with OperatorLog() as recorder:
            outputs = cross_entropy(x, target, label_smoothing=0.1, lse_square_scale=0.1, return_outputs=True)
            outputs.loss.backward()
        recorded.append(recorder.calls)
    assert recorded[0] == recorded[1]
    names = {name for name, _ in recorded[0]}
    assert "nkilib::cross_entropy_backward" in names
    assert not names & {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::index.Tensor"}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_ignored_gives_pytorchs_nan_and_a_gradient_of_zero(
    dtype: torch.dtype, inplace: bool, smoothing: float
) -> None:
    target = torch.full((POSITIONS,), -100)
    leaf = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    loss = cross_entropy(leaf.clone(), target, inplace=inplace, label_smoothing=smoothing)
    expected, expected_gradient = exact(leaf, target, label_smoothing=smoothing)
    assert loss.isnan() and expected.isnan()
    gradient = gradient_of(loss, leaf)
    assert not gradient.any() and not expected_gradient.any()
    assert cross_entropy(leaf, target, reduction="sum") == 0.0
    assert not cross_entropy(leaf, target, reduction="none").any()


def test_a_second_backward_works_out_of_place() -> None:
    x, target = make_logits(POSITIONS, CLASSES).requires_grad_(), make_targets(POSITIONS)
    loss = cross_entropy(x, target)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert_gradient(second, exact(x, target)[1], 1.0)


def test_the_module_and_the_function_take_input_and_target_in_pytorchs_order() -> None:
    pytorchs = [name for name in signature(F.cross_entropy).parameters if name not in ("size_average", "reduce")]
    assert list(signature(cross_entropy).parameters)[: len(pytorchs)] == pytorchs
    assert list(signature(CrossEntropyLoss.forward).parameters)[1:3] == ["input", "target"]


chunks_probabilities = Version(torch.__version__) >= Version("2.14")


def chunked(input: Tensor, weight: Tensor, target: Tensor, retain: bool = False, **arguments: Any) -> Tensor:
    """``F.linear_cross_entropy`` that never has the logits of more than 2 positions in memory."""
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2, chunking_method=None, allow_retain_graph=retain)
    return F.linear_cross_entropy(input, weight, target, options=options, **arguments)


def layer(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    hidden = make_logits(POSITIONS, 8, dtype=dtype).requires_grad_()
    return hidden, make_logits(CLASSES, 8, dtype=dtype, seed=5, spread=0.3).requires_grad_()


def test_the_loss_of_bfloat16_logits_is_bfloat16_but_under_autocast_float32() -> None:
    x, target = make_logits(POSITIONS, CLASSES, dtype=torch.bfloat16), make_targets(POSITIONS)
    assert F.cross_entropy(x, target).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.cross_entropy(x, target).dtype == torch.float32


def test_a_second_backward_is_the_first() -> None:
    x, target = make_logits(POSITIONS, CLASSES).requires_grad_(), make_targets(POSITIONS)
    loss = F.cross_entropy(x, target)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert_gradient(second, exact(x, target)[1], 1.0)


def test_a_class_out_of_range_raises_on_the_cpu() -> None:
    with pytest.raises(IndexError, match="Target 11 is out of bounds"):
        F.cross_entropy(make_logits(POSITIONS, CLASSES), torch.full((POSITIONS,), CLASSES))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_value_is_looked_at(reduction: str) -> None:
    """Fake tensors have no values: .item() and a shape that depends on one raise."""
    with FakeTensorMode():
        x = torch.empty(POSITIONS, CLASSES, requires_grad=True)
        F.cross_entropy(x, torch.empty(POSITIONS, dtype=torch.int64), reduction=reduction).sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape


@linear_only
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_chunked_gradients_are_those_of_any_upstream_gradient(reduction: str) -> None:
    (hidden, weight), target = layer(), make_targets(POSITIONS, ignored=-100)
    loss = chunked(hidden, weight, target, reduction=reduction)
    upstream = make_logits(*loss.shape, seed=9)
    gradients = torch.autograd.grad(loss, (hidden, weight), upstream)
    of_logits = exact(hidden.double() @ weight.double().t(), target, upstream, reduction=reduction)[1]
    scale = POSITIONS * 10.0 * upstream.abs().max().item()  # a sum over classes or positions of products below 10
    assert_gradient(gradients[0], of_logits @ weight.detach().double(), scale)
    assert_gradient(gradients[1], of_logits.t() @ hidden.detach().double(), scale)


@linear_only
def test_a_second_backward_of_chunks_raises_unless_the_graph_is_retained_or_nothing_is_reduced() -> None:
    (hidden, weight), target = layer(), make_targets(POSITIONS)

    def gradients(loss: Tensor) -> list[Tensor]:
        upstream = torch.arange(1.0, POSITIONS + 1) if loss.dim() else None
        return [torch.autograd.grad(loss, weight, upstream, retain_graph=True)[0] for _ in range(2)]

    for reduction in ("mean", "sum"):
        with pytest.raises(RuntimeError, match="backward called twice"):
            gradients(chunked(hidden, weight, target, reduction=reduction))
        first, second = gradients(chunked(hidden, weight, target, retain=True, reduction=reduction))
        assert first.any() and torch.equal(first, second)
    first, second = gradients(chunked(hidden, weight, target, reduction="none"))
    assert first.any() and torch.equal(first, second)


@linear_only
def test_of_chunks_with_all_positions_ignored_the_gradient_is_nan_too() -> None:
    hidden, weight = layer()
    loss = chunked(hidden, weight, torch.full((POSITIONS,), -100))
    loss.backward()
    assert hidden.grad is not None and weight.grad is not None
    assert loss.isnan() and hidden.grad.isnan().all() and weight.grad.isnan().all()


@linear_only
def test_the_loss_of_chunks_has_the_type_of_the_input_also_under_autocast() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        (hidden, weight), target = layer(dtype), make_targets(POSITIONS)
        assert chunked(hidden, weight, target).dtype == dtype
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert chunked(hidden, weight, target).dtype == dtype


@linear_only
def test_chunks_raise_for_a_class_out_of_range_on_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="index 11 is out of bounds"):
        chunked(*layer(), torch.full((POSITIONS,), CLASSES))


@linear_only
@pytest.mark.parametrize("soft", [False, True])
def test_label_smoothing_and_class_probabilities_are_not_chunked(soft: bool) -> None:
    """Probabilities are from 2.14 on."""
    target = make_logits(POSITIONS, CLASSES).softmax(1) if soft else make_targets(POSITIONS)
    are_chunked = soft and chunks_probabilities
    with nullcontext() if are_chunked else pytest.warns(UserWarning, match="options.* ignored"):
        chunked(*layer(), target, label_smoothing=0.0 if soft else 0.1)
