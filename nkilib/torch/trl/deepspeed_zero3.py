# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Results of TRL's functions under ZeRO-3 of DeepSpeed, where the parameters of output layers are whole only while they
are gathered.

Weight and bias are gathered for the forward, and have no elements afterwards. The backward gathers them again, with
TRL's own context; no graph keeps them in between. :func:`is_sharded` tells whether parameters are sharded, and
:func:`gathered_results` computes the results of a *recipe*: the options of a function of TRL, with a method that
computes its results on the kernels (:class:`Recipe`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from nkilib.torch.trl.recipes import Operands

# The attribute by which DeepSpeed knows whether a parameter is whole.
_STATUS: Final = "ds_status"
# For each output layer, which of the operands are its parameters.
Layers: TypeAlias = tuple[tuple[int, ...], ...]
# TRL's context in which the parameters of the given output layers are whole.
Gathering: TypeAlias = Callable[..., AbstractContextManager[None]]
_Results_co = TypeVar("_Results_co", bound=tuple[Tensor | None, ...], covariant=True)


class Recipe(Protocol[_Results_co]):
    """A protocol: the options of a function of TRL, with a method that computes the function's results."""

    def results(self, operands: Operands) -> _Results_co:
        """Return the results of TRL's function for these operands: hidden states, weights and biases."""


def is_sharded(*parameters: Tensor | None) -> bool:
    """Return whether any of the parameters is sharded by ZeRO-3."""
    return any(hasattr(parameter, _STATUS) for parameter in parameters)


@dataclass(frozen=True)
class _OfParameter:
    """A placeholder for a saved tensor that shares memory with a parameter; a graph keeps it in place of the tensor.

    Attributes:
        number: the index of the parameter in :attr:`_Parameters.tensors`.
        size, stride: the size and stride of the saved tensor.
    """

    number: int
    size: torch.Size
    stride: tuple[int, ...]


_Saved: TypeAlias = Tensor | _OfParameter


@dataclass(frozen=True)
class _Parameters:
    """Gathered weights and biases, with hooks that replace saved tensors that share their memory by placeholders.

    Attributes:
        tensors: the weights, and the biases that exist.
    """

    tensors: Sequence[Tensor]

    def pack(self, saved: Tensor) -> _Saved:
        """Return the object that the graph keeps for a saved tensor: a placeholder if the tensor shares memory with a
        parameter, else the tensor.
        """
        for number, parameter in enumerate(self.tensors):
            if saved.data_ptr() == parameter.data_ptr() and saved.numel() == parameter.numel():
                return _OfParameter(number, saved.size(), saved.stride())
        return saved

    def unpack(self, kept: _Saved) -> Tensor:
        """Return the saved tensor for ``kept``, the object from :meth:`pack`. For a placeholder, the parameters must be
        gathered again.
        """
        if isinstance(kept, Tensor):
            return kept
        return self.tensors[kept.number].detach().as_strided(kept.size, kept.stride)


def _leaf(tensor: Tensor, requires_grad: bool) -> Tensor:
    return tensor.detach().requires_grad_(requires_grad)


class _Gathered(torch.autograd.Function):
    """An autograd function that computes results from detached operands in an inner graph. Its backward runs the
    backward of that graph while TRL's context has gathered the parameters.

    Only the outer graph has the parameters themselves as inputs, so their hooks run once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        recipe: Recipe[tuple[Tensor | None, ...]],
        gathered: Gathering,
        layers: Layers,
        *operands: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.gathered, ctx.layers = gathered, layers
        numbers = [number for layer in layers for number in layer]
        kept = _Parameters([tensor for tensor in (operands[number] for number in numbers) if tensor is not None])
        wanted = ctx.needs_input_grad[-len(operands) :]
        leaves = [
            None if tensor is None else _leaf(tensor, needed) for tensor, needed in zip(operands, wanted, strict=True)
        ]
        with torch.enable_grad(), saved_tensors_hooks(kept.pack, kept.unpack):
            results = recipe.results(leaves)
        for number in numbers:
            leaf = leaves[number]
            if leaf is not None:  # the graph holds the leaf, which would hold the gathered memory
                leaf.data = leaf.data.new_empty(0)
        ctx.leaves = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        differentiable = [None if result is None or not result.requires_grad else result for result in results]
        # Saved rather than kept as an attribute, so that the inner graph is freed when the outer one is.
        ctx.save_for_backward(*(operands[number] for number in numbers), *differentiable)
        # Copies, because the saved results must not change with what the caller gets.
        copies = tuple(None if result is None else result.detach().clone() for result in results)
        others = zip(copies, differentiable, strict=True)
        ctx.mark_non_differentiable(*(result for result, known in others if result is not None and known is None))
        return copies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        layers = [tuple(next(saved) for _ in layer) for layer in ctx.layers]
        pairs = zip(saved, upstream, strict=True)
        pairs_with_gradient = [(leaf, grad) for leaf, grad in pairs if leaf is not None and grad is not None]
        gradients: Sequence[Tensor | None] = (None,) * len(ctx.leaves)
        if pairs_with_gradient:
            results, grads = zip(*pairs_with_gradient, strict=True)
            with ctx.gathered(*layers):
                # Kept for another backward through an outer graph that was retained.
                gradients = torch.autograd.grad(results, ctx.leaves, grads, retain_graph=True, allow_unused=True)
        of_leaves = iter(gradients)
        return (*(next(of_leaves) if needed else None for needed in ctx.needs_input_grad),)


def gathered_results(
    recipe: Recipe[_Results_co], gathered: Gathering, operands: Operands, layers: Layers
) -> _Results_co:
    """Return the results of a recipe whose weights are gathered for the forward, and again for the backward.

    Args:
        recipe: the options of TRL's function, which compute the results.
        gathered: a function that returns TRL's context in which output layers are gathered.
        operands: the tensors of the call.
        layers: for each output layer, the indices of its weight and bias in ``operands``.
    """
    results: _Results_co = _Gathered.apply(recipe, gathered, layers, *operands)  # type: ignore[no-untyped-call]
    return results
