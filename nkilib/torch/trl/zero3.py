"""Token scores under ZeRO-3 of DeepSpeed, whose parameters are whole only where they have been gathered.

TRL gathers weight and bias of the output layer around its call; after it they have no elements. The backward needs them
once more, so it gathers them again, with TRL's own context, and nothing keeps them in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from nkilib.torch.trl.contract import Place
from nkilib.torch.trl.scores import Recipe, TokenResults, token_results

# The attribute by which DeepSpeed knows whether a parameter is whole.
_STATUS: Final = "ds_status"


def is_sharded(*parameters: Tensor | None) -> bool:
    """Whether one of the parameters is ZeRO-3's."""
    return any(hasattr(each, _STATUS) for each in parameters)


def gathered_results(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, recipe: Recipe, place: Place
) -> TokenResults:
    """:func:`~.scores.token_results`, whose backward gathers weight and bias."""
    return _Gathered.apply(hidden, weight, bias, targets, recipe, place)  # type: ignore[no-untyped-call]


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
    """Weight and bias, which a graph does not keep.

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
    """The scores of detached operands with a graph of their own, which the backward runs within TRL's context.

    The parameters themselves are inputs of the outer graph alone, so their hooks run once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        recipe: Recipe,
        place: Place,
    ) -> TokenResults:
        ctx.set_materialize_grads(False)
        ctx.place = place
        parameters = _Parameters([each for each in (weight, bias) if each is not None])
        wanted = ctx.needs_input_grad
        of_hidden, of_weight = _leaf(hidden, wanted[0]), _leaf(weight, wanted[1])
        of_bias = None if bias is None else _leaf(bias, wanted[2])
        with torch.enable_grad(), saved_tensors_hooks(parameters.pack, parameters.unpack):
            results = token_results(of_hidden, of_weight, of_bias, targets, recipe)
        for leaf in (of_weight, of_bias):
            if leaf is not None:  # the graph holds the leaf, which would hold the gathered memory
                leaf.data = leaf.data.new_empty(0)
        leaves = (of_hidden, of_weight, of_bias)
        ctx.leaves = [each for each in leaves if each is not None and each.requires_grad]
        # Saved rather than kept as an attribute, so that the inner graph is freed when the outer one is.
        ctx.save_for_backward(weight, bias, *results[:2])
        logprob, entropy, *others = (None if each is None else each.detach() for each in results)
        ctx.mark_non_differentiable(*(each for each in others if each is not None))
        return (logprob, entropy, *others)  # type: ignore[return-value]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        weight, bias, *results = ctx.saved_tensors
        given = [(each, grad) for each, grad in zip(results, upstream, strict=False) if grad is not None]
        gradients: Sequence[Tensor | None] = (None,) * len(ctx.leaves)
        if given:
            scores, grads = zip(*given, strict=True)
            with ctx.place.gathered(weight, bias):
                # Kept for another backward through an outer graph that was retained.
                gradients = torch.autograd.grad(scores, ctx.leaves, grads, retain_graph=True, allow_unused=True)
        of_leaves = iter(gradients)
        return (*(next(of_leaves) if needed else None for needed in ctx.needs_input_grad),)
