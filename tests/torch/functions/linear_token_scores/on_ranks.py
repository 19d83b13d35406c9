# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Scores of an output layer in parts, as each of the processes of ``vocab_parallel.ranks_run`` computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from nkilib.torch import LinearTokenScores, linear_token_scores
from tests.torch.functions.linear_token_scores.problem import EVERY, ScoreProblem, make_scores

Results = dict[str, Any]

# Classes of each rank, of 11, by the number of ranks.
SIZES: Final = {2: (8, 3), 3: (6, 0, 5)}
# One class of the first rank and one of the last.
MASKED: Final = [2, 9]


def score_problems() -> dict[str, ScoreProblem]:
    """Return problems by name; "masked" has a bias and two masked classes."""
    problems = {
        "plain": make_scores(2, 3, ignored=-100),
        "bfloat16": make_scores(6, dtype=torch.bfloat16, temperature=0.75, logit_softcap=5.0),
        "masked": make_scores(6, bias=True, ignored=3, temperature=1.5, logit_scale=0.5, compute_dtype=torch.bfloat16),
        "ids": make_scores(2, 3, bias=True, ids=4, ignored=-100, temperature=0.75, logit_scale=0.5, logit_softcap=4.0),
        "ids, bfloat16": make_scores(6, dtype=torch.bfloat16, ids=3),
        "temperatures": make_scores(2, 3, bias=True, ignored=-100, temperature=torch.tensor([[0.25], [1.5]])),
    }
    bias = problems["masked"].operands.linear_bias
    assert bias is not None
    bias[MASKED] = -torch.inf
    target = problems["masked"].operands.target
    target[torch.isin(target, torch.tensor(MASKED))] = 0
    return problems


def _found(problem: ScoreProblem, scores: LinearTokenScores, leaves: dict[str, Tensor]) -> Results:
    values = {name: value.detach() for name, value in scores._asdict().items()}
    return {"scores": values, "gradients": problem.gradients(scores._asdict(), leaves)}


def run_scores(problem: ScoreProblem, group: dist.ProcessGroup | None) -> Results:
    """Scores and gradients of what this rank has."""
    sizes, rank = SIZES[dist.get_world_size(group)], dist.get_rank(group)
    first, kept = sum(sizes[:rank]), sizes[rank]
    leaves = {
        name: (leaf if name == "input" else leaf[first : first + kept]).detach().clone().requires_grad_()
        for name, leaf in problem.operands.leaves().items()
    }
    target = problem.operands.target
    scores = linear_token_scores(
        target=target, group=group or dist.group.WORLD, outputs=EVERY, shard_sizes=sizes, **leaves, **problem.options
    )
    return _found(problem, scores, leaves)


def run_scores_of_dtensors(problem: ScoreProblem, group: dist.ProcessGroup | None) -> Results:
    """Run the scores on replicated hidden states and a layer in shards of classes."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
    placements = {"input": Replicate(), "linear_weight": Shard(0), "linear_bias": Shard(0)}
    leaves: dict[str, Tensor] = {
        name: distribute_tensor(leaf.detach(), mesh, [placements[name]]).requires_grad_()
        for name, leaf in problem.operands.leaves().items()
    }
    scores = linear_token_scores(target=problem.operands.target, outputs=EVERY, **leaves, **problem.options)
    results = _found(problem, scores, leaves)
    results["gradients"] = {name: result.full_tensor() for name, result in results["gradients"].items()}
    return results


def run_gathered(problem: ScoreProblem, group: dist.ProcessGroup | None) -> Results:
    """Run the scores on this rank's own hidden states, the problem's rolled, and a layer that FSDP2 has sharded."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
    operands = problem.operands
    bias, (classes, features) = operands.linear_bias, operands.linear_weight.shape
    layer = nn.Linear(features, classes, bias=bias is not None, dtype=operands.linear_weight.dtype)
    layer.load_state_dict({"weight": operands.linear_weight, **({} if bias is None else {"bias": bias})})
    fully_shard(layer, mesh=mesh)
    leaves: dict[str, Tensor] = {"input": own_input(problem, dist.get_rank(group)).requires_grad_()}
    leaves |= {f"linear_{name}": parameter for name, parameter in layer.named_parameters()}
    assert all(isinstance(leaf, DTensor) for name, leaf in leaves.items() if name != "input")
    scores = linear_token_scores(target=problem.operands.target, outputs=EVERY, **leaves, **problem.options)
    results = _found(problem, scores, leaves)
    gradients = results["gradients"]
    results["gradients"] = {
        name: gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        for name, gradient in gradients.items()
    }
    return results


def own_input(problem: ScoreProblem, rank: int) -> Tensor:
    """The hidden states of a rank."""
    return problem.operands.input.detach().roll(rank, -1)


def scores_on_ranks(group: dist.ProcessGroup | None) -> Results:
    """All of it, by the name of the problem."""
    return {
        name: {
            "parts": run_scores(problem, group),
            "dtensors": run_scores_of_dtensors(problem, group),
            "gathered": run_gathered(problem, group),
        }
        for name, problem in score_problems().items()
    }


def score_calls_to_refuse(group: dist.ProcessGroup | None) -> dict[str, Callable[[], Any]]:
    """Calls that must fail on every rank, none of which may be left waiting for the others."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    operands = make_scores(6, ids=ranks).operands
    x, w, target = operands.input, operands.linear_weight, operands.target

    def call(target: Tensor, **options: Any) -> Callable[[], Any]:
        return lambda: linear_token_scores(x, w, target, group or dist.group.WORLD, **options)

    return {
        "unlike ids": call(target[:, : 1 + rank]),
        "unlike outputs": call(target, outputs=("entropy", "mean_logit") if rank else ("entropy",)),
        "target": call(target + ranks * len(w)),
    }
