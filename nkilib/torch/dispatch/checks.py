# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks that public functions share, of tensors by their Python types, dtypes, devices and shapes.

- :class:`Caller`: the function that messages name; :func:`counterpart`: the function that messages recommend instead;
- :func:`check_tensors`, :func:`check_plain`, :func:`check_devices`: the tensors of a call; :func:`check_loss` runs all;
- :func:`tensor_remedy`: how to get a tensor from an argument that is none;
- :func:`check_tile_dtype`, :func:`check_float_dtype`, :func:`check_constant`, :func:`check_same_shape`: one tensor;
- :func:`check_inplace`: the memory over which a gradient is written;
- :func:`broadcast_shape`: the common shape of tensors; :func:`autocast_dtype`: the dtype of products under autocast.

A check raises an error if an argument is not accepted. Values are never read. For an input that PyTorch's function
rejects too, the error has the same type as PyTorch's. ``caller`` is the function that error messages name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_gradtrackingtensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn import functional
from torch.overrides import has_torch_function

from nkilib.core.host.options import check_reduction
from nkilib.torch.dispatch.devices import check_device
from nkilib.torch.dispatch.memory import overlapping
from nkilib.torch.dispatch.operator import TILE_DTYPES

if TYPE_CHECKING:
    pass


class Caller(NamedTuple):
    """The public function that checks its arguments, in the words of its messages.

    Attributes:
        function: the name of the function.
        input: the name of its first argument.
        noun: a word for the content of the first argument, such as ``"logits"``.
        instead: the function that messages recommend where this one cannot be used: the result of :func:`counterpart`,
            or another function of PyTorch.
    """

    function: str
    input: str
    noun: str
    instead: str

    def __str__(self) -> str:
        return self.function


def counterpart(name: str) -> str:
    """Return words that follow "use" in a message: the full name of PyTorch's function ``name``, if there is one.

    If there is none, the words are "the formula of <name> in operations of PyTorch".
    """
    if hasattr(functional, name):
        return f"torch.nn.functional.{name}"
    return f"the formula of {name} in operations of PyTorch, which has no function of that name"


_SHARDED: Final = {
    "DTensor": "pass .full_tensor() for the whole tensor, or .to_local() where every rank shall see its own part",
    "ShardedTensor": "gather the tensor first",
    "FlatParameter": "use it inside the forward of its FSDP module, where it is unsharded",
}

# The most nested views of a leaf that are searched; behind them there may be a whole model.
_MOST_VIEWS: Final = 16

# Types of tensors that are remembered; a process has few.
_MOST_TYPES: Final = 32


def tensor_remedy(function: str, name: str, value: object) -> str:
    """Return the end of a message that says how to get a tensor from ``value``; empty if nothing is known."""
    if is_lazy(value):
        instead = f", or call {counterpart(function)}" if hasattr(functional, function) else ""
        return f"; pass {name}.compute(), which is a tensor{instead}"
    if isinstance(value, int | float):
        return f"; pass torch.tensor({value})"
    if isinstance(value, list | tuple):
        return f"; pass torch.tensor({name})"
    if isinstance(value, np.ndarray):
        return f"; pass torch.from_numpy({name})"
    return f"; pass torch.from_dlpack({name})" if hasattr(value, "__dlpack__") else ""


def check_tensors(caller: Caller, tensors: Mapping[str, Any], optional: Collection[str] = ()) -> None:
    """Check that arguments are tensors with strides; those whose names are in ``optional`` may be None.

    Raises:
        TypeError: an argument is not a tensor.
        NotImplementedError: a tensor is sparse, mkldnn or nested.
    """
    for name, value in tensors.items():
        if not (isinstance(value, Tensor) or (name in optional and value is None)):
            remedy = tensor_remedy(caller.function, name, value)
            raise TypeError(f"{caller}: argument {name!r} must be Tensor, not {type(value).__name__}{remedy}")
        if value is not None and (value.is_nested or value.layout != torch.strided):
            got = "a nested tensor" if value.is_nested else value.layout
            remedy = f"{name}.{'to_padded_tensor(0.0)' if value.is_nested else 'to_dense()'}"
            raise NotImplementedError(f"{caller}: {name} must be a dense tensor, got {got}; pass {remedy}")


def is_lazy(value: object) -> bool:
    """Return whether a value represents a tensor without being one, such as :class:`nkilib.torch.LazyLogits`."""
    return not isinstance(value, Tensor) and has_torch_function((value,))


def check_constant(caller: Caller, name: str, tensor: Tensor | None) -> None:
    """Check that a tensor without a derivative does not require grad: its gradient would be missing silently.

    Raises:
        RuntimeError: the tensor requires grad.
    """
    if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{caller}: not differentiable with respect to argument {name!r}. This input cannot have requires_grad "
            f"True; pass {name}.detach()"
        )


@lru_cache(maxsize=_MOST_TYPES)
def _distributed_kinds(tensor: type) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in tensor.__mro__ if kind.__module__.startswith("torch.distributed"))


def _check_not_sharded(caller: Caller, name: str, tensor: Tensor) -> None:
    kinds = _distributed_kinds(type(tensor))
    if getattr(tensor, "_is_flat_param", False):  # FSDP marks a plain parameter
        kinds = (*kinds, "FlatParameter")
    for kind in kinds:
        if kind in _SHARDED:
            raise NotImplementedError(
                f"{caller}: {name} must be a plain tensor, got a {kind}, of which this rank may hold a part only; "
                f"{_SHARDED[kind]}"
            )


def check_plain(caller: Caller, tensors: Mapping[str, Tensor | None]) -> None:
    """Check that no tensor is sharded, and that no derivative by torch.func or in forward mode is asked for.

    Raises:
        NotImplementedError: a tensor is sharded, or has a tangent, or belongs to a transform of torch.func.
    """
    if torch.compiler.is_compiling():  # there, the operators themselves refuse tensors of these classes
        return
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        _check_not_sharded(caller, name, tensor)
        if unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            raise NotImplementedError(
                f"{caller}: {name} has a tangent, and there are no derivatives in forward mode (jvp, jacfwd) here; use "
                f"backward, or {caller.instead}"
            )
        if is_gradtrackingtensor(tensor):  # which autograd.Function does not take either
            raise NotImplementedError(
                f"{caller}: {name} is differentiated by torch.func (grad, vjp, jacrev), which the operators do not "
                f"support; use backward or torch.autograd.grad, or {caller.instead}"
            )


def check_devices(caller: Caller, input: Tensor, others: Mapping[str, Tensor | None]) -> None:
    """Check that kernels run on the device of ``input``, and that the other tensors are on the same device.

    Raises:
        NotImplementedError: no kernel runs on the device.
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
    """Check that the first argument is bfloat16, float16 or float32, the dtypes of kernel tiles.

    Raises:
        NotImplementedError: the dtype is not floating.
        TypeError: the dtype is floating, but another one, such as float64.
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


def check_float_dtype(caller: Caller, name: str, tensor: Tensor) -> None:
    """Check that the argument ``name``, a floating tensor, is bfloat16, float16 or float32.

    Raises:
        TypeError: the dtype is another one, such as float64.
    """
    if tensor.dtype not in TILE_DTYPES:
        raise TypeError(
            f"{caller}: the kernels take {name} in bfloat16, float16 or float32, got {tensor.dtype}; pass "
            f"{name}.float()"
        )


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype in which autocast computes products on a device; None if autocast is off."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def _leaves(input: Tensor) -> list[Tensor]:
    """Return the autograd leaves whose memory the input uses: the input itself, or the tensors of which it is a view.

    A view of a tensor that is not differentiated may itself be a leaf.
    """
    if input.is_leaf or input._base is None:
        return [input] if input.is_leaf else []
    leaves, node = [input._base] if input._base.is_leaf else [], input.grad_fn
    for _ in range(_MOST_VIEWS):
        if node is None or not node.next_functions:
            break
        node = node.next_functions[0][0]
        variable = getattr(node, "variable", None)
        if variable is not None and variable.untyped_storage()._cdata == input.untyped_storage()._cdata:
            leaves.append(variable)
    return leaves


def check_inplace(
    caller: Caller,
    input: Tensor,
    others: Mapping[str, Tensor | None],
    aligned: Collection[str] = (),
    is_kept: bool = True,
    needs: str = "dense, in the shape and type in which the loss is computed",
) -> None:
    """Check for ``inplace=True`` that a gradient can be written over the input.

    Args:
        caller: the function that error messages name.
        input: the tensor that will be overwritten.
        others: the other tensors of the call, by name.
        aligned: the names of tensors that may be ``input`` itself, the same memory element by element.
        is_kept: whether the kernel gets the memory of the input, not a copy.
        needs: the property that gives ``is_kept``, for the message "inplace=True needs <input> <needs>".

    Raises:
        RuntimeError: ``input`` is a leaf that requires grad, or a view of one; another tensor shares memory with
            ``input``; torch.compile is tracing.
        ValueError: ``is_kept`` is False.
    """
    if torch.compiler.is_compiling():
        from nkilib.torch.dispatch.uncompiled import refuse_inplace  # which imports the compiler

        refuse_inplace(str(caller))
    if any(leaf.requires_grad for leaf in _leaves(input)):
        raise RuntimeError(
            f"{caller}: inplace=True would overwrite a leaf that requires grad, an input of yours that is also to "
            f"receive the gradient, or a view of one; pass the output of a layer, or leave inplace off"
        )
    name = overlapping(input, others, aligned)
    if name is not None:
        raise RuntimeError(
            f"{caller}: inplace=True would write the gradient of {caller.input} over {name}, which shares memory with "
            f"it; pass {name}.clone(), or leave inplace off"
        )
    if not is_kept:
        raise ValueError(
            f"{caller}: inplace=True needs {caller.input} {needs}, got {input.dtype} of {tuple(input.shape)}, strides "
            f"{input.stride()}; leave inplace off"
        )


def check_same_shape(caller: Caller, input: Tensor, name: str, tensor: Tensor) -> None:
    """Check that the argument ``name`` has the shape of ``input``; PyTorch would broadcast and warn.

    Raises:
        ValueError: the shapes differ.
    """
    if tensor.shape != input.shape:
        raise ValueError(
            f"{caller}: {name} must have the shape of {caller.input}, {tuple(input.shape)}, got {tuple(tensor.shape)}; "
            f"expand it"
        )


def check_loss(caller: Caller, tensors: Mapping[str, Any], reduction: Any, optional: Collection[str] = ()) -> None:
    """Check the reduction of a loss, and everything but the shapes of its tensors, of which the first is the input.

    Tensors whose names are in ``optional`` may be None.

    Raises:
        TypeError, ValueError, RuntimeError, NotImplementedError: see :func:`check_tensors`, :func:`check_reduction`,
            :func:`check_plain`, :func:`check_devices` and :func:`check_tile_dtype`.
    """
    check_tensors(caller, tensors, optional)
    check_reduction(caller, reduction)
    check_plain(caller, tensors)
    input, *_ = tensors.values()
    check_devices(caller, input, tensors)
    check_tile_dtype(caller, input)


def broadcast_shape(caller: Caller, shapes: Mapping[str, torch.Size]) -> torch.Size:
    """Return the shape to which tensors broadcast, as ``torch.broadcast_shapes`` does.

    Args:
        caller: the function that error messages name.
        shapes: the shapes by the name of the argument.

    Raises:
        RuntimeError: the shapes do not broadcast, as in PyTorch.
    """
    first, *others = shapes.values()
    if all(shape == first for shape in others):
        return first
    for back in range(1, max(map(len, shapes.values())) + 1):
        longer = [shape[-back] for shape in shapes.values() if len(shape) >= back and shape[-back] != 1]
        if any(size != longer[0] for size in longer):
            got = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
            raise RuntimeError(
                f"{caller}: shapes must broadcast, and sizes of dimension -{back} do not, got {got}; reshape them"
            )
    result = torch.broadcast_shapes(*shapes.values())  # type: ignore[no-untyped-call]
    return cast(torch.Size, result)
