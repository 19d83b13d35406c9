# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How models are given to ``fully_shard``, and what a rank finds when it trains them: by name in ``CASES``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nkilib.torch.transformers import fuse_linear_loss
from tests.torch.transformers.models import BATCH, Make, llama, padded_batch, pair, qwen2

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Groups = Callable[[Any], Sequence[Sequence[nn.Module]]]
# Arguments of MixedPrecisionPolicy.
_MIXED: Final = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
_ROUNDED: Final = {**_MIXED, "output_dtype": torch.bfloat16}


def _head(model: Any) -> Sequence[Sequence[nn.Module]]:
    return [[model.lm_head]]


def _norm_and_head(model: Any) -> Sequence[Sequence[nn.Module]]:
    return [[model.model.norm, model.lm_head]]


def _embedding_norm_and_head(model: Any) -> Sequence[Sequence[nn.Module]]:
    return [[model.model.embed_tokens, model.model.norm, model.lm_head]]


def _root(model: Any) -> Sequence[Sequence[nn.Module]]:
    return []


@dataclass(frozen=True)
class Case:
    """A model, and how it is sharded and trained.

    Attributes:
        make: the model.
        groups: the groups of modules that ``fully_shard`` gets beside the layers, before the whole model.
        reshard: ``reshard_after_forward``, of all.
        is_fused_first: ``fuse_linear_loss`` comes before ``fully_shard``.
        policy: mixed precision of layers and of the whole model, as arguments of ``MixedPrecisionPolicy``.
        head_policy: the mixed precision of the groups.
        micro_batches: backwards in a step, of which the last one reduces gradients.
        memory_limit: the argument ``memory_limit`` of ``fuse_linear_loss``.
        is_frozen: the output layer has no gradient.
    """

    make: Make
    groups: Groups
    reshard: bool
    is_fused_first: bool = True
    policy: Mapping[str, torch.dtype] = field(default_factory=dict)
    head_policy: Mapping[str, torch.dtype] = field(default_factory=dict)
    micro_batches: int = 1
    memory_limit: int | None = None
    is_frozen: bool = False


CASES: Final = {
    "head": Case(llama, _head, reshard=True),
    "norm and head": Case(llama, _norm_and_head, reshard=True, is_fused_first=False),
    "norm and head, kept": Case(llama, _norm_and_head, reshard=False, micro_batches=2),
    "head, accumulated": Case(llama, _head, reshard=True, is_fused_first=False, micro_batches=2),
    "head, one launch": Case(llama, _head, reshard=True, memory_limit=2**40),
    "norm and frozen head": Case(llama, _norm_and_head, reshard=True, is_frozen=True),
    "tied, with embedding": Case(qwen2, _embedding_norm_and_head, reshard=True),
    "tied, in the root": Case(qwen2, _root, reshard=True),
    "mixed, in the root": Case(llama, _root, reshard=True, policy=_MIXED),
    "mixed, head": Case(llama, _head, reshard=True, policy=_MIXED, head_policy=_ROUNDED),
    "mixed, norm and head": Case(llama, _norm_and_head, reshard=False, policy=_MIXED, head_policy=_ROUNDED),
}


def _sharded(model: PreTrainedModel, case: Case) -> PreTrainedModel:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy, head_policy = (MixedPrecisionPolicy(**given) for given in (case.policy, case.head_policy))
    for layer in model.model.layers:
        fully_shard(layer, reshard_after_forward=case.reshard, mp_policy=policy)
    for group in case.groups(model):
        inputs = group[0] if len(group) == 1 else list(group)
        fully_shard(inputs, reshard_after_forward=case.reshard, mp_policy=head_policy)
    fully_shard(model, reshard_after_forward=case.reshard, mp_policy=policy)  # which changes it where it is
    return model


def _own_batches(rank: int, count: int) -> list[dict[str, Tensor]]:
    """The micro-batches of a rank, a row each."""
    rows = [(rank + at) % BATCH for at in range(count)]
    whole = padded_batch(seed=1 + rank)
    return [{name: value[row : row + 1] for name, value in whole.items()} for row in rows]


def _train(model: PreTrainedModel, batches: list[dict[str, Tensor]]) -> list[Tensor]:
    """The losses; the parameters have their gradients then. What they sum up to is a mean over all batches."""
    from torch.distributed.fsdp import FSDPModule

    items = sum((batch["labels"][:, 1:] != -100).sum() for batch in batches)
    losses = []
    for at, batch in enumerate(batches):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(at == len(batches) - 1)
        loss = model(**batch, num_items_in_batch=items if len(batches) > 1 else None).loss
        loss.backward()
        losses.append(loss.detach())
    return losses


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients by name, averaged over ranks: a sharded model's are already, and have to be gathered."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    results = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None
            continue
        assert parameter.grad is not None, f"{name} has no gradient"
        if isinstance(model, FSDPModule):
            assert isinstance(parameter.grad, DTensor)
            results[name] = parameter.grad.full_tensor()
        else:
            results[name] = parameter.grad.clone()
            dist.all_reduce(results[name])
            results[name] /= dist.get_world_size()
    return results


def _weights_saved(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[int]:
    """Bytes that are there, after the forward, of every weight of the output layer that autograd keeps."""
    shape, kept = tuple(model.lm_head.weight.shape), []

    def keep(tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) == shape:
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(**batch).loss
    sizes = [tensor.untyped_storage().size() for tensor in kept]
    loss.backward()
    model.zero_grad()
    return sizes


def run(name: str, rank: int) -> dict[str, Any]:
    """Return the findings of one rank: of ``"stock"``, ``"ours"`` and, under mixed precision, ``"exact"``."""
    case = CASES[name]
    stock, ours = (model.train() for model in pair(case.make))
    for model in (stock, ours):
        model.lm_head.weight.requires_grad_(not case.is_frozen)
    batches = _own_batches(rank, case.micro_batches)
    results: dict[str, Any] = {}
    if case.policy:
        exact = copy.deepcopy(stock).to(case.policy["param_dtype"]).double()
        results["exact"] = {"losses": _train(exact, batches), "gradients": _gradients(exact)}
        _sharded(stock, case)
    results["stock"] = {"losses": _train(stock, batches), "gradients": _gradients(stock)}
    if case.is_fused_first:
        fuse_linear_loss(ours, memory_limit=case.memory_limit)
    _sharded(ours, case)
    if not case.is_fused_first:
        fuse_linear_loss(ours, memory_limit=case.memory_limit)
    results["saved"] = _weights_saved(ours, batches[0])
    with torch.no_grad():
        results["evaluated"] = ours(**batches[0]).loss
    results["ours"] = {"losses": _train(ours, batches), "gradients": _gradients(ours)}
    return results
