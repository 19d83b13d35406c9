# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loss of an output layer in parts, as far as one process can show it.

The group is a pretended one, of two ranks of which only this one exists: its all-reduces leave tensors as they are. So
where this rank has all classes, the results are those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nkilib.torch import linear_cross_entropy, vocab_parallel_linear_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS, make_problem
from tests.torch.inputs import make_logits, make_probabilities, make_weight
from tests.torch.stand_in import StandIn, stand_in_for

PROBLEM = make_problem(POSITIONS, bias=True)
X, W, T, BIAS = PROBLEM.input, PROBLEM.linear_weight, PROBLEM.target, PROBLEM.linear_bias
WHOLE: dict[str, Any] = {"shard_sizes": [CLASSES, 0]}


@pytest.fixture(autouse=True)
def _two_ranks() -> Iterator[None]:
    with two_ranks():
        yield


def loss_of(x: Any = X, w: Any = W, target: Any = T, group: Any = None, **arguments: Any) -> Tensor:
    loss: Tensor = vocab_parallel_linear_cross_entropy(x, w, target, group, **arguments)
    return loss


Call = Callable[[], Any]
REFUSED: dict[str, tuple[type[Exception], Call, str]] = {
    "other features": (RuntimeError, lambda: loss_of(X[:, :-1]), "expected equal input and linear_weight last dim"),
    "few features": (
        NotImplementedError,
        lambda: loss_of(X[:, :8], W[:, :8]),
        "there are 8 features, .*; pass the logits of torch.nn.functional.linear to nkilib.torch.vocab_parallel_cross",
    ),
    "probabilities": (
        NotImplementedError,
        lambda: loss_of(target=make_probabilities(POSITIONS, CLASSES)),
        "not supported where target has class probabilities; pass the logits of",
    ),
    "weight of the shard alone": (
        RuntimeError,
        lambda: loss_of(weight=make_weight()),
        r"either for all 22 classes or no classes but got weight tensor of shape: \[11\]",
    ),
    "bias of all ranks": (
        RuntimeError,
        lambda: loss_of(linear_bias=torch.zeros(2 * CLASSES)),
        r"expected linear_bias shape \(11,\), got \(22,\)",
    ),
    "too many classes": (ValueError, lambda: loss_of(num_classes=23), "from 1 to 22, the classes of 2 ranks of 11"),
    "size too large": (
        ValueError,
        lambda: loss_of(shard_sizes=[12, 8]),
        "linear_weight of rank 0 must have at least the 12 classes that shard_sizes gives it, got 11; .* the weight of",
    ),
    "no rows": (ValueError, lambda: loss_of(w=W[:0]), "linear_weight must have at least one class, got none; pass the"),
    "float64": (TypeError, lambda: loss_of(X.double(), W.double()), "the kernels take bfloat16, float16 or float32"),
    "unlike types": (RuntimeError, lambda: loss_of(X.bfloat16()), "input and linear_weight must have the same dtype"),
    "a sum of another type": (
        ValueError,
        lambda: loss_of(grad_weight_sum=torch.zeros_like(W, dtype=torch.bfloat16)),
        "grad_weight_sum must be float32 of the shape of linear_weight",
    ),
    "smoothing": (RuntimeError, lambda: loss_of(label_smoothing=1.5), "label_smoothing must be between 0.0 and 1.0"),
    "normalizer of a sum": (
        ValueError,
        lambda: loss_of(reduction="sum", normalizer=torch.tensor(2.0)),
        "normalizer replaces the divisor of a mean",
    ),
    "group as number": (TypeError, lambda: loss_of(group=0), "'group' must be a ProcessGroup or None, not int"),
    "target out of range": (IndexError, lambda: loss_of(target=T + 2 * CLASSES), "is out of bounds"),
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
    assert str(raised.value).startswith("vocab_parallel_linear_cross_entropy: ")
    assert not communicated


def test_without_torch_distributed_it_says_how_to_start() -> None:
    dist.destroy_process_group()
    with pytest.raises(RuntimeError, match="start the script with torchrun and call"):
        loss_of()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_the_input_is_summed_in_float32_and_rounded_once(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduced: list[Tensor] = []

    def twice(tensor: Tensor, **_: Any) -> None:
        """An all-reduce of two ranks that hold the same."""
        if tensor.dim() == 2 and tensor.shape[1] == FEATURES:
            reduced.append(tensor.clone())
            tensor.mul_(2.0)

    monkeypatch.setattr(dist, "all_reduce", twice)
    x = X.to(dtype).requires_grad_()
    loss_of(x, W.to(dtype), **WHOLE).backward()
    (part,) = reduced
    assert part.dtype == torch.float32 and (part != part.to(dtype)).any()
    assert x.grad is not None and torch.equal(x.grad, (2.0 * part).to(dtype))


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """Return stand-ins for the kernels that are launched for gradients, by the name of the operator."""
    names = ("linear_cross_entropy_shard_backward", "linear_cross_entropy_shard_backward_adding")
    return {
        name: stand_in_for(monkeypatch, name, lambda kernel, cores, argument: kernel[cores](**argument))
        for name in names
    }


@pytest.mark.parametrize("frozen", [(), ("input",), ("linear_weight", "linear_bias"), ("input", "linear_weight")])
@pytest.mark.parametrize("adds", [False, True])
def test_a_frozen_tensor_costs_no_gradient(
    frozen: tuple[str, ...], adds: bool, backwards: dict[str, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = PROBLEM.leaves()
    for name in frozen:
        leaves[name].requires_grad_(False)
    total = torch.zeros_like(W) if adds else None
    loss = vocab_parallel_linear_cross_entropy(target=T, **leaves, **WHOLE, grad_weight_sum=total)
    reduced: list[Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: reduced.append(tensor))
    loss.backward()
    adding = adds and "linear_weight" not in frozen
    launched = {name.endswith("adding"): kernel.launches for name, kernel in backwards.items() if kernel.launches}
    assert list(launched) == [adding]
    ((_, keywords, _),) = launched[adding]
    flags = {"input": "grad_input_wanted", "linear_bias": "grad_bias_wanted"}
    assert {name: keywords[flag] for name, flag in flags.items()} == {name: name not in frozen for name in flags}
    assert keywords.get("grad_weight_wanted", True) == ("linear_weight" not in frozen)
    assert len(reduced) == ("input" not in frozen)


@pytest.mark.parametrize("rows", [CLASSES, CLASSES + 2])
def test_micro_batches_add_the_gradient_of_the_weight_in_float32(rows: int) -> None:
    """Rows of padding stay as they are."""
    w = torch.cat([W, W.new_full((rows - CLASSES, FEATURES), torch.nan)]).bfloat16().requires_grad_()
    total, expected = torch.full((rows, FEATURES), 0.5), torch.full((CLASSES, FEATURES), 0.5)
    whole = W.bfloat16().requires_grad_()
    for seed in (0, 7):
        x = make_logits(POSITIONS, FEATURES, seed=seed, spread=1.0, dtype=torch.bfloat16)
        (3.0 * loss_of(x, w, grad_weight_sum=total, **WHOLE)).backward()
        (3.0 * linear_cross_entropy(x, whole, T, grad_weight_sum=expected)).backward()
    assert w.grad is None and (expected != 0.5).any()
    torch.testing.assert_close(total[:CLASSES], expected, rtol=2e-3, atol=1e-4)
    assert (total[CLASSES:] == 0.5).all()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(use_reentrant: bool) -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        return loss_of(2.0 * x, w, **WHOLE)

    plain, under = make_problem(POSITIONS).leaves(), make_problem(POSITIONS).leaves()
    loss(*plain.values()).backward()
    checkpoint(loss, *under.values(), use_reentrant=use_reentrant).backward()
    for name, leaf in plain.items():
        assert leaf.grad is not None and torch.equal(leaf.grad, under[name].grad)  # type: ignore[arg-type]


def test_another_backward_gives_the_same_and_a_graph_of_a_gradient_is_refused() -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    loss = loss_of(x, w)
    first, second = (torch.autograd.grad(loss, (x, w), retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) and pair[0].any() for pair in zip(first, second, strict=True))
    with pytest.raises(NotImplementedError, match=r"linear_cross_entropy_shard_backward: .* has no derivative here"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_autocast_casts_what_is_multiplied() -> None:
    leaves = PROBLEM.leaves()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = vocab_parallel_linear_cross_entropy(target=T, **leaves, **WHOLE)
        expected = linear_cross_entropy(target=T, **leaves)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(leaf.grad is not None and leaf.grad.dtype == torch.float32 for leaf in leaves.values())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_value_is_looked_at(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``meta`` tensors have no values, and stand for a device, since the CPU alone is allowed to look."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: None)
    x = torch.empty(2, 3, FEATURES, device="meta", dtype=torch.bfloat16, requires_grad=True)
    w = torch.empty(CLASSES, FEATURES, device="meta", dtype=torch.bfloat16, requires_grad=True)
    outputs = vocab_parallel_linear_cross_entropy(
        x,
        w,
        torch.empty(2, 3, device="meta", dtype=torch.int64),
        weight=torch.empty(2 * CLASSES - 1, device="meta"),
        num_classes=2 * CLASSES - 1,
        reduction=reduction,
        label_smoothing=0.1,
        logit_softcap=30.0,
        lse_square_scale=1e-4,
        return_outputs=True,
    )
    gradients = torch.autograd.grad(outputs.loss.sum() + outputs.lse.sum(), (x, w))
    for gradient, leaf in zip(gradients, (x, w), strict=True):
        assert (gradient.shape, gradient.dtype, gradient.device.type) == (leaf.shape, leaf.dtype, "meta")
    assert outputs.loss.shape == ((2, 3) if reduction == "none" else ())
    assert outputs.argmax.shape == outputs.entropy.shape == outputs.lse.shape == (2, 3)


def test_opcheck_of_the_operators_of_a_shard() -> None:
    shard: dict[str, Any] = {"first_class": 3, "num_classes": 2 * CLASSES, "label_smoothing": 0.1}
    ops, operands = torch.ops.nkilib, (X, W, T)
    further, upstream = (BIAS, make_weight()), make_logits(5, POSITIONS, seed=5)
    asked_for = {"with_distance_sum": True, "with_argmax": True, "with_entropy": True}
    inputs = (*operands, *further)
    torch.library.opcheck(ops.linear_cross_entropy_shard_statistics.default, inputs, {**shard, **asked_for})
    inputs = (*operands, *upstream, *further)
    options = {**shard, "weight_sum": 0.0}
    torch.library.opcheck(ops.linear_cross_entropy_shard_backward.default, (*inputs, torch.ones(POSITIONS)), options)
    adding = (*inputs, torch.zeros(CLASSES, FEATURES), torch.ones(POSITIONS))
    torch.library.opcheck(ops.linear_cross_entropy_shard_backward_adding.default, adding, options)


def test_the_gradient_of_the_input_of_a_shard_is_float32() -> None:
    upstream = make_logits(5, POSITIONS, seed=5)
    inputs = (X.bfloat16(), W.bfloat16(), T, *upstream)
    x, w, bias = torch.ops.nkilib.linear_cross_entropy_shard_backward(*inputs, num_classes=CLASSES)
    assert (x.dtype, w.dtype, bias.shape) == (torch.float32, torch.bfloat16, (0,))
