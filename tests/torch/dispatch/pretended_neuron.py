# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A device `neuron` registered as PyTorch's PrivateUse1, as torch-neuronx does, with the CPU's memory behind it.

It shows what a native device needs of nkilib.torch: which operators are called, that none reads a value back, that none
computes with 64 bits (an int64 loses its upper half in every operation here, as users of the device report), and that
the kernels are launched on tensors of the device. What Neuron hardware does with them, it cannot show. A registration
lasts as long as the process, so this is for child processes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_VALUE_READERS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero")

# What is behind a tensor, by its storage, which autograd's copies of the tensor share. Both are kept for good.
_behind: dict[int, tuple[Tensor, Tensor]] = {}


def to_device(values: Tensor) -> Tensor:
    """A tensor on the device with the memory of a CPU tensor; the device knows no strides, so others are copied."""
    values = values.contiguous()
    tensor: Tensor = torch._C._acc.create_empty_tensor(tuple(values.shape), values.dtype)  # type: ignore[attr-defined]
    _behind[tensor.untyped_storage()._cdata] = (values, tensor)
    return tensor


def to_cpu(tensor: Tensor) -> Tensor:
    """The CPU tensor behind a tensor on the device."""
    return _behind[tensor.untyped_storage()._cdata][0]


def _run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on what is behind the tensors."""
    assert operator.name() not in _VALUE_READERS, f"{operator.name()} waits for the device"
    arguments: dict[int, Tensor] = {}
    is_view = any(returned.alias_info for returned in operator._schema.returns)

    def enter(value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type == "neuron":
            behind = to_cpu(value)
            if behind.dtype == torch.int64 and not is_view:
                return behind.to(torch.int32).to(torch.int64)
            arguments[id(behind)] = value
            return behind
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def leave(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return arguments[id(value)] if id(value) in arguments else to_device(value)

    with torch._C._AutoDispatchBelowAutograd():
        results = operator(*pytree.tree_map(enter, args), **pytree.tree_map(enter, kwargs))
    return pytree.tree_map(leave, results)


def register() -> list[torch.library.Library]:
    """Register the device. The registrations last while the returned objects do."""
    _setup_privateuseone_for_python_backend("neuron")
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_run, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    # PyTorch has an implementation for every device, which asks the device for copies in memory.
    aten.impl("copy_", partial(_run, torch.ops.aten.copy_.default), "PrivateUse1")
    # And one that gives the same memory another type, without telling what is behind it.
    aten.impl("view.dtype", partial(_run, torch.ops.aten.view.dtype), "PrivateUse1")
    return [everything, aten]
