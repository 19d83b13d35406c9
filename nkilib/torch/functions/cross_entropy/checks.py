# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks of the arguments of cross-entropy, which other functions of cross-entropy use too.

- :func:`checked_options`, :func:`check_known`: the options of the loss as :data:`LossKeywords`; :data:`RECIPE` has
  the names of their keywords;
- :func:`check_arguments`: the tensors and the reduction, by :func:`check_class_dim`, :func:`check_floating`,
  :func:`check_indices` and :func:`check_normalizer`;
- :func:`check_weight`, :func:`check_inplace_logits`, :func:`check_outputs`: checks that need the number of classes, the
  memory of the logits, or all outputs.

Only shapes, dtypes and devices are checked: values of tensors are never read. For an input that
``torch.nn.functional.cross_entropy`` rejects too, the error has the same type as PyTorch's. ``caller`` is the function
that error messages name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from nkilib.core.host.options import all_numbers, check_reduction
from nkilib.core.rows.argmax import ARGMAX_COLUMNS_MAX
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, RecipeOptions, check_recipe
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.layout import is_view_as_rows, rows_shape
from nkilib.torch.losses.indexed import INDEX_DTYPES

# The fields of :class:`LossOptions` by name: numbers, all of them, as operators and kernels take them.
LossKeywords: TypeAlias = Mapping[str, Any]
# The keywords that public functions share, in order.
RECIPE: Final = tuple(RecipeOptions.__annotations__)
# Options whose part in the loss PyTorch's operators for class probabilities and for shards of the vocabulary know.
_KNOWN: Final = (
    *("ignore_index", "label_smoothing", "logit_softcap", "lse_square_scale", "temperature"),
    "exact_maximum",  # in no formula
)


def checked_options(caller: Caller, function: Callable[..., Any], **arguments: Any) -> LossKeywords:
    """Check the options of the loss, and return all of them by name, as Python numbers.

    Args:
        caller: the function that error messages name.
        function: the function whose keyword arguments the options are.
        arguments: options by name; missing options get their default.

    Raises:
        TypeError: an unknown option; a value that is not a number, or not an integer for ``ignore_index``.
        ValueError: ``ignore_index`` does not fit 64 bits; an option other than ``label_smoothing`` is out of range.
        RuntimeError: ``label_smoothing`` is out of range, as in PyTorch.
    """
    if isinstance(arguments.get("label_smoothing"), bool):  # which PyTorch takes as a number
        arguments["label_smoothing"] = float(arguments["label_smoothing"])
    options = all_numbers(caller, function, LossOptions, arguments)
    if not 0.0 <= options["label_smoothing"] <= 1.0:
        raise RuntimeError(f"{caller}: label_smoothing must be between 0.0 and 1.0. Got: {options['label_smoothing']}")
    try:
        check_recipe(str(caller), options["logit_softcap"], options["lse_square_scale"], options["temperature"])
    except AssertionError as error:
        raise ValueError(str(error)) from None
    return options


def check_known(caller: Caller, options: LossKeywords, where: str) -> None:
    """Check that no option is used that only kernels implement, if PyTorch's operators compute a part of a call.

    Args:
        caller: the function that error messages name.
        options: the options of the loss.
        where: words for the message, which follow "is not supported", such as "for class probabilities".

    Raises:
        NotImplementedError: the value of such an option differs from its default.
    """
    for name, value in options.items():
        if name not in _KNOWN and value != getattr(LossOptions, name):
            raise NotImplementedError(f"{caller}: {name} is not supported {where}, got {value}; leave it out")


def check_class_dim(caller: Caller, class_dim: int) -> None:
    """Check that the dimension of the classes is the second (1) or the last (-1).

    Raises:
        ValueError: it is another one.
    """
    if type(class_dim) is not int or class_dim not in (1, -1):
        raise ValueError(f"{caller}: class_dim must be 1, as in PyTorch, or -1, got {class_dim!r}; permute the input")


def check_floating(caller: Caller, target: Tensor) -> None:
    """Check that class probabilities have a floating dtype.

    Raises:
        RuntimeError: the dtype is not floating.
    """
    if not target.is_floating_point():
        raise RuntimeError(
            f"{caller}: Expected floating point type for target with class probabilities, which have the shape of the "
            f"logits, got {target.dtype}; cast them, as with .float(), or pass labels without the classes' dimension"
        )


def _check_probabilities(caller: Caller, target: Tensor, options: LossKeywords) -> None:
    check_floating(caller, target)
    if options["ignore_index"] >= 0:
        raise RuntimeError(
            f"{caller}: ignore_index is not supported for floating point target, got {options['ignore_index']}; leave "
            f"it out, and give ignored positions a row of zeros"
        )


def check_indices(
    caller: Caller,
    logits: tuple[int, ...],
    expected: tuple[int, ...],
    target: Tensor,
    remedy: str = "",
    takes_probabilities: bool = True,
) -> None:
    """Check the shape and dtype of class indices in PyTorch's order, so that of several faults both report the same.

    Args:
        caller: the function that error messages name.
        logits: the shape of the logits.
        expected: the shape that the targets must have.
        target: the targets.
        remedy: a text that is appended to the message for a wrong shape.
        takes_probabilities: whether the caller also takes class probabilities, which the message then mentions.

    Raises:
        ValueError: batch sizes differ.
        RuntimeError: another shape, or a dtype that is not an integer.
    """
    fits = target.shape == expected or (len(logits) == 1 and target.shape == (1,))
    batch, target_batch = (logits[0] if len(logits) > 1 else 1), (target.shape[0] if target.dim() else 0)
    if not fits and batch != target_batch and (len(logits) > 1 or target.dim() <= 1):
        raise ValueError(f"{caller}: Expected input batch_size ({batch}) to match target batch_size ({target_batch}).")
    if target.dtype not in INDEX_DTYPES:
        are_probabilities = takes_probabilities and target.is_floating_point()
        others = f"; class probabilities have the shape of the logits, {logits}" if are_probabilities else ""
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}{others}; cast labels of "
            f"shape {tuple(target.shape)}, as with .long()"
        )
    if not fits:
        raise RuntimeError(f"{caller}: Expected target size {list(expected)}, got {list(target.shape)}{remedy}")


def check_normalizer(caller: Caller, normalizer: Tensor | None, reduction: str, device: torch.device) -> None:
    """Check the divisor of a mean, unless it is None.

    Raises:
        ValueError: the reduction is not a mean; the divisor has dimensions.
        TypeError: the divisor is complex or a bool.
        RuntimeError: the divisor is neither on ``device`` nor on the CPU.
    """
    if normalizer is None:
        return
    if reduction != "mean":
        raise ValueError(
            f"{caller}: normalizer replaces the divisor of a mean, got reduction={reduction!r}; divide the loss "
            f"yourself"
        )
    if normalizer.dim() != 0:
        raise ValueError(
            f"{caller}: normalizer must be a tensor without dimensions, got shape {tuple(normalizer.shape)}; sum it up"
        )
    if normalizer.is_complex() or normalizer.dtype == torch.bool:
        raise TypeError(f"{caller}: normalizer must be a real number, got {normalizer.dtype}; pass a count of targets")
    if normalizer.device not in (device, torch.device("cpu")):
        raise RuntimeError(
            f"{caller}: normalizer must be on the device of {caller.input}, {device}, or on the CPU, got "
            f"{normalizer.device}; move it there"
        )


def check_arguments(
    caller: Caller,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    options: LossKeywords,
    reduction: str,
    normalizer: Tensor | None,
    class_dim: int,
) -> None:
    """Check the tensors and the reduction of a cross-entropy; :func:`check_weight` is separate.

    Raises:
        TypeError: an argument has the wrong Python type, or the input is not bfloat16, float16 or float32.
        ValueError: unknown ``reduction`` or ``class_dim``; batch sizes differ; ``normalizer`` does not fit.
        RuntimeError: other shapes do not match.
        NotImplementedError: an unsupported device, a sharded tensor, integer logits, or forward-mode differentiation.
    """
    tensors = {caller.input: input, "target": target, "weight": weight, "normalizer": normalizer}
    checks.check_tensors(caller, tensors, optional=("weight", "normalizer"))
    check_reduction(caller, reduction)
    check_class_dim(caller, class_dim)
    checks.check_plain(caller, tensors)
    checks.check_devices(caller, input, {"target": target, "weight": weight})
    checks.check_tile_dtype(caller, input)
    if target.shape == input.shape:
        _check_probabilities(caller, target, options)
    else:
        are_last = class_dim == 1 and target.shape == input.shape[:-1]
        remedy = "; the classes of the logits seem to be last: pass class_dim=-1" if are_last else ""
        expected = rows_shape(input, class_dim) if input.dim() else ()
        check_indices(caller, tuple(input.shape), expected, target, remedy)
    check_normalizer(caller, normalizer, reduction, input.device)


def check_inplace_logits(caller: Caller, input: Tensor, class_dim: int, **others: Tensor | None) -> None:
    """Check for ``inplace=True`` that the gradient can be written over the logits.

    Args:
        caller: the function that error messages name.
        input: the logits.
        class_dim: the dimension of the classes.
        others: the other tensors of the call. Class probabilities may be the logits themselves.

    Raises:
        RuntimeError: the logits are a leaf that requires grad, or a view of one; another tensor shares memory with
            them; torch.compile is tracing.
        ValueError: the kernel would work on a copy of the logits.
    """
    checks.check_inplace(caller, input, others, aligned=("target",))
    if not is_view_as_rows(input, class_dim):
        raise ValueError(
            f"{caller}: inplace=True requires contiguous logits with the classes last, got shape {tuple(input.shape)}, "
            f"strides {input.stride()} and class_dim={class_dim}, which take a copy; keep the classes last and pass "
            f"class_dim=-1, and shift or mask the targets instead of slicing the logits"
        )


def check_weight(caller: Caller, weight: Tensor | None, classes: int, soft: bool) -> None:
    """Check the shape and dtype of class weights.

    Args:
        caller: the function that error messages name.
        weight: the class weights, or None.
        classes: the number of classes.
        soft: whether the targets are class probabilities.

    Raises:
        RuntimeError: a shape other than [classes]; not floating; requires grad while the targets are class indices.
    """
    if weight is None:
        return
    if weight.shape != (classes,):
        raise RuntimeError(
            f"{caller}: weight tensor should be defined either for all {classes} classes or no classes but got weight "
            f"tensor of shape: {list(weight.shape)}"
        )
    if not weight.is_floating_point():
        raise RuntimeError(f"{caller}: weight must be floating point, but found {weight.dtype}; pass weight.float()")
    if not soft:
        checks.check_constant(caller, "weight", weight)


def check_outputs(caller: Caller, classes: int) -> None:
    """Check that ``return_outputs`` is possible: the argmax counts classes in float32, which is exact up to 2^24.

    Raises:
        ValueError: there are more than 2^24 classes.
    """
    if classes > ARGMAX_COLUMNS_MAX:
        raise ValueError(
            f"{caller}: return_outputs is for at most {ARGMAX_COLUMNS_MAX} classes, got {classes}; leave it off"
        )
