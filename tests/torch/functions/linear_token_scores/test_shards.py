# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scores of a vocabulary in shards, of one target id of each position and of several, as far as one process shows them.

The group is a pretended one, of two ranks of which only this one exists: its all-reduces leave tensors as they are. So
where this rank has all classes, the results are those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nkilib.torch import LinearTokenScores, linear_token_scores
from tests.torch.fake_group import two_ranks
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS
from tests.torch.functions.linear_token_scores.problem import EVERY, ScoreProblem, make_scores
from tests.torch.stand_in import StandIn, stand_in_for

by_ids = pytest.mark.parametrize("ids", [None, 3])


@pytest.fixture(autouse=True)
def _two_ranks() -> Iterator[None]:
    with two_ranks():
        yield


def scores_of(problem: ScoreProblem, **arguments: Any) -> LinearTokenScores:
    """Return the scores of this rank, which has all classes."""
    options = {"target": problem.operands.target, "outputs": EVERY, "shard_sizes": [CLASSES, 0], **problem.options}
    return linear_token_scores(group=dist.group.WORLD, **{**options, **arguments})


@by_ids
@pytest.mark.parametrize("adds", [False, True])
def test_one_rank_with_all_classes_has_the_scores_of_the_whole(adds: bool, ids: int | None) -> None:
    """Rows of padding do not count, and nothing is added for them."""
    problem = make_scores(2, 3, bias=True, ids=ids, ignored=3, temperature=0.75, logit_softcap=5.0)
    leaves = problem.operands.leaves()
    padded = {
        name: leaf if name == "input" else torch.cat([leaf, torch.full_like(leaf[:2], torch.nan)])
        for name, leaf in leaves.items()
    }
    total = torch.zeros(CLASSES + 2, FEATURES)
    scores = scores_of(problem, **padded, grad_weight_sum=total if adds else None)
    if adds:  # the weight itself gets none
        upstream = problem.gradients_of_scores()
        of_logprob = torch.where(problem.ignored, torch.nan, upstream["logprob"])
        inputs = list({**upstream, "logprob": of_logprob}.values())
        torch.autograd.backward([getattr(scores, name) for name in upstream], inputs)
        assert not (leaves["linear_weight"].grad is not None and leaves["linear_weight"].grad.any())
        assert not total[CLASSES:].any()
        gradients = {name: leaf.grad for name, leaf in leaves.items()} | {"linear_weight": total[:CLASSES]}
    else:
        gradients = problem.gradients(scores._asdict(), leaves)
    problem.check(scores, gradients)  # type: ignore[arg-type]
    assert not scores.logprob[problem.ignored].any() and not scores.logprob[problem.ignored].signbit().any()


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> dict[str, StandIn]:
    """Return stand-ins for the kernels that are launched for gradients, by the name of the operator."""
    names = ("linear_token_scores_shard_backward", "linear_token_scores_shard_backward_adding")
    return {
        name: stand_in_for(monkeypatch, name, lambda kernel, cores, argument: kernel[cores](**argument))
        for name in names
    }


@pytest.mark.parametrize("frozen", [(), ("input",), ("linear_weight", "linear_bias"), ("input", "linear_weight")])
@pytest.mark.parametrize("adds", [False, True])
def test_a_frozen_tensor_costs_no_gradient(
    frozen: tuple[str, ...], adds: bool, backwards: dict[str, StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_scores(POSITIONS, bias=True, ids=2)
    leaves = problem.operands.leaves()
    for name in frozen:
        leaves[name].requires_grad_(False)
    reduced: list[Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: reduced.append(tensor))
    total = torch.zeros(CLASSES, FEATURES) if adds else None
    scores = scores_of(problem, **leaves, grad_weight_sum=total, outputs=())
    assert len(reduced) == 2
    scores.logprob.sum().backward()
    adding = adds and "linear_weight" not in frozen
    launched = {name.endswith("adding"): kernel.launches for name, kernel in backwards.items() if kernel.launches}
    assert list(launched) == [adding]
    ((_, keywords, _),) = launched[adding]
    flags = {"input": "grad_input_wanted", "linear_bias": "grad_bias_wanted"}
    assert {name: keywords[flag] for name, flag in flags.items()} == {name: name not in frozen for name in flags}
    assert keywords.get("grad_weight_wanted", True) == ("linear_weight" not in frozen)
    assert keywords["grad_entropy_hbm"] is None and keywords["grad_lse_hbm"] is None
    assert len(reduced) == 2 + ("input" not in frozen)


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
    problem = make_scores(POSITIONS, dtype=dtype, ids=3)
    leaves = problem.operands.leaves()
    scores_of(problem, **leaves).logprob.sum().backward()
    (part,), gradient = reduced, leaves["input"].grad
    assert part.dtype == torch.float32 and (part != part.to(dtype)).any()
    assert gradient is not None and torch.equal(gradient, (2.0 * part).to(dtype))


def test_another_backward_gives_the_same_and_a_graph_of_a_gradient_is_refused() -> None:
    problem = make_scores(POSITIONS, ids=3)
    leaves = problem.operands.leaves()
    total, tensors = scores_of(problem, **leaves).logprob.square().sum(), list(leaves.values())
    first, second = (torch.autograd.grad(total, tensors, retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) and pair[0].any() for pair in zip(first, second, strict=True))
    with pytest.raises(NotImplementedError, match=r"linear_token_scores_shard_backward: .* has no derivative here"):
        torch.autograd.grad(total, tensors[0], create_graph=True)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(use_reentrant: bool) -> None:
    problem = make_scores(POSITIONS, ids=3)

    def total(x: Tensor, w: Tensor) -> Tensor:
        return scores_of(problem, input=2.0 * x, linear_weight=w).logprob.square().sum()

    plain, under = problem.operands.leaves(), problem.operands.leaves()
    total(*plain.values()).backward()
    checkpoint(total, *under.values(), use_reentrant=use_reentrant).backward()
    for name, leaf in plain.items():
        assert leaf.grad is not None and torch.equal(leaf.grad, under[name].grad)  # type: ignore[arg-type]


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_gives_equal_results() -> None:
    problem, group = make_scores(POSITIONS, ids=3, ignored=-100), dist.group.WORLD

    def total_of(x: Tensor, w: Tensor, summed: Tensor) -> Tensor:
        sizes = {"group": group, "shard_sizes": [CLASSES, 0]}
        scores = linear_token_scores(2.0 * x, w, problem.operands.target, grad_weight_sum=summed, **sizes)
        assert scores.entropy is not None
        return scores.logprob.square().sum() + scores.entropy.sum()

    results = []
    for function in (total_of, torch.compile(total_of, backend="aot_eager", fullgraph=True)):
        (x, w), summed = problem.operands.leaves().values(), torch.zeros(CLASSES, FEATURES)
        total = function(x, w, summed)
        total.backward()
        assert w.grad is None and summed.any()
        results.append((total, x.grad, summed))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@by_ids
def test_no_value_is_looked_at(ids: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """``meta`` tensors have no values, and stand for a device, since the CPU alone is allowed to look."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: None)
    x = torch.empty(2, 3, FEATURES, device="meta", dtype=torch.bfloat16, requires_grad=True)
    w = torch.empty(CLASSES, FEATURES, device="meta", dtype=torch.bfloat16, requires_grad=True)
    shape = (2, 3) if ids is None else (2, 3, ids)
    target = torch.empty(shape, device="meta", dtype=torch.int64)
    scores = linear_token_scores(x, w, target, dist.group.WORLD, outputs=EVERY, num_classes=2 * CLASSES - 1)
    assert scores.logprob.shape == shape
    assert {values.shape for values in scores[1:] if values is not None} == {(2, 3)}
    assert scores.entropy is not None
    gradients = torch.autograd.grad(scores.logprob.sum() + scores.entropy.sum(), (x, w))
    for gradient, leaf in zip(gradients, (x, w), strict=True):
        assert (gradient.shape, gradient.dtype, gradient.device.type) == (leaf.shape, leaf.dtype, "meta")


def test_hidden_states_of_one_position_and_of_none() -> None:
    problem = make_scores(1, ids=3)
    x, w = problem.operands.input, problem.operands.linear_weight
    arguments: dict[str, Any] = {"group": dist.group.WORLD, "shard_sizes": [CLASSES, 0]}
    alone = linear_token_scores(x[0], w, problem.operands.target[0], **arguments)
    together = linear_token_scores(x, w, problem.operands.target, **arguments)
    assert alone.logprob.shape == (3,) and torch.equal(alone.logprob, together.logprob[0])
    none = linear_token_scores(x[:0], w, problem.operands.target[:0], **arguments)
    assert none.logprob.shape == (0, 3)
