# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The shape checks of losses of an input and a target."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.caller import Caller


def warn_of_broadcast(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Warn if the shapes differ, as PyTorch does: the tensors then broadcast, which is rarely intended."""
    if input.shape == target.shape:  # most are, and the loss broadcasts them with a weight
        return
    broadcast_shape(caller, {"input": input.shape, "target": target.shape})
    if not torch.compiler.is_compiling():
        warnings.warn(
            f"{caller}: target has shape {tuple(target.shape)} and input {tuple(input.shape)}: they are broadcast, and "
            f"every loss of the result enters it; reshape one of them if that is not meant",
            stacklevel=4,
        )


def check_weight(caller: Caller, input: Tensor, weight: Tensor | None) -> None:
    """Reject a weight whose shape is not the input's.

    Raises:
        ValueError: if the check fails, as in PyTorch.
    """
    if weight is not None and weight.shape != input.shape:
        raise ValueError(
            f"{caller}: weight must have the shape of input, {tuple(input.shape)}, got {tuple(weight.shape)}; expand it"
        )


def check_dimensions(caller: Caller, tensors: Mapping[str, Tensor]) -> None:
    """Reject tensors with different numbers of dimensions.

    Raises:
        RuntimeError: if the check fails, as in PyTorch.
    """
    if len({tensor.dim() for tensor in tensors.values()}) > 1:
        sizes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise RuntimeError(
            f"{caller}: all input tensors should have the same number of dimensions, got {sizes}; reshape them"
        )


def check_same_size(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Reject a target whose shape is not the input's, where PyTorch does not broadcast.

    Raises:
        ValueError: if the check fails.
    """
    if input.shape != target.shape:
        raise ValueError(
            f"{caller}: target must have the shape of input, {tuple(input.shape)}, got {tuple(target.shape)}; expand it"
        )


def check_expands(caller: Caller, name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    """Reject a tensor that does not broadcast to a shape.

    Raises:
        RuntimeError: if the check fails, as in PyTorch.
    """
    if tensor is None:
        return
    if tensor.dim() > len(shape) or any(
        own not in (1, whole) for own, whole in zip(reversed(tensor.shape), reversed(shape), strict=False)
    ):
        raise RuntimeError(
            f"{caller}: {name} of shape {tuple(tensor.shape)} does not broadcast to that of target, {tuple(shape)}; "
            f"reshape it"
        )
