# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The vocabulary-parallel loss in one process: refusals, torch.compile, and that no value is looked at.

The group is a pretended one, of two ranks of which only this one exists: its all-reduces leave tensors as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from nkilib.core.host.options import values_of
from nkilib.experimental.loss.cross_entropy.launch import LossOptions
from nkilib.torch import (
    CrossEntropyOutputs,
    cross_entropy,
    linear_token_scores,
    token_scores,
    vocab_parallel_cross_entropy,
    vocab_parallel_linear_cross_entropy,
)
from nkilib.torch.functions.cross_entropy.operators import VOCAB_PARALLEL, ShardStatistics
from nkilib.torch.functions.vocab_parallel import shards as statistics
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import POSITIONS, make_logits, make_probabilities, make_targets, make_weight
from tests.torch.telling import assert_gradient, assert_loss

COLUMNS = 8
X, T = make_logits(POSITIONS, COLUMNS), make_targets(POSITIONS, classes=2 * COLUMNS)
Call = Callable[[], Any]


@pytest.fixture(autouse=True)
def _two_ranks() -> Iterator[None]:
    with two_ranks():
        yield


def loss_of(x: Any = X, target: Any = T, group: Any = None, **arguments: Any) -> Tensor:
    loss: Tensor = vocab_parallel_cross_entropy(x, target, group, **arguments)
    return loss


REFUSED: dict[str, tuple[type[Exception], Call, str]] = {
    "floating targets of another shape": (
        RuntimeError,
        lambda: loss_of(X, X[:, 0].abs()),
        r"to be an integer type, but got torch.float32; class probabilities have the shape of the logits, \(6, 8\)",
    ),
    "probabilities of all ranks": (
        RuntimeError,
        lambda: loss_of(X, make_probabilities(POSITIONS, 2 * COLUMNS)),
        r"class probabilities have the shape of the logits, \(6, 8\)",
    ),
    "weight of the shard alone": (
        RuntimeError,
        lambda: loss_of(weight=make_weight(COLUMNS)),
        r"either for all 16 classes or no classes but got weight tensor of shape: \[8\]",
    ),
    "too many classes": (
        ValueError,
        lambda: loss_of(num_classes=17),
        "num_classes must be from 1 to 16, the classes of 2 ranks of 8, got 17; pass shard_sizes where",
    ),
    "no classes": (ValueError, lambda: loss_of(num_classes=0), "num_classes must be from 1 to 16"),
    "classes as text": (TypeError, lambda: loss_of(num_classes="9"), "'num_classes' must be int, not str"),
    "both": (ValueError, lambda: loss_of(num_classes=9, shard_sizes=[8, 1]), "got both; pass one of them"),
    "sizes too few": (ValueError, lambda: loss_of(shard_sizes=[8]), r"each of the 2 ranks of the group, got \[8\]"),
    "size too large": (
        ValueError,
        lambda: loss_of(shard_sizes=[9, 8]),
        "logits_shard of rank 0 must have at least the 9 classes that shard_sizes gives it, got 8",
    ),
    "negative size": (ValueError, lambda: loss_of(shard_sizes=[8, -1]), r"0 or more, and not all 0, got \[8, -1\]"),
    "sizes all 0": (ValueError, lambda: loss_of(shard_sizes=[0, 0]), "not all 0"),
    "fractional size": (TypeError, lambda: loss_of(shard_sizes=[8, 0.5]), r"must be integers, got \[8, 0.5\]"),
    "sizes as a number": (TypeError, lambda: loss_of(shard_sizes=8), "'shard_sizes' must be a list of int, not int"),
    "no columns": (ValueError, lambda: loss_of(X[:, :0]), "logits_shard must have at least one class, got none"),
    "group as number": (TypeError, lambda: loss_of(X, T, 0), "'group' must be a ProcessGroup or None, not int"),
    "group as mesh": (
        TypeError,
        lambda: loss_of(X, T, init_device_mesh("cpu", (2,))),
        r"not DeviceMesh; of a device mesh pass get_group\(\)",
    ),
    "in place, classes second": (
        ValueError,
        lambda: loss_of(make_logits(2, 1, 3), torch.zeros(2, 3, dtype=torch.int64), class_dim=1, inplace=True),
        "inplace=True requires the classes last, got class_dim=1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_this_rank_can_know_is_refused_before_anything_is_communicated(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, call, message = REFUSED[case]
    communicated: list[Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: communicated.append(tensor))
    with pytest.raises(error, match=message) as raised:
        call()
    assert raised.type is error
    assert str(raised.value).startswith("vocab_parallel_cross_entropy: ")
    assert not communicated


def test_without_torch_distributed_it_says_how_to_start() -> None:
    dist.destroy_process_group()
    with pytest.raises(RuntimeError, match="start the script with torchrun and call"):
        loss_of()


@pytest.mark.parametrize("num_classes", [2 * COLUMNS, COLUMNS - 1])
def test_another_backward_gives_the_same_and_a_second_derivative_is_refused(num_classes: int) -> None:
    x = X.clone().requires_grad_()
    loss = loss_of(x, T % num_classes, num_classes=num_classes)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second) and first.any()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(NotImplementedError, match="has no derivative here"):
        gradient.sum().backward()


def test_a_second_derivative_by_the_logits_of_probabilities_gradient_is_refused() -> None:
    x, target = X.clone().requires_grad_(), make_probabilities(POSITIONS, COLUMNS).requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(x, target), target, create_graph=True)
    with pytest.raises(NotImplementedError, match="has no derivative here"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("layout", [{"num_classes": np.int64(15)}, {"shard_sizes": np.array([8, 7])}], ids=str)
def test_numbers_of_classes_may_be_numpys(layout: dict[str, Any]) -> None:
    assert torch.equal(loss_of(target=T % 15, **layout), loss_of(target=T % 15, num_classes=15))


def test_in_place_a_second_derivative_is_refused_at_once() -> None:
    x = X.clone().requires_grad_()
    loss = loss_of(1.0 * x, inplace=True)
    with pytest.raises(NotImplementedError, match="has no derivative here"):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize(
    "arguments", [{}, {"lse_square_scale": 0.1}, {"weight": make_weight(4)}, {"label_smoothing": 0.1}]
)
@pytest.mark.parametrize("row", [[torch.inf, 1.0, 0.0, 2.0], [torch.nan, 1.0, 0.0, 2.0], [-torch.inf] * 4])
def test_a_row_without_a_softmax_has_the_loss_of_one_piece(row: list[float], arguments: dict[str, Any]) -> None:
    x, target = torch.tensor([row, [0.0, 1.0, 2.0, 3.0]]), torch.tensor([1, 2])
    losses = [
        cross_entropy(x, target, reduction="none", **arguments),
        vocab_parallel_cross_entropy(x, target, shard_sizes=[4, 0], reduction="none", **arguments),
    ]
    assert losses[0][0].isnan()
    torch.testing.assert_close(losses[1], losses[0], equal_nan=True)


def test_in_place_a_later_use_of_the_logits_raises() -> None:
    logits = X.clone().requires_grad_() * 1.0
    other = logits.square().sum()
    loss = loss_of(logits, shard_sizes=[COLUMNS - 2, 3], target=T % COLUMNS, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (other + loss).backward()


COMPILED: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything": {
        "weight": make_weight(2 * COLUMNS - 1),
        "num_classes": 2 * COLUMNS - 1,
        "reduction": "none",
        "label_smoothing": 0.1,
        "logit_softcap": 5.0,
        "lse_square_scale": 0.1,
    },
    "outputs": {"return_outputs": True},
}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("arguments", COMPILED.values(), ids=COMPILED)
@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results(arguments: dict[str, Any], soft: bool) -> None:
    x, target = X.clone().requires_grad_(), make_probabilities(POSITIONS, COLUMNS) if soft else T % (2 * COLUMNS - 1)
    group = dist.group.WORLD

    def results(logits: Tensor) -> tuple[Tensor, ...]:
        returned = vocab_parallel_cross_entropy(2.0 * logits, target, group, **arguments)
        outputs = returned if isinstance(returned, CrossEntropyOutputs) else (returned,)
        return tuple(output for output in outputs if output is not None)

    expected, actual = results(x), torch.compile(results, backend="aot_eager", fullgraph=True)(x)
    assert all(torch.equal(*pair) for pair in zip(expected, actual, strict=True))
    sums = [sum(result.sum() for result in item if result.requires_grad) for item in (expected, actual)]
    gradients = [torch.autograd.grad(tensor, x)[0] for tensor in sums]  # type: ignore[arg-type]
    assert gradients[0].any() and torch.equal(*gradients)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.usefixtures("compile_afresh")
def test_in_place_torch_compile_is_refused(fullgraph: bool) -> None:
    compiled = torch.compile(lambda x: loss_of(2.0 * x, inplace=True), backend="aot_eager", fullgraph=fullgraph)
    with pytest.raises(RuntimeError, match="trace a backward that overwrites what the forward saved"):
        compiled(X.clone().requires_grad_())


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_and_class_weights_may_require_grad(weighted: bool, smoothing: float) -> None:
    """This rank has all classes and the other one none, so the gradients are those of the whole."""
    y = make_probabilities(POSITIONS, COLUMNS)
    weight = make_weight(COLUMNS) if weighted else None
    leaves = [tensor.clone().requires_grad_() for tensor in (X, y, weight) if tensor is not None]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    arguments: dict[str, Any] = {"reduction": "sum", "label_smoothing": smoothing}
    expected = F.cross_entropy(*exact, **arguments)
    padded = F.pad(leaves[1], (0, 1), value=torch.nan)
    actual = vocab_parallel_cross_entropy(
        F.pad(leaves[0], (0, 1)), padded, weight=leaves[2] if weighted else None, shard_sizes=[COLUMNS, 0], **arguments
    )
    assert_loss(actual.detach(), expected.detach(), 30.0 * POSITIONS)
    pairs = zip(torch.autograd.grad(actual, leaves), torch.autograd.grad(expected, exact), strict=True)
    for gradient, reference in pairs:
        assert_gradient(gradient, reference, 30.0)


def _leave(tensor: Tensor, **_: Any) -> None:
    """An all-reduce of the two ranks that hold the same."""


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_value_is_looked_at(reduction: str, soft: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``meta`` tensors have no values, and stand for a device, since the CPU alone is allowed to look."""
    monkeypatch.setattr(dist, "all_reduce", _leave)
    x = torch.empty(2, 3, COLUMNS, device="meta", dtype=torch.bfloat16, requires_grad=True)
    target = torch.empty_like(x) if soft else torch.empty(2, 3, device="meta", dtype=torch.int64)
    outputs = vocab_parallel_cross_entropy(
        x,
        target,
        weight=torch.empty(2 * COLUMNS - 1, device="meta"),
        num_classes=2 * COLUMNS - 1,
        reduction=reduction,
        label_smoothing=0.1,
        logit_softcap=30.0,
        lse_square_scale=1e-4,
        return_outputs=True,
    )
    (gradient,) = torch.autograd.grad(outputs.loss.sum() + outputs.lse.sum(), x)
    assert (gradient.shape, gradient.dtype, gradient.device.type) == (x.shape, x.dtype, "meta")
    assert outputs.loss.shape == ((2, 3) if reduction == "none" else ())
    assert outputs.argmax.shape == outputs.entropy.shape == outputs.lse.shape == (2, 3)


def test_on_a_device_ranks_that_see_unlike_shards_get_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """There nothing is read back: the other rank's claims come with the maxima."""
    own = ShardStatistics(*(torch.zeros(3) for _ in range(4)), *(torch.zeros(0) for _ in range(3)))
    agreed = torch.tensor(False)
    monkeypatch.setattr(statistics, "greatest_of_ranks", lambda *_: (own.maximum, agreed, agreed))
    shards = VocabularyShards((4, 4), 0)
    combined = statistics.combined_statistics(
        VOCAB_PARALLEL, own, shards, None, None, values_of(LossOptions()), T[:3], {}
    )
    assert combined.log_sum.isnan().all()


def test_opcheck_of_the_operators_of_a_shard() -> None:
    shard: dict[str, Any] = {"first_class": 3, "num_classes": 2 * COLUMNS, "label_smoothing": 0.1}
    weight, ops = make_weight(COLUMNS), torch.ops.nkilib
    asked_for = {"with_distance_sum": True, "with_argmax": True, "with_entropy": True}
    for target in (T, make_probabilities(POSITIONS, COLUMNS)):
        for more in ({}, asked_for):
            torch.library.opcheck(ops.cross_entropy_shard_statistics.default, (X, target, weight), {**shard, **more})
    per_position = make_logits(4, POSITIONS, seed=5)
    for operator in (ops.cross_entropy_backward.default, ops.cross_entropy_backward_.default):
        inputs = (X.clone(), T, *per_position, None, weight, per_position[3])
        torch.library.opcheck(operator, inputs, {**shard, "weight_sum": 0.0})


WHOLE = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
HIDDEN, LAYER = make_logits(1, 16), make_logits(4, 16, seed=1)
LAST = torch.tensor([3])
# Calls with what every rank holds whole, by the function that they should call.
OF_WHOLE: dict[str, Callable[..., Any]] = {
    "vocab_parallel_cross_entropy": lambda **k: vocab_parallel_cross_entropy(WHOLE, LAST, **k),
    "token_scores": lambda **k: token_scores(WHOLE, LAST, dist.group.WORLD, **k),
    "vocab_parallel_linear_cross_entropy": lambda **k: vocab_parallel_linear_cross_entropy(HIDDEN, LAYER, LAST, **k),
    "linear_token_scores": lambda **k: linear_token_scores(HIDDEN, LAYER, LAST, dist.group.WORLD, **k),
}


@pytest.fixture
def _two_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the other rank one with the same logits."""

    def all_reduce(tensor: Tensor, op: Any, group: Any) -> None:
        tensor.mul_(2 if op == dist.ReduceOp.SUM else 1)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)


@pytest.mark.usefixtures("_two_alike")
@pytest.mark.parametrize("name", OF_WHOLE)
def test_a_vocabulary_that_each_rank_has_whole_is_refused(name: str) -> None:
    instead = name.removeprefix("vocab_parallel_")
    message = (
        rf"{name}: .* all 2 ranks have the same logits, .* the 4 classes .* nkilib.torch.{instead} without a group"
    )
    with pytest.raises(ValueError, match=message):
        OF_WHOLE[name]()
    OF_WHOLE[name](num_classes=8)
    OF_WHOLE[name](shard_sizes=[4, 4])


@pytest.mark.usefixtures("_two_alike")
@pytest.mark.parametrize(
    ("logits", "target"),
    [
        pytest.param(torch.zeros(3, 4), torch.tensor([0, 1, 3]), id="constant"),
        pytest.param(torch.full((3, 4), -2.5), torch.tensor([0, 1, 3]), id="constant, and not 0"),
        pytest.param(torch.randn(3, 1), torch.tensor([0, 0, 0]), id="one class each"),
        pytest.param(torch.randn(3, 4), torch.tensor([0, 7, 3]), id="a class of the other rank"),
        pytest.param(torch.randn(3, 4), torch.full((3,), -100), id="no label"),
        pytest.param(torch.randn(3, 4), torch.rand(3, 4), id="probabilities"),
        pytest.param(torch.full((3, 4), torch.nan), torch.tensor([0, 1, 3]), id="NaN"),
    ],
)
def test_parts_that_may_be_equal(logits: Tensor, target: Tensor) -> None:
    """Parts of a vocabulary may have equal logits, as those of an output layer of zeros."""
    assert vocab_parallel_cross_entropy(logits, target, reduction="sum").shape == ()
