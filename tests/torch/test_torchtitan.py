# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.torch.torchtitan`` against TorchTitan's formulas in float64; what takes processes is in
``test_trainer_ranks.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from nkilib.torch import token_scores, vocab_parallel_cross_entropy
from nkilib.torch.torchtitan import (
    ChunkedCrossEntropyLoss,
    CrossEntropyLoss,
    build_cross_entropy_loss,
    compute_logprobs,
    cross_entropy_loss,
)
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, DTYPES, gradient_of, make_logits, make_targets
from tests.torch.telling import assert_gradient, assert_loss

SHAPE, TOKENS = (2, 5), 10
X, T = make_logits(*SHAPE, CLASSES), make_targets(*SHAPE, ignored=-100)
MAGNITUDE = 20.0


def exact_loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), T.flatten(), reduction="sum", ignore_index=-100)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("count", [None, 7.0, torch.tensor(7)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_over_tokens_and_the_global_count(
    dtype: torch.dtype, count: Tensor | float | None, inplace: bool
) -> None:
    leaf = X.clone().to(dtype).requires_grad_()
    x = leaf.detach().double().requires_grad_()
    expected = exact_loss(x) / (1.0 if count is None else 7.0)
    loss, metrics = CrossEntropyLoss(inplace=inplace)(1.0 * leaf, T, count, positions=None)
    assert metrics == {}
    assert_loss(loss.detach(), expected.detach(), MAGNITUDE * TOKENS)
    assert_gradient(gradient_of(loss, leaf).flatten(0, 1), gradient_of(expected, x).flatten(0, 1), 1.0)


def test_tokens_may_be_one_dimension_and_other_types_are_cast() -> None:
    expected = cross_entropy_loss(X, T)
    assert torch.equal(cross_entropy_loss(X.flatten(0, 1), T.flatten()), expected)
    assert torch.equal(cross_entropy_loss(X.double(), T, global_vocab_size=CLASSES), expected)
    leaf = X.half().requires_grad_()
    cross_entropy_loss(leaf, T).backward()
    assert leaf.grad is not None and leaf.grad.dtype == torch.float16


@pytest.mark.parametrize("return_entropy", [False, True])
def test_logprobs_with_and_without_entropy(return_entropy: bool) -> None:
    scores = token_scores(X, T)
    result = compute_logprobs(X, T, return_entropy=return_entropy)
    logprob = result[0] if return_entropy else result
    assert torch.equal(logprob, scores.logprob)  # type: ignore[arg-type]
    assert not return_entropy or torch.equal(result[1], scores.entropy)


def configured(enable: bool, *components: str) -> Any:
    return SimpleNamespace(compile=SimpleNamespace(enable=enable, components=list(components), backend="eager"))


@pytest.mark.usefixtures("compile_afresh")
def test_a_train_spec_builds_it_compiled_or_not() -> None:
    assert build_cross_entropy_loss(configured(False, "loss")) is cross_entropy_loss
    assert build_cross_entropy_loss(configured(True, "model"), parallel_dims=None) is cross_entropy_loss
    compiled = build_cross_entropy_loss(configured(True, "loss"))
    assert compiled is not cross_entropy_loss
    leaf = X.clone().requires_grad_()
    assert torch.equal(gradient_of(compiled(leaf, T), leaf), gradient_of(cross_entropy_loss(leaf, T), leaf))


def test_chunks_take_the_output_layer_once_it_is_set() -> None:
    hidden, head = make_logits(*SHAPE, 4, spread=1.0).requires_grad_(), nn.Linear(4, CLASSES)
    chunked = ChunkedCrossEntropyLoss(num_chunks=3)
    with pytest.raises(RuntimeError, match="the output layer must be set, and is not; call set_lm_head"):
        chunked(hidden, T)
    chunked.set_lm_head(head)
    loss, metrics = chunked(hidden, T, torch.tensor(7.0))
    whole, _ = CrossEntropyLoss()(head(hidden), T, torch.tensor(7.0))
    assert metrics == {}
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(gradient_of(loss, hidden), gradient_of(whole, hidden))


def test_a_plain_part_of_the_vocabulary_is_that_of_the_mesh_of_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for what TorchTitan 0.3 has in ``torchtitan.distributed.spmd_types`` where its tensors are plain."""
    sizes = [6, 5]
    part = X[..., :6]
    with two_ranks():
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        titan = SimpleNamespace(spmd_mesh_size=lambda name: {"tp": 2}[name], current_spmd_mesh=lambda: mesh)
        monkeypatch.setitem(sys.modules, "torchtitan.distributed.spmd_types", titan)
        expected = vocab_parallel_cross_entropy(part, T, shard_sizes=sizes, reduction="sum")
        assert torch.equal(cross_entropy_loss(part, T, global_vocab_size=CLASSES), expected)
        result = compute_logprobs(part, T, global_vocab_size=CLASSES)
        assert torch.equal(result, token_scores(part, T, dist.group.WORLD, shard_sizes=sizes).logprob)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="over a group of 2, and its size is not known; pass global_vocab_size"):
            cross_entropy_loss(part, T)
        titan.spmd_mesh_size = lambda name: 1
        assert torch.equal(cross_entropy_loss(X, T), cross_entropy_loss(X, T, global_vocab_size=CLASSES))


@pytest.mark.parametrize(("function", "name"), [(cross_entropy_loss, "pred"), (compute_logprobs, "logits")])
def test_a_part_of_the_vocabulary_without_a_group_is_refused(function: Callable[..., Any], name: str) -> None:
    from torch.distributed.tensor import DTensor, Replicate

    with pytest.raises(ValueError, match=rf"{name} has 6 of global_vocab_size=11 classes, .* not known; pass group"):
        function(X[..., :6], T, global_vocab_size=CLASSES)
    with two_ranks():
        mesh = init_device_mesh("cpu", (2,))
        whole = DTensor.from_local(X, mesh, [Replicate()], run_check=False)
        with pytest.raises(ValueError, match=rf"{name}, a DTensor, has 11 of global_vocab_size=12 .*; leave"):
            function(whole, T, global_vocab_size=12)
