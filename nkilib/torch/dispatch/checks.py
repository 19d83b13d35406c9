# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What every public function refuses, from shapes, types and devices alone: values are never looked at.

For an input that PyTorch's function refuses too, the error has the type that it has there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any, Final

import torch
from torch import Tensor
from torch._C._functorch import is_gradtrackingtensor
from torch.autograd.forward_ad import unpack_dual

from nkilib.core.host.reductions import check_reduction
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.devices import check_device
from nkilib.torch.dispatch.operator import TILE_DTYPES

_SHARDED: Final = {
    "DTensor": "pass .full_tensor() for the whole tensor, or .to_local() where every rank shall see its own part",
    "ShardedTensor": "gather the tensor first",
    "FlatParameter": "use it inside the forward of its FSDP module, where it is unsharded",
}

# Views of views of a leaf that are looked through; behind them there may be a whole model.
_MOST_VIEWS: Final = 16


def check_tensors(caller: Caller, tensors: Mapping[str, Any], optional: Collection[str] = ()) -> None:
    """Refuse arguments that are no tensors; of those in ``optional``, None is accepted.

    Raises:
        TypeError: an argument is something else.
    """
    for name, value in tensors.items():
        if not (isinstance(value, Tensor) or (name in optional and value is None)):
            remedy = f"; pass torch.tensor({value})" if isinstance(value, int | float) else ""
            raise TypeError(f"{caller}: argument {name!r} must be Tensor, not {type(value).__name__}{remedy}")


def checked_number(caller: Caller, name: str, value: Any) -> float:
    """A number of Python or of numpy, as one of Python; it may be a symbol of a graph.

    Raises:
        TypeError: something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Real):
        remedy = f"; pass {name}.item()" if isinstance(value, Tensor) else ""
        raise TypeError(f"{caller}: argument {name!r} must be float, not {type(value).__name__}{remedy}")
    return float(value)


def checked_integer(caller: Caller, name: str, value: Any) -> int:
    """An integer of Python or of numpy, as one of Python.

    Raises:
        TypeError: something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | Integral):
        raise TypeError(f"{caller}: argument {name!r} must be int, not {type(value).__name__}")
    return int(value)


def check_constant(caller: Caller, name: str, tensor: Tensor | None) -> None:
    """Refuse a tensor that requires grad where there is no derivative by it: the gradient would be missing in silence.

    Raises:
        RuntimeError: always then.
    """
    if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{caller}: not differentiable with respect to argument {name!r}. This input cannot have requires_grad "
            f"True; pass {name}.detach()"
        )


def check_plain(caller: Caller, tensors: Mapping[str, Tensor | None]) -> None:
    """Refuse a part of a tensor, and derivatives of torch.func and in forward mode, which the operators do not have.

    Raises:
        NotImplementedError: always then.
    """
    if torch.compiler.is_compiling():  # there, the operators themselves refuse tensors of these classes
        return
    for name, tensor in tensors.items():
        _check_not_sharded(caller, name, tensor)
    for name, tensor in tensors.items():
        if tensor is not None and unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            raise NotImplementedError(
                f"{caller}: {name} has a tangent, and there are no derivatives in forward mode (jvp, jacfwd) here; use "
                f"backward, or {caller.instead}"
            )
    for name, tensor in tensors.items():
        if tensor is not None and is_gradtrackingtensor(tensor):  # which autograd.Function does not take either
            raise NotImplementedError(
                f"{caller}: {name} is differentiated by torch.func (grad, vjp, jacrev), which the operators do not "
                f"support; use backward or torch.autograd.grad, or {caller.instead}"
            )


def _check_not_sharded(caller: Caller, name: str, tensor: Tensor | None) -> None:
    kinds = [kind.__name__ for kind in type(tensor).__mro__ if kind.__module__.startswith("torch.distributed")]
    if getattr(tensor, "_is_flat_param", False):  # FSDP marks a plain parameter
        kinds.append("FlatParameter")
    for kind in kinds:
        if kind in _SHARDED:
            raise NotImplementedError(
                f"{caller}: {name} must be a plain tensor, got a {kind}, of which this rank may hold a part only; "
                f"{_SHARDED[kind]}"
            )


def check_devices(caller: Caller, input: Tensor, others: Mapping[str, Tensor | None]) -> None:
    """Refuse tensors where no kernel runs, and others than on the device of ``input``.

    Raises:
        NotImplementedError: an unsupported device.
        RuntimeError: devices differ.
    """
    check_device(caller, input.device, caller.instead)
    for name, tensor in others.items():
        if tensor is not None and tensor.device != input.device:
            raise RuntimeError(
                f"{caller}: {name} must be on the device of {caller.input}, {input.device}, got {tensor.device}; "
                f"move it there"
            )


def check_tile_dtype(caller: Caller, input: Tensor) -> None:
    """Refuse what tiles of kernels cannot hold.

    Raises:
        NotImplementedError: not floating.
        TypeError: another floating type than bfloat16, float16 and float32.
    """
    if input.dtype in TILE_DTYPES:
        return
    if not input.is_floating_point():
        raise NotImplementedError(
            f"{caller}: not implemented for {caller.noun} of {input.dtype}; pass bfloat16, float16 or float32"
        )
    raise TypeError(
        f"{caller}: the kernels take {caller.noun} in bfloat16, float16 or float32, got {input.dtype}; pass "
        f"{caller.input}.float()"
    )


def check_flag(caller: Caller, name: str, flag: Any) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: always then.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"{caller}: argument {name!r} must be bool, not {type(flag).__name__}")


def check_inplace(caller: Caller, input: Tensor) -> None:
    """Refuse ``inplace=True`` where a gradient must not be written over the input.

    Raises:
        RuntimeError: the input is a leaf that requires grad, or a view of one; torch.compile is at work.
    """
    if torch.compiler.is_compiling():
        from nkilib.torch.dispatch.uncompiled import refuse_inplace  # which imports the compiler

        refuse_inplace(str(caller))
    if any(each.requires_grad for each in _leaves(input)):
        raise RuntimeError(
            f"{caller}: inplace=True would overwrite a leaf that requires grad, an input of yours that is also to "
            f"receive the gradient, or a view of one; pass the output of a layer, or leave inplace off"
        )


def _leaves(input: Tensor) -> list[Tensor]:
    """The leaves of autograd that the input is or that it is a view of: a view of plain memory may be one itself."""
    if input.is_leaf or input._base is None:
        return [input] if input.is_leaf else []
    found, node = [input._base] if input._base.is_leaf else [], input.grad_fn
    for _ in range(_MOST_VIEWS):
        if node is None or not node.next_functions:
            break
        node = node.next_functions[0][0]
        variable = getattr(node, "variable", None)
        if variable is not None and variable.untyped_storage()._cdata == input.untyped_storage()._cdata:
            found.append(variable)
    return found


def check_same_shape(caller: Caller, input: Tensor, name: str, tensor: Tensor) -> None:
    """Refuse a tensor of another shape than the input. PyTorch's losses broadcast, and warn.

    Raises:
        ValueError: always then.
    """
    if tensor.shape != input.shape:
        raise ValueError(
            f"{caller}: {name} must have the shape of {caller.input}, {tuple(input.shape)}, got {tuple(tensor.shape)}; "
            f"expand it"
        )


def check_loss(caller: Caller, tensors: Mapping[str, Any], reduction: Any, optional: Collection[str] = ()) -> None:
    """All that a loss of tensors of one device refuses before it looks at shapes; the input is the first of them.

    Raises:
        TypeError, ValueError, RuntimeError, NotImplementedError: as the checks above.
    """
    check_tensors(caller, tensors, optional)
    check_reduction(caller, reduction)
    check_plain(caller, tensors)
    input, *_ = tensors.values()
    check_devices(caller, input, tensors)
    check_tile_dtype(caller, input)
