# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The fallback to PyTorch's own operators for losses that no kernel computes, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.experimental.loss.linear.shared.launch import CLASSES_MAX, FEATURES_MAX, FEATURES_MIN
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.losses.target_indices import INDEX_DTYPES


def reason_for_reference(arguments: LinearArguments, vocabulary: int | None = None) -> str | None:
    """Return a clause that says why no kernel computes the loss; None if a kernel computes it.

    Args:
        arguments: the arguments of the call.
        vocabulary: the number of classes of all ranks, if ``linear_weight`` has those of one rank.
    """
    own_classes, *inner, features = arguments.linear_weight.shape
    classes = own_classes if vocabulary is None else vocabulary
    if inner:
        return f"linear_weight has {arguments.linear_weight.dim()} dimensions"
    if arguments.has_probabilities:
        return "target has class probabilities"
    if not FEATURES_MIN <= features <= FEATURES_MAX:
        return f"there are {features} features, and the kernels take {FEATURES_MIN} to {FEATURES_MAX}"
    if not 0 < classes <= CLASSES_MAX:
        return f"there are {classes} classes, and the kernels take 1 to {CLASSES_MAX}"
    return None


def check_unused(caller: Caller, reason: str, is_used: Mapping[str, bool]) -> None:
    """Reject the use of arguments that PyTorch's function does not have, in a call whose loss PyTorch's operators
    compute.

    Args:
        caller: the function that error messages name.
        reason: why no kernel computes the loss.
        is_used: for each argument, whether its value differs from its default.

    Raises:
        NotImplementedError: if the check fails.
    """
    for name, used in is_used.items():
        if used:
            raise NotImplementedError(
                f"{caller}: {name} is not supported where {reason}; leave it out, or pass the logits of "
                f"torch.nn.functional.linear to nkilib.torch.cross_entropy"
            )


def reference_loss(caller: Caller, arguments: LinearArguments, reason: str, options: LossOptions) -> Tensor:
    """Return PyTorch's ``cross_entropy`` of PyTorch's ``linear``, with a warning.

    Args:
        caller: the function that the warning names.
        arguments: the arguments of the call, checked.
        reason: why no kernel computes the loss.
        options: the options of the loss, only those of PyTorch.
    """
    _warn(f"{caller}: {reason}; computed by linear and cross_entropy of torch.nn.functional, with all logits in memory")
    weight, bias, positions = arguments.linear_weight, arguments.linear_bias, arguments.input.shape[:-1]
    is_deep = len(positions) > 1
    rows = arguments.input.flatten(0, -2) if is_deep else arguments.input
    products = linear(rows, weight.flatten(0, -2), None if bias is None else bias.flatten())
    target = arguments.target.long() if arguments.target.dtype in INDEX_DTYPES else arguments.target
    loss = cross_entropy(
        products.reshape(*rows.shape[:-1], *weight.shape[:-1]),
        target.flatten(0, len(positions) - 1) if is_deep else target,
        arguments.weight,
        ignore_index=options.ignore_index,
        reduction=arguments.reduction,
        label_smoothing=options.label_smoothing,
    )
    return unviewed(loss.reshape(positions)) if arguments.reduction == "none" and is_deep else loss


def _warn(message: str) -> None:
    if torch.compiler.is_compiling():
        from nkilib.torch.dispatch import uncompiled  # which imports the compiler

        uncompiled.warn(message)
    else:
        warnings.warn(message, UserWarning, stacklevel=4)
