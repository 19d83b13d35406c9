# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Processes of DistributedDataParallel and of FSDP2: ``python -m ... DIRECTORY PROCESSES``.

Each has tokens of its own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nkilib.torch.transformers import fuse_linear_loss
from tests.hangs import RANKS_WAIT
from tests.torch.transformers import fsdp_cases
from tests.torch.transformers.models import gradients_of, llama, padded_batch, pair


def _data_parallel(rank: int) -> list[tuple[Any, ...]]:
    """Loss, type of the logits and gradients of the stock model and of the fused one."""
    stock, ours = pair(llama)
    fuse_linear_loss(ours)
    results = []
    for model in (stock, ours):
        parallel = DistributedDataParallel(model.train())
        output = parallel(**{name: value[rank : rank + 1] for name, value in padded_batch().items()})
        output.loss.backward()
        results.append((output.loss.detach(), type(output.logits).__name__, gradients_of(model)))
    return results


def main(rank: int, directory: Path, processes: int) -> None:
    """Save what a rank has found as ``DIRECTORY/RANK.pt``; of more than two ranks FSDP2 alone."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, RANKS_WAIT, rank=rank, world_size=processes)
    results: dict[str, Any] = {name: fsdp_cases.run(name, rank) for name in fsdp_cases.CASES}
    if processes == 2:
        results["DistributedDataParallel"] = _data_parallel(rank)
    torch.save(results, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    # What the first call of an operator and the models import, once for all processes.
    for name in (
        "torch._dynamo",
        "torch.distributed.fsdp",
        "transformers.models.llama.modeling_llama",
        "transformers.models.qwen2.modeling_qwen2",
    ):
        import_module(name)
    to, count = Path(sys.argv[1]), int(sys.argv[2])
    torch.multiprocessing.start_processes(main, (to, count), count, start_method="fork")
