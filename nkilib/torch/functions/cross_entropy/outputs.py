# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values that the loss functions return, computed from the per-row results."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.torch.dispatch.reductions import per_row, reduced
from nkilib.torch.functions.cross_entropy.results import ForwardResults
from nkilib.torch.losses.target_indices import is_ignored


class CrossEntropyOutputs(NamedTuple):
    """The loss and further results of the same pass over the logits.

    "Per position" is the shape of class-index targets. "The logits" are those after scale, cap and temperature. At
    ignored positions, lse, argmax and entropy are computed from the logits; all other results are 0.

    Attributes:
        loss: float32, reduced as requested; it includes ``z_loss``. Differentiable.
        lse: float32 per position, log-sum-exp of the logits, in nats. Differentiable.
        z_loss: float32, the part of the loss that ``lse_square_scale`` adds, reduced as the loss. Differentiable.
        logprob: float32 per position, log-probability of the target in nats, at most 0. Differentiable. None for class
            probabilities, which have no single target.
        argmax: int64 per position, the first class with the largest logit; V, which is no class, in a row that holds a
            NaN.
        entropy: float32 per position, the entropy of the softmax of the logits, in nats. Differentiable.
    """

    loss: Tensor
    lse: Tensor
    z_loss: Tensor
    logprob: Tensor | None
    argmax: Tensor
    entropy: Tensor


def returned_values(
    results: ForwardResults,
    target: Tensor,
    options: LossOptions,
    reduction: str,
    normalizer: Tensor | None,
    shape: tuple[int, ...],
    return_outputs: bool,
) -> Tensor | CrossEntropyOutputs:
    """Return the value of a loss function: the loss, or with ``return_outputs`` all outputs.

    Args:
        results: the per-row results.
        target: the targets of the rows, class indices or probabilities.
        options: the options of the loss.
        reduction, normalizer, return_outputs: the caller's arguments.
        shape: the shape of the positions.
    """
    soft = target.is_floating_point()
    valid = None if soft else ~is_ignored(target, options.ignore_index)
    divisor = _divisor(results, normalizer, valid) if reduction == "mean" else _Divisor()
    loss = reduced(results.loss, reduction, shape, *divisor)
    if not return_outputs:
        return loss
    z_loss = _z_loss(results.lse, valid, options.lse_square_scale)
    return CrossEntropyOutputs(
        loss=loss,
        lse=per_row(results.lse, shape),
        z_loss=reduced(z_loss, reduction, shape, *divisor),
        logprob=None if soft else per_row(results.logprob, shape),
        argmax=results.argmax.reshape(shape).to(torch.int64),
        entropy=per_row(results.entropy, shape),
    )


class _Divisor(NamedTuple):
    """The divisor of a mean, and whether no position is valid, as :func:`reduced` takes them."""

    value: Tensor | int | None = None
    is_empty: Tensor | None = None


def _divisor(results: ForwardResults, normalizer: Tensor | None, valid: Tensor | None) -> _Divisor:
    """Return the divisor of a mean: ``normalizer`` if given, else the sum of the targets' weights, or for class
    probabilities, which have no ``valid``, the number of positions, as in PyTorch.
    """
    if normalizer is not None:
        return _Divisor(normalizer.to(torch.float32))
    if valid is None:
        return _Divisor(results.loss.shape[0])
    weight = results.position_weight.sum()
    # PyTorch adds what smoothing spreads to a mean of 0 / 0.
    return _Divisor(torch.where(weight == 0.0, torch.nan, weight), ~valid.any())


def _z_loss(lse: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    if scale == 0.0:
        return torch.zeros_like(lse)
    return scale * (lse if valid is None else torch.where(valid, lse, 0.0)).square()
