# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``softmax`` and ``log_softmax`` along a dimension: the functions, their operators, and the modules ``Softmax``,
``LogSoftmax`` and ``Softmax2d``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function
from typing_extensions import Unpack

from nkilib.core.host.options import NoKeywords, as_int, hides_unknown, refuse_unknown
from nkilib.experimental import softmax as kernels
from nkilib.torch.dispatch.autograd import Derivative, differentiate
from nkilib.torch.dispatch.checks import Caller, autocast_dtype, check_devices, check_plain, check_tensors, is_lazy
from nkilib.torch.dispatch.layout import AlongAxis
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, TILE_DTYPES, Call, Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register

SOFTMAX: Final = Caller("softmax", "input", "a tensor", "torch.nn.functional.softmax")
LOG_SOFTMAX: Final = Caller("log_softmax", "input", "a tensor", "torch.nn.functional.log_softmax")
# The dtypes that the kernels read and write, by their names in options.
DTYPES: Final = {str(dtype).removeprefix("torch."): dtype for dtype in FLOAT_DTYPES}
_NAMES = "bfloat16, float16 or float32"
_OF_THE_CALLER = 6  # a warning names who calls the module, beyond three frames of nn.Module


@dataclass(frozen=True)
class SoftmaxOptions:
    """The keyword arguments of the operators.

    Attributes:
        axis: the dimension along which elements add up to 1; a negative one counts from the end.
        dtype: the dtype of the result: ``"bfloat16"``, ``"float16"`` or ``"float32"``; None means the dtype of the
            first input.
    """

    axis: int = -1
    dtype: str | None = None


def _dtype_of_result(call: Call) -> torch.dtype:
    name = call.group(SoftmaxOptions).dtype
    if name is None:
        return call.first.dtype
    if name not in DTYPES:
        raise ValueError(f"softmax operators: dtype must be one of {', '.join(DTYPES)}, got {name!r}; pass one of them")
    return DTYPES[name]


def _arguments(call: Call, caller: Caller, direction: str) -> dict[str, Any]:
    from nkilib.experimental.softmax.tensors import Kind

    shape, axis = call.first.shape, call.group(SoftmaxOptions).axis
    tiling = kernels.choose_softmax_tiling(shape, axis, call.first.dtype, direction, kind=Kind(str(caller)))
    return {"dtype": TILE_DTYPES[_dtype_of_result(call)], "partitions_per_row": tiling.partitions_per_row}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_of_input(call: Call) -> dict[str, Any]:
    # The backward does not get the input, so its dtype is an option.
    return {"dtype": _name_of(call.first.dtype)}


# Tensors of any shape, and an axis.
def _differentiated(caller: Caller) -> Derivative:
    of_forward = Operator(
        f"{caller}_forward",
        inputs=(Input("input", keyword="x_hbm", dtypes=FLOAT_DTYPES),),
        options=(SoftmaxOptions,),
        outputs=(Output("output", _dtype_of_result, as_first),),
        kernel=lambda: getattr(kernels, f"{caller}_forward"),
        arguments=partial(_arguments, caller=caller, direction="forward"),
        instead=caller.instead,
    )
    of_backward = Operator(
        f"{caller}_backward",
        inputs=(Input("grad_output", keyword="grad_hbm", dtypes=FLOAT_DTYPES), Input("output", dtypes=FLOAT_DTYPES)),
        options=(SoftmaxOptions,),
        outputs=(Output("grad_input", _dtype_of_result, as_first),),
        kernel=lambda: getattr(kernels, f"{caller}_backward"),
        arguments=partial(_arguments, caller=caller, direction="backward"),
        may_overwrite=True,
        instead=caller.instead,
    )
    return differentiate(register(of_forward), register(of_backward), options=_dtype_of_input)


OF_SOFTMAX: Final = _differentiated(SOFTMAX)
OF_LOG_SOFTMAX: Final = _differentiated(LOG_SOFTMAX)


class _Restored(torch.autograd.Function):
    """An autograd function that gives the operator's result the shape and layout of the caller's tensor, in the same
    memory.

    The returned tensor is not a view, so ``detach_()`` works. It shares the version counter of the operator's result,
    which is saved for the backward. So after in-place arithmetic on the returned tensor, the backward raises PyTorch's
    error. The arguments of ``apply`` are the operator's result, the layout, and the caller's shape.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(result: Tensor, along: AlongAxis, shape: torch.Size) -> Tensor:
        return along.restored(result).reshape(shape).detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.along, _ = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = grads
        return ctx.along.stored(gradient if gradient.dim() else gradient.reshape(1)), None, None


def _result_dtype(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of the result: the requested ``dtype``; without it, float32 under autocast on accelerators, as
    in PyTorch, and else the dtype of ``x``.
    """
    if dtype is not None:
        return dtype
    return torch.float32 if x.device.type != "cpu" and autocast_dtype(x.device) is not None else x.dtype


def _implicit_dim(caller: Caller, input: Tensor, stacklevel: int) -> int:
    """Return the dimension that PyTorch chooses if ``dim`` is None, and give PyTorch's warning at ``stacklevel``."""
    message = f"{caller}: dim is not given, and which one PyTorch chooses is deprecated; pass dim="
    if torch.compiler.is_compiling():
        from nkilib.torch.dispatch import uncompiled  # which imports the compiler

        uncompiled.warn(message)
    else:
        warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)
    return 0 if input.dim() in (0, 1, 3) else 1


def _check_type(caller: Caller, input: Tensor, dtype: torch.dtype | None) -> None:
    result = input.dtype if dtype is None else dtype
    if result in FLOAT_DTYPES:
        return
    asked = f"input of {result}" if dtype is None else f"dtype={result}"
    if result == torch.float64:
        remedy = "input.float()" if dtype is None else "dtype=torch.float32"
        raise TypeError(f"{caller}: the kernels write {_NAMES}, got {asked}; pass {remedy}, as there is no float64")
    raise NotImplementedError(
        f"{caller}: not implemented for {asked}; pass dtype=torch.float32 for a result in {_NAMES}"
    )


def _check_arguments(caller: Caller, input: Any, dtype: Any) -> None:
    """Check that ``input`` is a tensor on a supported device, and that the kernels can write the dtype of the result.

    Raises:
        TypeError: the wrong Python type; float64.
        NotImplementedError: another dtype, device or class of tensor.
    """
    check_tensors(caller, {caller.input: input})
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(
            f"{caller}: argument 'dtype' must be torch.dtype, not {type(dtype).__name__}; pass torch.float32"
        )
    check_plain(caller, {caller.input: input})
    check_devices(caller, input, {})
    _check_type(caller, input, dtype)


def _checked_dim(caller: Caller, input: Tensor, dim: Any) -> int:
    """Return ``dim`` counted from the front; a tensor without dimensions counts as having one.

    Raises:
        TypeError: ``dim`` is not an integer.
        IndexError: ``dim`` is out of range.
    """
    dim, count = as_int(caller, "dim", dim), max(input.dim(), 1)
    if not -count <= dim < count:
        raise IndexError(
            f"{caller}: dim must be from {-count} to {count - 1} for input of shape {tuple(input.shape)}, got {dim}; "
            f"pass one of its dimensions"
        )
    return dim % count


def _along(caller: Caller, derivative: Derivative, input: Any, dim: Any, stacklevel: int, dtype: Any) -> Tensor:
    _check_arguments(caller, input, dtype)
    axis = _checked_dim(caller, input, _implicit_dim(caller, input, stacklevel) if dim is None else dim)
    x = input if input.dtype in FLOAT_DTYPES else input.to(torch.float32)
    x = x.reshape(1) if x.dim() == 0 else x
    along = AlongAxis.of(x, axis)
    dtype_name = _name_of(_result_dtype(x, dtype))
    result: Tensor = derivative.apply(False, along.stored(x), axis=along.axis, dtype=dtype_name)
    if along.order == tuple(range(input.dim())) and result.dim() == input.dim():
        return result
    restored: Callable[..., Tensor] = _Restored.apply
    return restored(result, along, input.shape)


@hides_unknown
def softmax(
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the softmax along a dimension with the kernels of :mod:`nkilib.experimental.softmax`.

    The result equals ``torch.nn.functional.softmax(input, dim, dtype=dtype)``. It is computed in float32 and rounded
    once, to the dtype of the result; the backward needs only the result, so the input is not kept.

    Args:
        input: any number of dimensions, 0 included; bfloat16, float16 or float32. With ``dtype``, any other type, which
            is first cast to float32. A dense tensor of any layout (channels last, transposed) is read in place; a
            tensor with gaps or overlaps is copied.
        dim: the dimension along which elements add up to 1; a negative one counts from the end. None chooses as PyTorch
            does (0 for an input of 0, 1 or 3 dimensions, else 1), and warns.
        _stacklevel: the stack level of that warning, as in PyTorch.
        dtype: the dtype of the result: bfloat16, float16 or float32; None for that of the input. PyTorch first casts
            the input to it; here the input is not cast: a narrower result is the rounded softmax of the uncast input.

    Returns:
        A tensor of the shape of ``input``, and of its layout if it is dense. NaN where a row has a NaN, +inf, or only
        -inf.

    Raises:
        TypeError: an argument has the wrong Python type; float64 for the input or as ``dtype``.
        IndexError: ``dim`` is out of range.
        NotImplementedError: another dtype of the result, or of an input without ``dtype``; an unsupported device; a
            sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(softmax, unknown)
    if is_lazy(input):
        lazy: Tensor = handle_torch_function(softmax, (input,), input, dim, dtype=dtype)
        return lazy
    return _along(SOFTMAX, OF_SOFTMAX, input, dim, _stacklevel, dtype)


@hides_unknown
def log_softmax(
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
    **unknown: Unpack[NoKeywords],
) -> Tensor:
    """Compute the logarithm of the softmax along a dimension, in nats, with the kernels of
    :mod:`nkilib.experimental.softmax`.

    The result equals ``torch.nn.functional.log_softmax(input, dim, dtype=dtype)``. It is computed in float32 and
    rounded once, to the dtype of the result; the backward needs only the result, so the input is not kept.

    Args:
        input: any number of dimensions, 0 included; bfloat16, float16 or float32. With ``dtype``, any other type, which
            is first cast to float32. A tensor with gaps or overlaps in memory is copied.
        dim: the dimension of the softmax; a negative one counts from the end. None chooses as PyTorch does (0 for an
            input of 0, 1 or 3 dimensions, else 1), and warns.
        _stacklevel: the stack level of that warning, as in PyTorch.
        dtype: the dtype of the result: bfloat16, float16 or float32; None for that of the input. PyTorch first casts
            the input to it; here the input is not cast: a narrower result is the rounded one of the uncast input.

    Returns:
        A tensor of the shape of ``input``, and of its layout if it is dense: at most 0, and -inf where the input is
        -inf. NaN where a row has a NaN, +inf, or only -inf.

    Raises:
        TypeError: an argument has the wrong Python type; float64 for the input or as ``dtype``.
        IndexError: ``dim`` is out of range.
        NotImplementedError: another dtype of the result, or of an input without ``dtype``; an unsupported device; a
            sharded tensor (DTensor or FSDP); forward-mode differentiation.
    """
    if unknown:
        refuse_unknown(log_softmax, unknown)
    if is_lazy(input):
        lazy: Tensor = handle_torch_function(log_softmax, (input,), input, dim, dtype=dtype)
        return lazy
    return _along(LOG_SOFTMAX, OF_LOG_SOFTMAX, input, dim, _stacklevel, dtype)


class Softmax(nn.Softmax):
    """Softmax as a module, in place of ``torch.nn.Softmax``: :func:`softmax` of its input, computed by the kernels.

    Call the module with a tensor of any shape, bfloat16, float16 or float32; the result has its shape and dtype. The
    module has neither parameters nor buffers.

    Args:
        dim: the dimension along which elements add up to 1; a negative one counts from the end. None chooses as PyTorch
            does (0 for an input of 0, 1 or 3 dimensions, else 1), and warns.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the softmax, of the shape and type of ``input``."""
        return softmax(input, self.dim, _stacklevel=_OF_THE_CALLER)


class LogSoftmax(nn.LogSoftmax):
    """Logarithm of the softmax, in nats, as a module, in place of ``torch.nn.LogSoftmax``: :func:`log_softmax` of its
    input, computed by the kernels.

    Call the module with a tensor of any shape, bfloat16, float16 or float32; the result has its shape and dtype. The
    module has neither parameters nor buffers.

    Args:
        dim: the dimension of the softmax; a negative one counts from the end. None chooses as PyTorch does (0 for an
            input of 0, 1 or 3 dimensions, else 1), and warns.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the log-softmax, of the shape and type of ``input``."""
        return log_softmax(input, self.dim, _stacklevel=_OF_THE_CALLER)


class Softmax2d(nn.Softmax2d):
    """Softmax over the channels of [N, C, H, W] or [C, H, W] as a module, in place of ``torch.nn.Softmax2d``: computed
    by the kernels, with the shape and dtype of its input. It has no arguments, parameters or buffers.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the softmax, of the shape and type of ``input``.

        Raises:
            ValueError: the input has neither 3 nor 4 dimensions.
        """
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: input must be 3-D or 4-D, got shape {tuple(input.shape)}; reshape it")
        return softmax(input, -3)
