# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions of output layers under ZeRO-3 of DeepSpeed, whose parameters are whole only where they have been gathered.

Around the forward weight and bias have been gathered; after it they have no elements. The backward needs them once
more, so it gathers them again, with TRL's own context, and nothing keeps them in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from nkilib.torch.trl.contract import Place
from nkilib.torch.trl.operands import Operands

# The attribute by which DeepSpeed knows whether a parameter is whole.
_STATUS: Final = "ds_status"
# For each output layer, which of the operands are its parameters.
Layers: TypeAlias = tuple[tuple[int, ...], ...]
_Results_co = TypeVar("_Results_co", bound=tuple[Tensor | None, ...], covariant=True)


class Recipe(Protocol[_Results_co]):
    """A function of operands, with its options."""

    def results(self, operands: Operands) -> _Results_co:
        """What it computes."""


def is_sharded(*parameters: Tensor | None) -> bool:
    """Whether one of the parameters is ZeRO-3's."""
    return any(hasattr(each, _STATUS) for each in parameters)


def gathered_results(recipe: Recipe[_Results_co], place: Place, operands: Operands, layers: Layers) -> _Results_co:
    """The results of a recipe, whose backward gathers the parameters of the layers."""
    found: _Results_co = _Gathered.apply(recipe, place, layers, *operands)  # type: ignore[no-untyped-call]
    return found


@dataclass(frozen=True)
class _OfParameter:
    """Stands for a saved tensor that shares the memory of a parameter.

    Attributes:
        number: of the parameter.
        size, stride: of the tensor.
    """

    number: int
    size: torch.Size
    stride: tuple[int, ...]


_Saved: TypeAlias = Tensor | _OfParameter


@dataclass(frozen=True)
class _Parameters:
    """Weights and biases, which a graph does not keep.

    Attributes:
        tensors: they, without a bias that there is not.
    """

    tensors: Sequence[Tensor]

    def pack(self, saved: Tensor) -> _Saved:
        """What the graph keeps of a tensor that it saves."""
        for number, each in enumerate(self.tensors):
            if saved.data_ptr() == each.data_ptr() and saved.numel() == each.numel():
                return _OfParameter(number, saved.size(), saved.stride())
        return saved

    def unpack(self, kept: _Saved) -> Tensor:
        """The tensor again; the parameters have been gathered."""
        if isinstance(kept, Tensor):
            return kept
        return self.tensors[kept.number].detach().as_strided(kept.size, kept.stride)


def _leaf(tensor: Tensor, requires_grad: bool) -> Tensor:
    """The same memory in a graph of its own."""
    return tensor.detach().requires_grad_(requires_grad)


class _Gathered(torch.autograd.Function):
    """The results of detached operands with a graph of their own, which the backward runs within TRL's context.

    The parameters themselves are inputs of the outer graph alone, so their hooks run once.
    """

    @staticmethod
    def forward(
        ctx: Any, recipe: Recipe[tuple[Tensor | None, ...]], place: Place, layers: Layers, *operands: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.place, ctx.layers = place, layers
        numbers = [number for layer in layers for number in layer]
        kept = _Parameters([each for each in (operands[number] for number in numbers) if each is not None])
        wanted = ctx.needs_input_grad[-len(operands) :]
        leaves = [None if each is None else _leaf(each, needed) for each, needed in zip(operands, wanted, strict=True)]
        with torch.enable_grad(), saved_tensors_hooks(kept.pack, kept.unpack):
            results = recipe.results(leaves)
        for number in numbers:
            leaf = leaves[number]
            if leaf is not None:  # the graph holds the leaf, which would hold the gathered memory
                leaf.data = leaf.data.new_empty(0)
        ctx.leaves = [each for each in leaves if each is not None and each.requires_grad]
        differentiable = [None if each is None or not each.requires_grad else each for each in results]
        # Saved rather than kept as an attribute, so that the inner graph is freed when the outer one is.
        ctx.save_for_backward(*(operands[number] for number in numbers), *differentiable)
        detached = tuple(None if each is None else each.detach() for each in results)
        others = zip(detached, differentiable, strict=True)
        ctx.mark_non_differentiable(*(each for each, kept in others if each is not None and kept is None))
        return detached

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        layers = [tuple(next(saved) for _ in layer) for layer in ctx.layers]
        pairs = zip(saved, upstream, strict=True)
        given = [(each, grad) for each, grad in pairs if each is not None and grad is not None]
        gradients: Sequence[Tensor | None] = (None,) * len(ctx.leaves)
        if given:
            results, grads = zip(*given, strict=True)
            with ctx.place.gathered(*layers):
                # Kept for another backward through an outer graph that was retained.
                gradients = torch.autograd.grad(results, ctx.leaves, grads, retain_graph=True, allow_unused=True)
        of_leaves = iter(gradients)
        return (*(next(of_leaves) if needed else None for needed in ctx.needs_input_grad),)
