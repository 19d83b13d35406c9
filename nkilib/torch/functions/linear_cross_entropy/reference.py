# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What no kernel computes goes to PyTorch's own operators, with a warning that says so."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from nkilib.experimental.loss.cross_entropy.options import LossOptions
from nkilib.experimental.loss.linear.shared.launch import CLASSES_MAX, FEATURES_MAX, FEATURES_MIN
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.functions.linear_cross_entropy.arguments import LinearArguments
from nkilib.torch.losses.target_indices import INDEX_DTYPES


def reason_for_reference(given: LinearArguments, vocabulary: int | None = None) -> str | None:
    """A clause that says what no kernel computes; None where one does.

    Args:
        given: the arguments.
        vocabulary: classes of all ranks, where ``linear_weight`` has those of one.
    """
    held, *inner, features = given.linear_weight.shape
    classes = held if vocabulary is None else vocabulary
    if inner:
        return f"linear_weight has {given.linear_weight.dim()} dimensions"
    if given.has_probabilities:
        return "target has class probabilities"
    if not FEATURES_MIN <= features <= FEATURES_MAX:
        return f"there are {features} features, and the kernels take {FEATURES_MIN} to {FEATURES_MAX}"
    if not 0 < classes <= CLASSES_MAX:
        return f"there are {classes} classes, and the kernels take 1 to {CLASSES_MAX}"
    return None


def check_unused(caller: Caller, reason: str, is_used: Mapping[str, bool]) -> None:
    """Refuse arguments that PyTorch does not have, where its operators compute the loss.

    Args:
        caller: who is named in errors.
        reason: why no kernel computes it.
        is_used: of each argument, whether it has another value than its default.

    Raises:
        NotImplementedError: always then.
    """
    for name, used in is_used.items():
        if used:
            raise NotImplementedError(
                f"{caller}: {name} is not supported where {reason}; leave it out, or pass the logits of "
                f"torch.nn.functional.linear to nkilib.torch.cross_entropy"
            )


def reference_loss(caller: Caller, given: LinearArguments, reason: str, options: LossOptions) -> Tensor:
    """``cross_entropy`` of ``linear``, both of PyTorch, and a warning.

    Args:
        caller: who is named in it.
        given: the arguments, checked.
        reason: why no kernel computes it.
        options: of the loss, none but PyTorch's.
    """
    _warn(f"{caller}: {reason}; computed by linear and cross_entropy of torch.nn.functional, with all logits in memory")
    weight, bias, positions = given.linear_weight, given.linear_bias, given.input.shape[:-1]
    is_deep = len(positions) > 1
    rows = given.input.flatten(0, -2) if is_deep else given.input
    products = linear(rows, weight.flatten(0, -2), None if bias is None else bias.flatten())
    target = given.target.long() if given.target.dtype in INDEX_DTYPES else given.target
    loss = cross_entropy(
        products.reshape(*rows.shape[:-1], *weight.shape[:-1]),
        target.flatten(0, len(positions) - 1) if is_deep else target,
        given.weight,
        ignore_index=options.ignore_index,
        reduction=given.reduction,
        label_smoothing=options.label_smoothing,
    )
    return loss.reshape(positions) if given.reduction == "none" and is_deep else loss


def _warn(message: str) -> None:
    if torch.compiler.is_compiling():
        from nkilib.torch.dispatch import uncompiled  # which imports the compiler

        uncompiled.warn(message)
    else:
        warnings.warn(message, UserWarning, stacklevel=4)
