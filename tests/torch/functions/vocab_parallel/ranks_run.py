# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Three processes that test the loss: ``python -m tests.torch.functions.vocab_parallel.ranks_run DIRECTORY``.

They find each other through a file in DIRECTORY, so no port can be taken, and leave there what they have found. The
last two are also a group of their own, in which a process has another rank than among all. They are forked from one
that has imported everything, compiled a graph and started no thread yet, which spares two thirds of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing

import nkilib.simulator
from nkilib.torch import CrossEntropyOutputs, vocab_parallel_cross_entropy
from tests.hangs import RANKS_WAIT
from tests.torch.functions.linear_distillation.on_ranks import distillation_calls_to_refuse, distillation_on_ranks
from tests.torch.functions.linear_token_scores.on_ranks import score_calls_to_refuse, scores_on_ranks
from tests.torch.functions.vocab_parallel.cases import (
    Case,
    all_cases,
    all_ignored,
    logits_and_targets,
    objective,
    shard,
)
from tests.torch.functions.vocab_parallel.linear_cases import linear_all_ignored, linear_cases
from tests.torch.functions.vocab_parallel.linear_on_ranks import compiled_linear, linear_calls_to_refuse, run_linear
from tests.torch.inputs import make_logits, make_targets

PROCESSES: Final = 3
PAIR: Final = [1, 2]

Results = dict[str, Any]
_all_reduce = dist.all_reduce
_all_reduces: list[torch.Size] = []


def _counted_all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    _all_reduces.append(tensor.shape)
    return _all_reduce(tensor, *args, **kwargs)


def run(case: Case, group: dist.ProcessGroup | None) -> Results:
    """The results, the gradients of this rank's shard, and the all-reduces that each took."""
    whole, target = logits_and_targets(case)
    rank = dist.get_rank(group)
    leaf = shard(case, whole, rank).requires_grad_()
    logits = leaf.clone()
    if case.kind == "probabilities":
        target = shard(case, target, rank).requires_grad_()
    _all_reduces.clear()
    returned = vocab_parallel_cross_entropy(logits, target, group, **case.arguments())
    forward = len(_all_reduces)
    if isinstance(returned, CrossEntropyOutputs):
        outputs = {name: values for name, values in returned._asdict().items() if values is not None}
        objective(case, returned.loss, returned.lse, returned.logprob, returned.entropy).backward()
    else:
        outputs = {"loss": returned}
        objective(case, returned).backward()
    return {
        **{name: values.detach() for name, values in outputs.items()},
        "gradient": leaf.grad,
        "target_gradient": target.grad,
        "all_reduces": (forward, len(_all_reduces) - forward),
        "overwritten": torch.equal(logits, leaf.grad),  # type: ignore[arg-type]
        "kept": torch.equal(logits.nan_to_num(), leaf.nan_to_num()),
    }


def _message(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def refusals(group: dist.ProcessGroup | None) -> Results:
    """Calls that must fail on every rank, none of which may be left waiting for the others."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    target = torch.zeros(4, dtype=torch.int64)
    outside = torch.full((4,), 5 * ranks)
    empty = [0] * (ranks - 1) + [5 * ranks]
    logits = torch.randn(4, 5 * ranks)
    calls: dict[str, Callable[[], Any]] = {
        "unlike widths": lambda: vocab_parallel_cross_entropy(logits[:, : 5 - rank], target, group),
        "unlike sizes": lambda: vocab_parallel_cross_entropy(
            logits, target, group, shard_sizes=[2 + rank] + [2] * (ranks - 1)
        ),
        "unlike options": lambda: vocab_parallel_cross_entropy(
            logits[:, :5], target, group, label_smoothing=0.1 * rank, return_outputs=rank == 0
        ),
        "unlike reductions": lambda: vocab_parallel_cross_entropy(
            logits[:, :5], target, group, reduction="mean" if rank else "sum"
        ),
        "target": lambda: vocab_parallel_cross_entropy(logits[:, :5], outside, group),
        "target, no classes here": lambda: vocab_parallel_cross_entropy(
            logits[:, : empty[rank]], outside, group, shard_sizes=empty
        ),
        "whole": lambda: vocab_parallel_cross_entropy(make_logits(4, 5), target, group),
    }
    return {name: _message(call) for name, call in calls.items()}


def compiled(group: dist.ProcessGroup) -> Results:
    """A whole graph of torch.compile, collectives included, beside the call as it is."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    target = make_targets(4, classes=5 * ranks)
    x = make_logits(4, 5 * ranks)[:, 5 * rank : 5 * (rank + 1)].clone().requires_grad_()

    def loss_of(logits: torch.Tensor) -> torch.Tensor:
        return vocab_parallel_cross_entropy(2.0 * logits, target, group, label_smoothing=0.1)

    losses = [loss_of(x), torch.compile(loss_of, backend="aot_eager", fullgraph=True)(x)]
    result = [(loss.detach(), torch.autograd.grad(loss, x)[0]) for loss in losses]
    return {"expected": result[0], "actual": result[1]}


def _found_by(group: dist.ProcessGroup | None) -> Results:
    ranks = dist.get_world_size(group)
    result = {case.name: run(case, group) for case in (*all_cases(ranks), *all_ignored(ranks))}
    linear = {
        case.name: run_linear(case, group, _all_reduces) for case in (*linear_cases(ranks), *linear_all_ignored(ranks))
    }
    linear["refusals"] = {name: _message(call) for name, call in linear_calls_to_refuse(group).items()}
    scores = scores_on_ranks(group)
    scores["refusals"] = {name: _message(call) for name, call in score_calls_to_refuse(group).items()}
    distillation = distillation_on_ranks(group)
    distillation["refusals"] = {name: _message(call) for name, call in distillation_calls_to_refuse(group).items()}
    of_layers = {"linear": linear, "scores": scores, "distillation": distillation}
    return {**result, "refusals": refusals(group), **of_layers}


def main(rank: int, directory: Path) -> None:
    """Run everything and save it as ``DIRECTORY/RANK.pt``, by the number of ranks of the group."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, RANKS_WAIT, rank=rank, world_size=PROCESSES)
    pair = dist.new_group(PAIR)
    dist.all_reduce = _counted_all_reduce
    results: dict[Any, Any] = {}
    with nkilib.simulator.using(uninitialized="error", target="trn2", precise_fp=True):
        results[3] = _found_by(None)
        if rank in PAIR:
            results[2] = _found_by(pair)
            with mock.patch.object(dist, "all_reduce", _all_reduce):  # the one that the compiler knows
                results[2] |= {"compiled": compiled(pair), "compiled linear": compiled_linear(pair)}
        else:
            target = torch.ones(1, dtype=torch.int64)
            results["outside"] = _message(lambda: vocab_parallel_cross_entropy(torch.ones(1, 5), target, pair))
    torch.save(results, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _compile_once() -> None:
    """Load and set up everything that the first graph needs, so that other graphs need not.

    No gradient is taken: torch built for CUDA starts threads in autograd, and refuses to work in forked processes.
    """
    torch.compile(lambda x: (2.0 * x).logsumexp(0), backend="aot_eager", fullgraph=True)(torch.ones(2))


if __name__ == "__main__":
    import_module("torch.distributed.tensor")
    _compile_once()
    torch.multiprocessing.start_processes(main, (Path(sys.argv[1]),), PROCESSES, start_method="fork")
