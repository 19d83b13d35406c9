# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses whose targets are class indices, which kernels take as int32.

- :func:`indexed_loss` makes the operators of such a loss from one description; :data:`SCORES`, :data:`CLASS_WEIGHT` and
  :func:`class_targets` are parts of such descriptions;
- :func:`kernel_target` converts the indices during a call, and :func:`int32_targets` before it; :func:`is_ignored`
  finds ignored positions, and :func:`check_range` rejects classes that do not exist;
- :func:`check_classes` and :func:`check_inplace_scores` check a loss of scores [N, C] or [C], for N rows and C classes;
  :func:`rows_and_classes` returns both numbers.

Kernels take int32, and Neuron devices compute with 32 bits: a 64-bit integer may lose its upper half in any operation,
and 2^32 + 3 would become class 3. So this module reads a 64-bit integer as two int32 from the tensor's memory. In a
traced graph, and on XLA, the memory may not be accessible. The operations used there are correct if they are computed
with 64 bits, and also with 32 bits if all values fit an int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_int, check_flags, hides_unknown, refuse_unknown
from nkilib.experimental import loss as kernels
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.autograd import Derivative, differentiate
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.memory import is_traced
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, TILE_DTYPES, Call, Input, Operator, Output, Shape, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses.options import Defaults, options_of_loss
from nkilib.torch.losses.outputs import kernel_gradient, loss_output

INDEX_DTYPES: Final = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
)
# The kernels' ignore_index where the caller's cannot be passed on.
_IGNORED: Final = -100
_INT32: Final = torch.iinfo(torch.int32)
_BITS: Final = 32


class _Halves(NamedTuple):
    """The two int32 halves of each integer of a tensor: an integer equals ``high * 2^32 + low``, where ``low`` is read
    as unsigned.
    """

    low: Tensor
    high: Tensor

    @property
    def fit(self) -> Tensor:
        """A bool tensor that is true where an integer fits an int32, so that its low half alone is the integer."""
        return self.high == self.low >> (_BITS - 1)

    def are(self, value: int) -> Tensor:
        """Return a bool tensor that is true where an integer equals ``value``, which may be any 64-bit integer."""
        high, low = value >> _BITS, value & (1 << _BITS) - 1
        return (self.low == (low if low <= _INT32.max else low - (1 << _BITS))) & (self.high == high)


def _halves(target: Tensor) -> _Halves | None:
    """Return the int32 halves of 64-bit integers, or of uint32, read from the tensor's memory; None if the memory
    cannot be viewed as int32, as in a traced graph.
    """
    if is_traced(target) or target.device.type == "xla":
        return None
    if target.itemsize < torch.int64.itemsize:  # uint32
        return _Halves(target.contiguous().view(torch.int32), torch.zeros_like(target, dtype=torch.int32))
    whole = target.contiguous()
    if whole.stride()[-1:] != (1,):  # a dimension of one element, or none, is contiguous with any stride
        whole = whole.clone(memory_format=torch.contiguous_format)
    halves = whole.view(torch.int32).reshape(*target.shape, 2)
    return _Halves(halves[..., 0], halves[..., 1])


def _is_narrow(target: Tensor) -> bool:
    limits = torch.iinfo(target.dtype)
    return _INT32.min <= limits.min and limits.max <= _INT32.max


def is_ignored(target: Tensor, ignore_index: int) -> Tensor:
    """Return a bool tensor of the shape of the target that is true where a class index equals ``ignore_index``.

    ``ignore_index`` may be any 64-bit integer, also one that the target's dtype cannot hold.
    """
    limits = torch.iinfo(target.dtype)
    if not limits.min <= ignore_index <= limits.max:  # PyTorch would wrap the number into the type
        return torch.zeros_like(target, dtype=torch.bool)
    if _is_narrow(target):
        return target == ignore_index
    halves = _halves(target)
    return target.to(torch.int64) == ignore_index if halves is None else halves.are(ignore_index)


def _in_reach(target: Tensor, num_classes: int) -> Tensor:
    """Return class indices as int32. An index outside [0, num_classes) becomes -1 or ``num_classes``."""
    if _is_narrow(target):
        return target.to(torch.int32).clamp(-1, num_classes)
    halves = _halves(target)
    if halves is None:
        return target.to(torch.int64).clamp(-1, num_classes).to(torch.int32)
    return torch.where(halves.fit, halves.low, num_classes).clamp(-1, num_classes)


def kernel_target(target: Tensor, ignore_index: int, num_classes: int) -> tuple[Tensor, int]:
    """Return the target and the ignore_index for a kernel.

    An int32 target is returned unchanged if ``ignore_index`` is an int32 too. Other class indices are replaced by int32
    numbers of the same meaning: a class, ignored, or out of range. A plain cast would bring 2^32 + 3 into range.

    Args:
        target: class indices of any integer type and shape, or class probabilities [N, V], floating.
        ignore_index: the caller's ignore_index, any integer.
        num_classes: V, the number of classes.

    Returns:
        The target, int32 in the same shape, and the ignore_index for it; class probabilities in a dtype of the kernels,
        contiguous.
    """
    if target.is_floating_point():
        return (target if target.dtype in TILE_DTYPES else target.float()).contiguous(), _IGNORED
    if target.dtype == torch.int32 and _INT32.min <= ignore_index <= _INT32.max:
        return target.contiguous(), ignore_index
    return torch.where(is_ignored(target, ignore_index), _IGNORED, _in_reach(target, num_classes)), _IGNORED


def _class_indices(target: Tensor, num_classes: int) -> Tensor:
    """Return class indices of any integer type as int32, for a kernel without ``ignore_index``.

    An index that is not in [0, num_classes) stays outside of it.
    """
    return target.contiguous() if target.dtype == torch.int32 else _in_reach(target, num_classes).contiguous()


def check_range(caller: str, target: Tensor, ignore_index: int, num_classes: int) -> None:
    """Check that all class indices exist. The check reads the values, so it is for the CPU only.

    Raises:
        IndexError: a target is outside [0, num_classes) and is not ``ignore_index``; the message names the first one,
            as in PyTorch.
    """
    if target.is_floating_point():
        return
    wide = target.to(torch.int64)
    outside = ((wide < 0) | (wide >= num_classes)) & ~is_ignored(target, ignore_index)
    if bool(outside.any()):
        position = int(outside.nonzero()[0])
        raise IndexError(
            f"{caller}: Target {int(wide[position])} is out of bounds: position {position} must have a class from 0 to "
            f"{num_classes - 1} or ignore_index, {ignore_index}"
        )


@hides_unknown
def int32_targets(target: Tensor, num_classes: int, ignore_index: int = -100, **unknown: Unpack[NoKeywords]) -> Tensor:
    """Check class indices on the host, and return them as int32, which kernels take without a conversion.

    On a Neuron device no value is read, and 64-bit integers may be computed with 32 bits. So call this where the labels
    come from the loader, before they move to the device.

    Example::
        target = int32_targets(batch["labels"], vocabulary).to("neuron")

    Args:
        target: class indices on the CPU, of any integer type and shape.
        num_classes: V; every index must be less.
        ignore_index: the one value outside of [0, V) that is allowed; it must be an int32.

    Returns:
        An int32 tensor of the same shape; the target itself if it is int32 already.

    Raises:
        TypeError: not a tensor, or not of an integer type.
        ValueError: not on the CPU; ``ignore_index`` is not an int32.
        IndexError: a class out of range.
    """
    if unknown:
        refuse_unknown(int32_targets, unknown)
    caller = "int32_targets"
    needed = "target must be a tensor of an integer type"
    if not isinstance(target, Tensor):
        remedy = checks.tensor_remedy(caller, "target", target)
        raise TypeError(f"{caller}: {needed}, got {type(target).__name__}{remedy}")
    if target.dtype not in INDEX_DTYPES:
        raise TypeError(f"{caller}: {needed}, got {target.dtype}; pass class indices")
    if target.device.type != "cpu":
        raise ValueError(
            f"{caller}: target must be on the CPU, where its values can be looked at, got {target.device}; call it "
            f"before the transfer"
        )
    if target.layout != torch.strided:
        raise NotImplementedError(f"{caller}: target must be a dense tensor, got {target.layout}; pass .to_dense()")
    num_classes = as_int(caller, "num_classes", num_classes)
    ignore_index = as_int(caller, "ignore_index", ignore_index)
    if not _INT32.min <= ignore_index <= _INT32.max:
        raise ValueError(f"{caller}: ignore_index must be an int32, got {ignore_index}; mark positions with another")
    check_range(caller, target.reshape(-1), ignore_index, num_classes)
    return target.to(torch.int32)


# Rows of classes, and a factor for each class.
SCORES: Final = Input("input", dtypes=FLOAT_DTYPES, dimensions=2)
CLASS_WEIGHT: Final = Input("class_weight", is_optional=True, dimensions=1)


def indexed_loss(
    caller: Caller,
    inputs: Sequence[Input],
    options: Defaults,
    losses: Callable[[Call], Shape],
    backward: Sequence[str],
    arguments: Callable[[Call], dict[str, Any]],
    check_values: Callable[[Call], None],
    saved: Sequence[Output] = (),
    may_overwrite: bool = True,
) -> Derivative:
    """Register the operators of a loss, ``nkilib::<name>_forward`` and ``nkilib::<name>_backward``, and return their
    derivative.

    The operators launch the kernels of these names of :mod:`nkilib.experimental.loss`. The kernels' arguments have the
    names of tensors and options.

    Args:
        caller: the names of the loss and of its first tensor, for messages.
        inputs: the inputs of the forward; only the first one has a gradient.
        options: the defaults of the kernels' options by name, including the reduction.
        losses: a function that returns the shape of losses that are not reduced.
        backward: the names of the backward's inputs, in order: inputs of the forward, tensors that it saved, and
            ``"grad_loss"``.
        arguments: a function that returns keyword arguments of both kernels. They replace those made from inputs and
            options: for instance ``targets_hbm``, the class indices in int32, replaces the target as it was passed.
        check_values: a function that raises an error if indices are out of range, called on the CPU only.
        saved: the outputs of the forward that only the backward needs.
        may_overwrite: whether the backward can write the gradient over the first input.
    """
    first, known, own = inputs[0].name, {operand.name: operand for operand in inputs}, options_of_loss(options)
    of_forward = Operator(
        f"{caller}_forward",
        inputs=inputs,
        options=(own,),
        outputs=(loss_output(losses, (first,)), *saved),
        kernel=lambda: getattr(kernels, f"{caller}_forward"),
        arguments=arguments,
        check_values=check_values,
        instead=caller.instead,
    )
    of_backward = Operator(
        f"{caller}_backward",
        inputs=[known.get(name, Input(name)) for name in backward],
        options=(own,),
        outputs=(Output(f"grad_{first}", None, as_first),),
        kernel=lambda: getattr(kernels, f"{caller}_backward"),
        arguments=lambda call: {**arguments(call), **kernel_gradient(call)},
        may_overwrite=may_overwrite,
        check_values=check_values,
        instead=caller.instead,
    )
    return differentiate(register(of_forward), register(of_backward))


def class_targets(call: Call) -> dict[str, Any]:
    """Return the kernel argument ``targets_hbm``, the call's class indices as int32, for a loss without
    ``ignore_index``.
    """
    return {"targets_hbm": _class_indices(call.tensor("target").detach(), int(call.first.shape[1]))}


def rows_and_classes(input: Tensor) -> tuple[int, int]:
    """Return N and C of an input [N, C]; N is 1 for an input [C], and both are 1 for an input without dimensions."""
    if input.dim() == 2:
        return int(input.shape[0]), int(input.shape[1])
    return 1, int(input.shape[0]) if input.dim() else 1


def check_classes(caller: Caller, input: Tensor, target: Tensor) -> None:
    """Check the shapes and dtypes of input and target, with PyTorch's error types.

    Raises:
        RuntimeError: no classes, or more than two dimensions; a target that is not an integer tensor.
        NotImplementedError: an integer input.
        TypeError: a float64 input.
    """
    if input.dim() > 2 or (input.dim() and rows_and_classes(input)[1] == 0):
        raise RuntimeError(
            f"{caller}: Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(input.shape)}; flatten what is beside the classes"
        )
    if target.dtype not in INDEX_DTYPES:
        raise RuntimeError(
            f"{caller}: expected target dtype to be an integer type, but got {target.dtype}; pass target.long()"
        )
    checks.check_tile_dtype(caller, input)


def check_inplace_scores(
    caller: Caller, input: Tensor, computed: Tensor, inplace: Any, others: Mapping[str, Tensor | None]
) -> None:
    """Check for ``inplace=True`` that the gradient can be written over the input.

    Args:
        caller: the function that error messages name.
        input: the scores, as the caller of the loss passed them.
        computed: the scores in the dtype that the kernel gets; a copy of ``input`` if that is another dtype.
        inplace: the argument to check.
        others: the other tensors of the call, by name.

    Raises:
        TypeError: ``inplace`` is not a bool.
        ValueError: the kernel would work on a copy of the input, made for its dtype or because it is not contiguous.
        RuntimeError: the input is a leaf that requires grad, or a view of one; one of ``others`` shares memory with it;
            torch.compile is tracing.
    """
    check_flags(caller, inplace=inplace)
    if inplace:
        is_kept = computed.dtype == input.dtype and input.is_contiguous()
        checks.check_inplace(caller, input, others, is_kept=is_kept)
