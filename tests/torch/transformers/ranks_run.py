"""Two processes of DistributedDataParallel, each with a row of the batch: ``python -m ... DIRECTORY``."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nkilib.torch.transformers import fuse_linear_loss
from tests.torch.transformers.models import gradients_of, llama, padded_batch, pair

PROCESSES = 2


def main(rank: int, directory: Path) -> None:
    """Save the loss and the gradients of the stock model and of the fused one as ``DIRECTORY/RANK.pt``."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), rank=rank, world_size=PROCESSES)
    stock, ours = pair(llama)
    fuse_linear_loss(ours)
    found = []
    for model in (stock, ours):
        parallel = DistributedDataParallel(model.train())
        output = parallel(**{name: value[rank : rank + 1] for name, value in padded_batch().items()})
        output.loss.backward()
        found.append((output.loss.detach(), type(output.logits).__name__, gradients_of(model)))
    torch.save(found, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(main, (Path(sys.argv[1]),), PROCESSES, start_method="fork")
