"""Three processes that test the loss: ``python -m tests.torch.vocab_parallel_run DIRECTORY``.

They find each other through a file in DIRECTORY, so no port can be taken, and leave there what they have found. The
last two are also a group of their own, in which a process has another rank than among all. They are forked from one
that has imported everything and started no thread yet, which spares two thirds of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo  # what the first call of an operator imports, once for all processes
import torch.distributed as dist
import torch.multiprocessing

import nkilib.simulator
from nkilib.torch import vocab_parallel_cross_entropy

from .vocab_parallel_cases import Case, all_cases, all_ignored, logits_and_targets, shard

PROCESSES: Final = 3
PAIR: Final = [1, 2]

Results = dict[str, Any]
_all_reduce = dist.all_reduce
_all_reduces: list[torch.Size] = []


def _counted_all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    _all_reduces.append(tensor.shape)
    return _all_reduce(tensor, *args, **kwargs)


def run(case: Case, group: dist.ProcessGroup | None) -> Results:
    """The loss, the gradient of this rank's shard, and the all-reduces that each took."""
    whole, target = logits_and_targets(case)
    leaf = shard(case, whole, dist.get_rank(group)).requires_grad_()
    logits = leaf.clone()
    _all_reduces.clear()
    loss = vocab_parallel_cross_entropy(logits, target, group, **case.arguments())
    forward = len(_all_reduces)
    loss.backward(case.upstream())
    return {
        "loss": loss.detach(),
        "gradient": leaf.grad,
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
        "target": lambda: vocab_parallel_cross_entropy(logits[:, :5], outside, group),
        "target, no classes here": lambda: vocab_parallel_cross_entropy(
            logits[:, : empty[rank]], outside, group, shard_sizes=empty
        ),
    }
    return {name: _message(call) for name, call in calls.items()}


def _found_by(group: dist.ProcessGroup | None) -> Results:
    ranks = dist.get_world_size(group)
    found = {case.name: run(case, group) for case in (*all_cases(ranks), *all_ignored(ranks))}
    return {**found, "refusals": refusals(group)}


def main(rank: int, directory: Path) -> None:
    """Run everything and save it as ``DIRECTORY/RANK.pt``, by the number of ranks of the group."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), rank=rank, world_size=PROCESSES)
    pair = dist.new_group(PAIR)
    dist.all_reduce = _counted_all_reduce
    found: dict[Any, Any] = {}
    with nkilib.simulator.using(uninitialized="error", target="trn2", precise_fp=True):
        found[3] = _found_by(None)
        if rank in PAIR:
            found[2] = _found_by(pair)
        else:
            target = torch.ones(1, dtype=torch.int64)
            found["outside"] = _message(lambda: vocab_parallel_cross_entropy(torch.ones(1, 5), target, pair))
    torch.save(found, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(main, (Path(sys.argv[1]),), PROCESSES, start_method="fork")
