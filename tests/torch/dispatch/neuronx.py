# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A native device as torch-neuronx has it: a device `neuron`, and a stand-in for the package with its ``nki_op``.

The device is PyTorch's PrivateUse1 with the CPU's memory behind it. It shows what a native device needs of
nkilib.torch: which operators are called, that none reads a value back, that none computes with 64 bits (an int64 loses
its upper half in every operation here, as users of the device report), and that the kernels are launched on tensors of
the device. A registration lasts as long as the process, so this is for child processes.

The package is what its documentation says of ``nki_op`` (torch-neuronx 2.14 in SDK 2.33), and nothing else: ``nki_op``
makes an operator of PyTorch of a Python function with types, under a name as ``"namespace::name"``, with
``mutates_args`` for what a kernel writes over; it works in eager mode and within a graph; ``register_autograd`` adds
its derivative. A kernel is called on tensors of the device; in a graph that call is one node, beside the operations
around it. In eager mode a call is compiled for shapes, types and constants. PyTorch has operators of this kind for
kernels of Triton, so that is what the stand-in is made of.

Neither can show what Neuron hardware and compiler do: whether memory that a kernel writes over in a graph stays where
it is, a call of a kernel in a graph outside of an operator, how the real ``nki_op`` words an error, nor anything of
time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from nkilib.base.lnc import of_kernel

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


_NAMESPACE = "stand_in_neuronx"


def nki_op(name: str, function: Callable[..., Any] | None = None, mutates_args: str | Iterable[str] = ()) -> Any:
    """Make an operator of a typed function; of a kernel itself it is refused."""
    if isinstance(function, Kernel):
        raise TypeError(f"{name}: decorate a Python function with types that calls the kernel")
    return torch.library.triton_op(name, function, mutates_args=mutates_args)


@dataclass(frozen=True)
class _Launch:
    """The things that a call of a kernel is compiled for, beside shapes and types.

    Attributes:
        kernel: the kernel of the simulator.
        cores: the number of cores it is launched on.
        names: the names of the tensors, None among them, the one that is written over first.
        constants: all other keywords, by name.
        writes: whether the kernel writes over the first tensor, and returns it among its results.
    """

    kernel: Any
    cores: int
    names: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    writes: bool

    def run(self, tensors: Iterable[Tensor | None]) -> list[Tensor]:
        """Run the kernel with tensors on the CPU."""
        returned = self.kernel[self.cores](**dict(zip(self.names, tensors, strict=True)), **dict(self.constants))
        return list(returned) if isinstance(returned, tuple) else [returned]

    def shapes(self, tensors: Iterable[Tensor | None]) -> list[Tensor]:
        """Uninitialized results: of a run on zeros, as a kernel is specialized by running it."""
        with unset_fake_temporarily():
            zeros = [
                None if tensor is None else torch.zeros(tuple(tensor.shape), dtype=tensor.dtype) for tensor in tensors
            ]
            results = self.run(zeros)
        first = next(tensor for tensor in tensors if tensor is not None)
        return [first.new_empty(result.shape, dtype=result.dtype) for result in results]


_launches: list[_Launch] = []


@dataclass
class Kernel:
    """A kernel in the hands of torch-neuronx.

    Attributes:
        kernel: the kernel of the simulator.
        cores_of_launches: for each call.
        keywords_of_launches: for each call.
    """

    kernel: Any
    cores_of_launches: list[int] = field(default_factory=list)
    keywords_of_launches: list[dict[str, Any]] = field(default_factory=list)

    def __getitem__(self, cores: int) -> Callable[..., Any]:
        return lambda *args, **keywords: self._call(cores, args, keywords)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._call(of_kernel(None).cores, args, keywords)

    def _call(self, cores: int, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        names = list(inspect.signature(self.kernel).parameters)
        arguments = {**dict(zip(names, args, strict=False)), **keywords}
        self.cores_of_launches.append(cores)
        self.keywords_of_launches.append(arguments)
        tensors = {name: value for name, value in arguments.items() if value is None or isinstance(value, Tensor)}
        written = "logits_hbm" if arguments.get("inplace") else "grad_weight_sum_hbm"
        tensors = dict(sorted(tensors.items(), key=lambda item: item[0] != written))
        constants = tuple((name, value) for name, value in arguments.items() if name not in tensors)
        launch = _Launch(self.kernel, cores, tuple(tensors), constants, tensors.get(written) is not None)
        if launch not in _launches:
            _launches.append(launch)
        number = _launches.index(launch)
        ops = getattr(torch.ops, _NAMESPACE)
        if launch.writes:
            first, *others = tensors.values()
            over = first.view_as(first)  # the same memory, by another tensor
            if written == "logits_hbm":
                ops.kernel_over(first, others, number)
                return over
            return ops.kernel_over_one(first, others, number), over  # the gradient of the input, and the sum
        results = ops.kernel(list(tensors.values()), number)
        return tuple(results) if len(results) > 1 else results[0]


def define() -> list[torch.library.Library]:
    """Define the nodes that calls of kernels are in a graph. They last while the returned objects do."""
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define("kernel(Tensor?[] tensors, int launch) -> Tensor[]")
    library.define("kernel_over(Tensor(a!) first, Tensor?[] others, int launch) -> ()")
    library.define("kernel_over_one(Tensor(a!) first, Tensor?[] others, int launch) -> Tensor")

    def entered(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else to_cpu(tensor)

    def kernel(tensors: list[Tensor | None], launch: int) -> list[Tensor]:
        return [to_device(result) for result in _launches[launch].run(map(entered, tensors))]

    def kernel_over(first: Tensor, others: list[Tensor | None], launch: int) -> None:
        _launches[launch].run([to_cpu(first), *map(entered, others)])

    def kernel_over_one(first: Tensor, others: list[Tensor | None], launch: int) -> Tensor:
        own = to_cpu(first)
        results = _launches[launch].run([own, *map(entered, others)])
        return next(to_device(result) for result in results if result.data_ptr() != own.data_ptr())

    library.impl("kernel", kernel, "PrivateUse1")
    library.impl("kernel_over", kernel_over, "PrivateUse1")
    library.impl("kernel_over_one", kernel_over_one, "PrivateUse1")
    torch.library.register_fake(f"{_NAMESPACE}::kernel", lambda tensors, launch: _launches[launch].shapes(tensors))
    torch.library.register_fake(f"{_NAMESPACE}::kernel_over", lambda first, others, launch: None)
    torch.library.register_fake(
        f"{_NAMESPACE}::kernel_over_one", lambda first, others, launch: _launches[launch].shapes([first, *others])[0]
    )
    return [library]
