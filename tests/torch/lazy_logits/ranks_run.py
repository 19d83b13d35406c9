# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Processes that train a model whose loss is computed outside of it, from what it returns: ``python -m ... DIRECTORY``.

Each has inputs of its own.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nkilib.torch import fuse_linear_loss, fused_calls
from tests.hangs import RANKS_WAIT
from tests.torch.inputs import make_logits, make_targets
from tests.torch.lazy_logits.models import FEATURES, VOCABULARY, Model, model

PROCESSES = 2
# Ways to wrap a model, which may change it where it is.
Wrap = Callable[[Model], nn.Module]


def _sharded(is_head_alone: bool, reshard: bool | None, made: Model) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(made.trunk)
    if is_head_alone:
        fully_shard(made.head)
    fully_shard(made, reshard_after_forward=reshard)
    return made


CASES: Final[dict[str, Wrap]] = {
    "DDP": DistributedDataParallel,
    "DDP that looks for unused parameters": partial(DistributedDataParallel, find_unused_parameters=True),
    "FSDP2, head alone": partial(_sharded, True, None),
    "FSDP2, head in the root": partial(_sharded, False, None),
    "FSDP2, head in a root that reshards": partial(_sharded, False, True),
}


class _Gathers:
    """Counts the calls by which FSDP2 gathers the weights of a group."""

    def __init__(self) -> None:
        from torch.distributed.fsdp._fully_shard import _fsdp_param_group

        self.count = 0
        self._module = _fsdp_param_group
        self._stock = _fsdp_param_group.foreach_all_gather

    def __enter__(self) -> _Gathers:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return self._stock(*args, **kwargs)

        self._module.foreach_all_gather = counted
        return self

    def __exit__(self, *error: object) -> None:
        self._module.foreach_all_gather = self._stock


def _step(wrapped: nn.Module, rank: int, factor: float = 1e-2) -> tuple[Tensor, int]:
    """Loss of a step, and how often weights were gathered; with a factor of 0 one function of the logits alone."""
    batch, target = make_logits(4, FEATURES, seed=rank, spread=1.0), make_targets(4, classes=VOCABULARY, seed=rank)
    with _Gathers() as gathers:
        logits = wrapped(batch)
        loss = F.cross_entropy(logits, target)
        loss = loss + factor * logits.logsumexp(-1).mean() if factor else loss
        loss.backward()
    return loss.detach(), gathers.count


def _computed(wrapped: nn.Module, rank: int) -> Tensor:
    """A loss that no kernel computes, of logits outside of the model."""
    loss: Tensor = wrapped(make_logits(4, FEATURES, seed=rank, spread=1.0)).square().mean()
    loss.backward()
    return loss.detach()


def _gradients(made: nn.Module) -> dict[str, Tensor]:
    from torch.distributed.tensor import DTensor

    found = {}
    for name, parameter in made.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        found[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()
    return found


def run(name: str, rank: int) -> dict[str, Any]:
    """Losses, gradients and numbers of gathers of two steps, of the stock model and of the fused one."""
    results = {}
    for kind in ("stock", "ours"):
        made = copy.deepcopy(model(bias=True))
        if kind == "ours":
            fuse_linear_loss(made, head="head", on_compute="ignore")
        wrapped = CASES[name](made)
        steps = []
        for _ in range(2):
            made.zero_grad()
            steps.append(_step(wrapped, rank))
        results[kind] = {"steps": steps, "gradients": _gradients(made), "gathers": _step(wrapped, rank, 0.0)[1]}
        made.zero_grad()
        results[kind]["computed"] = _computed(wrapped, rank), _gradients(made)
    results["fused"] = fused_calls(made).fused
    results["places"] = [place.function for place in fused_calls(made).computed]
    return results


def main(rank: int, directory: Path) -> None:
    """Save what a rank has found as ``DIRECTORY/RANK.pt``."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, RANKS_WAIT, rank=rank, world_size=PROCESSES)
    torch.save({name: run(name, rank) for name in CASES}, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch._dynamo
    import torch.distributed.fsdp  # what the first call imports, once for all processes

    torch.multiprocessing.start_processes(main, (Path(sys.argv[1]),), PROCESSES, start_method="fork")
