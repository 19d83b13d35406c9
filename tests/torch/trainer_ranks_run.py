# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Four processes that train as TorchTitan does: ``python -m tests.torch.trainer_ranks_run DIRECTORY``.

They are one mesh of four ranks, and one of two by two, whose rows are groups of two. Everything is computed in both.
They leave in DIRECTORY what they have found; ``test_trainer_ranks.py`` holds it against float64.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import nkilib.simulator
from nkilib.torch import cross_entropy, token_scores, verl, vocab_parallel_cross_entropy
from nkilib.torch.torchtitan import (
    ChunkedCrossEntropyLoss,
    CrossEntropyLoss,
    LinearCrossEntropyLoss,
    compute_logprobs,
    cross_entropy_loss,
)
from tests.hangs import RANKS_WAIT
from tests.torch.inputs import make_logits, make_targets

PROCESSES: Final = 4
TOKENS: Final = 8
WIDTH: Final = 6
CLASSES: Final = 13
# Of every rank, by the number of ranks.
SIZES: Final = {2: [7, 6], 4: [4, 4, 4, 1]}
# So few that the last of four ranks has none.
FEW: Final = 5
# Of the vocabulary of a padded output layer.
UNPADDED: Final = 10
COUNT: Final = 37.0
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Of hidden states from which a loss is computed without logits: the fewest that the kernels take.
FEATURES: Final = 16
TEMPERATURE: Final = 0.8

Results = dict[str, Any]
_all_reduce = dist.all_reduce
_all_reduces: list[torch.Size] = []


def _counted_all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    _all_reduces.append(tensor.shape)
    return _all_reduce(tensor, *args, **kwargs)


def logits_of(dtype: torch.dtype) -> Tensor:
    return make_logits(TOKENS, CLASSES, dtype=dtype)


def labels() -> Tensor:
    return make_targets(TOKENS, classes=CLASSES, ignored=-100)


def upstream() -> Tensor:
    return make_logits(TOKENS, seed=9)


def hidden_and_weight() -> tuple[Tensor, Tensor]:
    return make_logits(TOKENS, WIDTH, seed=4, spread=1.0), make_logits(CLASSES, WIDTH, seed=5, spread=1.0)


def new_head() -> nn.Linear:
    head = nn.Linear(WIDTH, CLASSES, bias=False)
    head.load_state_dict({"weight": hidden_and_weight()[1]})
    return head


def vocabulary_in_shards(mesh: DeviceMesh, dtype: torch.dtype) -> Results:
    """TorchTitan's loss and log-probabilities, of a DTensor and of the plain part that a rank has."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    group = mesh.get_group()
    leaf: Any = distribute_tensor(logits_of(dtype), mesh, [Shard(1)]).requires_grad_()
    results: Results = {}
    large: list[bool] = []

    def seen(saved: Tensor) -> Tensor:
        if saved.numel() > TOKENS:  # more than a number for each
            large.append(saved.untyped_storage().data_ptr() == logits.to_local().untyped_storage().data_ptr())
        return saved

    logits = 1.0 * leaf
    _all_reduces.clear()
    with torch.autograd.graph.saved_tensors_hooks(seen, lambda saved: saved):
        loss, _ = CrossEntropyLoss()(logits, labels(), torch.tensor(COUNT))
    results["saved"] = large
    results["all_reduces"] = len(_all_reduces)
    loss.backward()
    results["DTensor"] = {"loss": loss.detach(), "gradient": leaf.grad.to_local()}
    part = leaf.detach().to_local().requires_grad_()
    loss = cross_entropy_loss(1.0 * part, labels(), global_vocab_size=CLASSES, group=group, inplace=True) / COUNT
    loss.backward()
    results["plain"] = {"loss": loss.detach(), "gradient": part.grad}
    leaf.grad = None
    logprob, entropy = compute_logprobs(1.0 * leaf, labels(), return_entropy=True)
    (logprob * upstream()).sum().backward()
    results["scores"] = {"logprob": logprob.detach(), "entropy": entropy, "gradient": leaf.grad.to_local()}
    scores = token_scores(part.detach(), labels(), group, shard_sizes=SIZES[mesh.size()], entropy=False)
    results["logprob alone"] = {"logprob": scores.logprob, "entropy": scores.entropy}
    few: Any = distribute_tensor(logits_of(dtype)[:, :FEW], mesh, [Shard(1)]).requires_grad_()
    loss = cross_entropy(few, labels().clamp(max=FEW - 1))
    loss.backward()
    results["few classes"] = {"loss": loss.detach(), "gradient": few.grad.to_local()}
    target = labels().clamp(max=UNPADDED - 1)
    padded = [
        vocab_parallel_cross_entropy(logits, target, num_classes=UNPADDED)
        for logits in (leaf.detach(), distribute_tensor(logits_of(dtype), mesh, [Replicate()]))
    ]
    results["padded"] = {"losses": padded}
    return results


def two_dimensions(mesh: DeviceMesh) -> Results:
    """Tokens over the first dimension of the mesh, classes over the second one, or whole there."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    results: Results = {}
    for name, of_classes in (("sharded", Shard(1)), ("replicated", Replicate())):
        leaf = distribute_tensor(logits_of(torch.float32), mesh, [Shard(0), of_classes]).requires_grad_()
        target = distribute_tensor(labels(), mesh, [Shard(0), Replicate()])
        loss = cross_entropy(1.0 * leaf, target, normalizer=torch.tensor(COUNT), inplace=True)
        loss.backward()
        gradient = leaf.grad.full_tensor()  # type: ignore[union-attr]
        total = loss.detach().clone()
        _all_reduce(total, group=mesh.get_group(0))
        plain = cross_entropy(leaf.detach(), target.to_local(), reduction="none")
        results[name] = {"loss": total, "gradient": gradient, "losses": plain}
    return results


def chunks_of_a_sharded_layer(mesh: DeviceMesh, distributed: bool) -> Results:
    """The output layer in columns, with the hidden states on every rank: plain, or a DTensor."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    style = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    head = parallelize_module(new_head(), mesh, style)
    hidden = hidden_and_weight()[0]
    leaf = (distribute_tensor(hidden, mesh, [Replicate()]) if distributed else hidden).requires_grad_()
    loss_of = ChunkedCrossEntropyLoss(num_chunks=3)
    loss_of.set_lm_head(head)
    loss, _ = loss_of(leaf, labels(), torch.tensor(COUNT))
    loss.backward()
    assert leaf.grad is not None and isinstance(head.weight.grad, DTensor)
    gradient = leaf.grad.full_tensor() if isinstance(leaf.grad, DTensor) else leaf.grad
    return {"loss": loss.detach(), "hidden": gradient, "weight": head.weight.grad.full_tensor()}


def chunks_of_fsdp(mesh: DeviceMesh) -> Results:
    """The output layer in pieces that FSDP2 gathers, and tokens of each rank's own."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    head: Any = fully_shard(new_head(), mesh=mesh)
    head.set_gradient_divide_factor(1.0)
    head.set_force_sum_reduction_for_comms(True)  # gloo has no other
    mine = slice(mesh.get_local_rank() * TOKENS // mesh.size(), (mesh.get_local_rank() + 1) * TOKENS // mesh.size())
    leaf = hidden_and_weight()[0][mine].clone().requires_grad_()
    loss, _ = ChunkedCrossEntropyLoss(num_chunks=2, lm_head=head)(leaf, labels()[mine], COUNT)
    loss.backward()
    assert isinstance(head.weight.grad, DTensor)
    with torch.no_grad():
        validated, _ = ChunkedCrossEntropyLoss(num_chunks=2, lm_head=head)(leaf, labels()[mine], COUNT)
    return {
        "loss": loss.detach(),
        "validated": validated,
        "hidden": leaf.grad,
        "weight": head.weight.grad.full_tensor(),
        "is sharded": isinstance(head.weight, DTensor),
    }


def features_and_weight() -> tuple[Tensor, Tensor]:
    """Return inputs of losses without logits; four ranks have as many classes each."""
    return make_logits(TOKENS, FEATURES, seed=4, spread=1.0), make_logits(CLASSES - 1, FEATURES, seed=5, spread=0.5)


def without_logits_under_fsdp(mesh: DeviceMesh) -> Results:
    """The output layer as in ``chunks_of_fsdp``, and the loss inside of its forward."""
    from torch.distributed.fsdp import fully_shard

    hidden, weight = features_and_weight()
    head = nn.Linear(*reversed(weight.shape), bias=False)
    head.load_state_dict({"weight": weight})
    fully_shard(head, mesh=mesh)
    head.set_gradient_divide_factor(1.0)
    head.set_force_sum_reduction_for_comms(True)
    mine = slice(mesh.get_local_rank() * TOKENS // mesh.size(), (mesh.get_local_rank() + 1) * TOKENS // mesh.size())
    leaf = hidden[mine].clone().requires_grad_()
    loss_of = LinearCrossEntropyLoss()
    loss_of.set_lm_head(head)
    loss, _ = loss_of(leaf, labels().clamp(max=CLASSES - 2)[mine], COUNT)
    loss.backward()
    with torch.no_grad():
        validated, _ = loss_of(leaf, labels().clamp(max=CLASSES - 2)[mine], COUNT)
    gradient = head.weight.grad.full_tensor()
    return {"loss": loss.detach(), "validated": validated, "hidden": leaf.grad, "weight": gradient}


def scores_of_verl(mesh: DeviceMesh) -> Results:
    """Each rank has its rows of the weight; gradients of the hidden states are parts of a sum."""
    hidden, weight = features_and_weight()
    leaf, part = hidden.requires_grad_(), weight.chunk(mesh.size())[mesh.get_local_rank()].clone().requires_grad_()
    target = labels().clamp(min=0, max=CLASSES - 2)
    logprob, entropy = verl.linear_cross_entropy(leaf, part, target, TEMPERATURE, "none", mesh.get_group())
    ((logprob + 0.1 * entropy) * upstream()).sum().backward()
    return {"logprob": logprob.detach(), "entropy": entropy.detach(), "hidden": leaf.grad, "weight": part.grad}


def main(rank: int, directory: Path) -> None:
    """Run everything and save it as ``DIRECTORY/RANK.pt``, by the number of ranks of the mesh."""
    store = f"file://{directory / 'store'}"
    dist.init_process_group("gloo", store, RANKS_WAIT, rank=rank, world_size=PROCESSES)
    dist.all_reduce = _counted_all_reduce
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    of_tokens = {2: init_device_mesh("cpu", (2, 2), mesh_dim_names=("pairs", "dp"))["dp"]}
    of_tokens[PROCESSES] = init_device_mesh("cpu", (PROCESSES,), mesh_dim_names=("dp",))
    results: dict[Any, Any] = {}
    with nkilib.simulator.using(uninitialized="error", target="trn2", precise_fp=True):
        for mesh in (square["tp"], init_device_mesh("cpu", (PROCESSES,), mesh_dim_names=("tp",))):
            results[mesh.size()] = {
                **{name: vocabulary_in_shards(mesh, dtype) for name, dtype in DTYPES.items()},
                "chunks": chunks_of_a_sharded_layer(mesh, distributed=False),
                "chunks of a DTensor": chunks_of_a_sharded_layer(mesh, distributed=True),
                "chunks under FSDP": chunks_of_fsdp(mesh),
                "without logits under FSDP": without_logits_under_fsdp(of_tokens[mesh.size()]),
                "verl": scores_of_verl(mesh),
            }
        results["two dimensions"] = two_dimensions(square)
    torch.save(results, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    # What the first call of an operator and the functions above import, once for all processes.
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"):
        import_module(name)
    torch.multiprocessing.start_processes(main, (Path(sys.argv[1]),), PROCESSES, start_method="fork")
