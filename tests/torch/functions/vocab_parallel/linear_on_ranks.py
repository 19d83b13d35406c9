# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""An output layer in parts, as each of the processes of ``vocab_parallel.ranks_run`` computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.torch import CrossEntropyOutputs, vocab_parallel_linear_cross_entropy
from tests.torch.functions.vocab_parallel.linear_cases import LinearCase, objective
from tests.torch.inputs import make_logits, make_targets

Results = dict[str, Any]


def run_linear(case: LinearCase, group: dist.ProcessGroup | None, all_reduces: list[torch.Size]) -> Results:
    """The results, the gradients of what this rank has, and the all-reduces that each took."""
    leaves, target = case.leaves(dist.get_rank(group)), case.problem().target
    all_reduces.clear()
    arguments = {**case.loss_arguments(), **case.layout}
    returned = vocab_parallel_linear_cross_entropy(target=target, group=group, **leaves, **arguments)
    forward = len(all_reduces)
    if isinstance(returned, CrossEntropyOutputs):
        outputs = {name: values for name, values in returned._asdict().items() if values is not None}
        objective(case, returned.loss, returned.lse, returned.logprob).backward()
    else:
        outputs = {"loss": returned}
        objective(case, returned).backward()
    return {
        **{name: values.detach() for name, values in outputs.items()},
        "gradients": {name: leaf.grad for name, leaf in leaves.items()},
        "all_reduces": (forward, len(all_reduces) - forward),
    }


def linear_calls_to_refuse(group: dist.ProcessGroup | None) -> dict[str, Callable[[], Any]]:
    """Calls that must fail on every rank, none of which may be left waiting for the others."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    x, w, target = make_logits(4, 20), make_logits(5, 20, seed=1), torch.zeros(4, dtype=torch.int64)

    def call(x: Tensor = x, w: Tensor = w, target: Tensor = target, **options: Any) -> Callable[[], Any]:
        return lambda: vocab_parallel_linear_cross_entropy(x, w, target, group, **options)

    return {
        "unlike widths": call(w=w[: 5 - rank]),
        "unlike options": call(label_smoothing=0.1 * rank, return_outputs=rank == 0),
        "unlike reductions": call(reduction="mean" if rank else "sum"),
        "unlike features": call(x=x[:, : 20 - rank], w=w[:, : 20 - rank]),
        "unlike needs": call(x=x.clone().requires_grad_(rank > 0)),
        "target": call(target=target + 5 * ranks),
        "whole": call(target=target + 4),
    }


def compiled_linear(group: dist.ProcessGroup) -> Mapping[str, Any]:
    """A whole graph of torch.compile, collectives of both directions included, beside the call as it is."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    x = make_logits(4, 20).requires_grad_()
    w = make_logits(5, 20, seed=2 + rank, spread=0.3).requires_grad_()
    target = make_targets(4, classes=5 * ranks)

    def loss_of(x: Tensor, w: Tensor, total: Tensor) -> Tensor:
        return vocab_parallel_linear_cross_entropy(
            2.0 * x, w, target, group, label_smoothing=0.1, grad_weight_sum=total
        )

    results = []
    for function in (loss_of, torch.compile(loss_of, backend="aot_eager", fullgraph=True)):
        total = torch.ones(5, 20)
        loss = function(x, w, total)
        results.append((loss.detach(), torch.autograd.grad(loss, x)[0], total))
    return {"expected": results[0], "actual": results[1]}
