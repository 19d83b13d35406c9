# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Processes that share the classes of an output layer by ``ColwiseParallel``: ``python -m ... DIRECTORY``."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import cross_entropy, fuse_linear_loss, fused_calls
from tests.hangs import RANKS_WAIT
from tests.torch.inputs import make_targets
from tests.torch.lazy_logits.models import BATCH, LENGTH, VOCABULARY, Model, inputs, model

PROCESSES = 2
TARGET: Final = make_targets(BATCH, LENGTH, classes=VOCABULARY)
# A loss of logits [BATCH, LENGTH, VOCABULARY] and targets [BATCH, LENGTH], both DTensors or neither.
Loss = Callable[[Any, Tensor], Tensor]


def _shifted(logits: Any, target: Tensor) -> Tensor:
    """The loss as the models of transformers compute it, with a soft cap."""
    scores = 5.0 * torch.tanh(logits / 5.0)
    return F.cross_entropy(scores.float()[:, :-1].flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)


def _summed(logits: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


def _scores(logits: Any, target: Tensor) -> Tensor:
    scores = logits.log_softmax(-1).gather(-1, target.clamp(min=0)[..., None])
    return scores.square().mean() + logits.logsumexp(-1).mean()


def _accuracy(logits: Any, target: Tensor) -> Tensor:
    with torch.no_grad():
        right = (logits.argmax(-1) == target).sum()
    return _summed(logits, target) + right


def _squares(logits: Any, target: Tensor) -> Tensor:
    """What no kernel computes."""
    return logits.float().square().mean() + 1e-2 * _summed(logits[..., : VOCABULARY - 1], target % (VOCABULARY - 1))


def _of_nkilib(logits: Any, target: Tensor) -> Tensor:
    return cross_entropy(logits, target, class_dim=-1, lse_square_scale=1e-3)


LOSSES: Final[dict[str, Loss]] = {
    "cross_entropy of the scores of a shift": _shifted,
    "scores of tokens": _scores,
    "a loss and an accuracy": _accuracy,
    "cross_entropy of nkilib": _of_nkilib,
    "a function without a kernel": _squares,
}
# What the output layer returns: whether its classes stay sharded, and whether it is a tensor or a DTensor.
OUTPUTS: Final = {
    "a whole tensor": (False, True),
    "a whole DTensor": (False, False),
    "a sharded DTensor": (True, False),
}
PARALLEL: Final = "a sharded DTensor, in loss_parallel"


def _parallel(made: Model, is_sharded: bool, is_local: bool) -> Model:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    layouts = Shard(-1) if is_sharded else Replicate()
    style = ColwiseParallel(output_layouts=layouts, use_local_output=is_local)
    parallelize_module(made, init_device_mesh("cpu", (PROCESSES,)), {"head": style})
    return made


def _whole(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _step(made: Model, loss: Loss, is_local: bool) -> dict[str, Any]:
    """The loss of a model with all its gradients."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    weight: Any = made.head.weight
    target = TARGET if is_local else distribute_tensor(TARGET, weight.device_mesh, [Replicate()])
    value = loss(made(inputs()), target)
    value.backward()
    gradients = {name: parameter.grad for name, parameter in made.named_parameters()}
    found = {name: _whole(gradient) for name, gradient in gradients.items() if gradient is not None}
    return {"loss": _whole(value.detach()), "kind": type(value).__name__, "gradients": found}


def run(loss: Loss, is_sharded: bool, is_local: bool, is_fused_first: bool = False) -> dict[str, Any]:
    """A step of the stock model and of the fused one, and what the latter ran."""
    made = [copy.deepcopy(model(bias=True)) for _ in range(2)]
    results: dict[str, Any] = {}
    for kind, one in zip(("stock", "ours"), made, strict=True):
        if kind == "ours" and is_fused_first:
            fuse_linear_loss(one, head="head", on_compute="ignore")
        _parallel(one, is_sharded, is_local)
        if kind == "ours" and not is_fused_first:
            fuse_linear_loss(one, head="head", on_compute="ignore")
        results[kind] = _step(one, loss, is_local)
    calls = fused_calls(made[1])
    return {**results, "fused": calls.fused, "computed": [place.function for place in calls.computed]}


def _in_loss_parallel(logits: Any, target: Tensor) -> Tensor:
    """The loss of sharded logits, and its backward, in PyTorch's context for them."""
    from torch.distributed.tensor.parallel import loss_parallel

    with loss_parallel():
        loss = _summed(logits, target)
        loss.backward()
    return loss.detach().requires_grad_()


def _refused() -> str:
    """The warning for a weight that every rank has whole as a DTensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module, distribute_tensor

    made, mesh = copy.deepcopy(model()), init_device_mesh("cpu", (PROCESSES,))
    distribute_module(made, mesh)
    fuse_linear_loss(made, head="head")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made(distribute_tensor(inputs(), mesh))
    return "\n".join(str(item.message) for item in caught)


def main(rank: int, directory: Path) -> None:
    """Save what a rank has found as ``DIRECTORY/RANK.pt``."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, RANKS_WAIT, rank=rank, world_size=PROCESSES)
    found: dict[Any, Any] = {
        (output, name): run(loss, *OUTPUTS[output], is_fused_first=name == "scores of tokens")
        for output in OUTPUTS
        for name, loss in LOSSES.items()
    }
    found[PARALLEL] = run(_in_loss_parallel, True, False)
    found["this rank's classes"] = run(lambda logits, target: logits.square().sum(), True, True)
    found["refused"] = _refused()
    torch.save(found, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch._dynamo
    import torch.distributed.tensor.parallel  # what the first call imports, once for all processes

    torch.multiprocessing.start_processes(main, (Path(sys.argv[1]),), PROCESSES, start_method="fork")
