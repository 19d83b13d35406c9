# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The execution of an operator from its description, the same for every device, with what is known of the memory that
its kernel writes over.

Values are never read here: whether tensors share memory is decided from addresses, strides and shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from nkilib.base.lnc import library_launch
from nkilib.torch.dispatch.devices import OperatorDevice
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.dispatch.operator import Call, Operator, Output

_PLAIN = (Tensor, Parameter)


def is_traced(tensor: Tensor) -> bool:
    """Return whether a graph is being traced with this tensor: it is fake, functional or the compiler's, and at run
    time the tensor may have another layout.
    """
    return torch.compiler.is_compiling() or type(tensor) not in _PLAIN


def address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's first element; None if it has no memory, as in XLA and in a traced graph."""
    if is_traced(tensor):
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:  # what PyTorch raises for a tensor without storage
        return None


def _weakly(tensor: Tensor) -> StorageWeakRef:
    """Return a reference to a tensor's memory that does not keep it; two are equal if the memory is the same."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class ReusedMemory:
    """Memory that a forward saves and its backward writes gradients over, so that there is only one backward.

    PyTorch raises for saved tensors that were changed in place, but not under saved-tensor hooks, which may return the
    changed memory. So the backward itself remembers that it has written, and compares versions.

    Args:
        operator: the operator of the backward, which error messages name.
        remedy: the way to get another backward, for error messages.
        tensor: the tensor, if others may write to its memory too.

    Attributes:
        is_spent: whether a backward has written gradients over the memory.
    """

    def __init__(self, operator: str, remedy: str, tensor: Tensor | None = None) -> None:
        self.is_spent = False
        self._operator, self._remedy = operator, remedy
        self._saved = None if tensor is None else (_weakly(tensor), tensor._version)

    def check(self, unpacked: Tensor | None = None) -> None:
        """Reject a backward of memory that no longer holds what the forward saved.

        Args:
            unpacked: the tensor as the backward gets it; None before saved tensors are unpacked. If a hook has returned
                other memory, that is a copy of what the forward saved.

        Raises:
            RuntimeError: if the check fails.
        """
        if self.is_spent:
            self._refuse("a backward has written gradients over it")
        if self._saved is not None and unpacked is not None:
            storage, version = self._saved
            if _weakly(unpacked) == storage and unpacked._version != version:
                self._refuse(f"it is at version {unpacked._version}; expected version {version} instead")

    def _refuse(self, reason: str) -> NoReturn:
        raise RuntimeError(
            f"{self._operator}: one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: {reason}; {self._remedy}"
        )


def _touches(steps: Sequence[tuple[int, int]], at: int, size: int, start: int, end: int) -> bool:
    """Return whether an element of a tensor touches the bytes from ``start`` to ``end``.

    Args:
        steps: the number of elements of each dimension and their distance in bytes, largest distance first.
        at: the address of the first element.
        size: the bytes of an element.
        start, end: the range of addresses.
    """
    if not steps:
        return at < end and start < at + size
    (length, stride), *inner = steps
    extent = size + sum((count - 1) * step for count, step in inner)
    first = max(0, (start - extent - at) // stride + 1)
    last = min(length - 1, (end - 1 - at) // stride)
    return any(_touches(inner, at + index * stride, size, start, end) for index in range(first, last + 1))


def _start(tensor: Tensor) -> tuple[object, int]:
    """Return where a tensor starts: its device and address, or its storage and the offset in bytes there."""
    start = address(tensor)
    if start is not None:
        return tensor.device, start
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()) * tensor.element_size()


def _share_memory(dense: Tensor, other: Tensor) -> bool:
    """Return whether an element of ``other`` lies in the memory of a tensor without gaps."""
    (memory, start), (other_memory, at) = _start(dense), _start(other)
    if memory != other_memory or not dense.numel() or not other.numel():
        return False
    strides = sorted(
        ((int(stride), int(length)) for length, stride in zip(other.shape, other.stride(), strict=True)), reverse=True
    )
    size = other.element_size()
    steps = [(length, stride * size) for stride, length in strides if stride and length > 1]
    return _touches(steps, at, size, start, start + dense.numel() * dense.element_size())


def _layout(tensor: Tensor) -> tuple[object, ...]:
    return _start(tensor), tensor.dtype, tensor.shape, tensor.stride()


def overlapping(written: Tensor, others: Mapping[str, Tensor | None], aligned: Collection[str] = ()) -> str | None:
    """Return the name of a tensor that shares memory with a tensor that will be overwritten; None if there is none.

    It is decided from addresses, strides and shapes alone.

    Args:
        written: the tensor that will be overwritten, without gaps in memory.
        others: other tensors by name.
        aligned: the names of tensors that may be ``written`` itself, the same memory element by element, because
            kernels read an element of them only before they write that element of ``written``.
    """
    for name, other in others.items():
        if other is None or not _share_memory(written, other):
            continue
        if name in aligned and _layout(other) == _layout(written):
            continue
        return name
    return None


def as_returned(results: Sequence[Any]) -> Any:
    """Return results as an operator returns them: a single one without a tuple, and None for no results."""
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def as_tuple(returned: Any) -> tuple[Any, ...]:
    """Return the results of an operator as a tuple, the reverse of :func:`as_returned`."""
    return () if returned is None else returned if isinstance(returned, tuple) else (returned,)


def check_inputs(operator: Operator, call: Call, overwrites: bool) -> None:
    """Reject tensors that the operator does not take.

    Raises:
        TypeError: another number of dimensions, or another dtype.
        ValueError: a tensor that is written to is not contiguous.
    """
    name = operator.qualified(overwrites)
    for operand in operator.inputs:
        tensor = call.tensors[operand.name]
        if tensor is None:
            continue
        if operand.dimensions not in (None, tensor.dim()) or (operand.dtypes and tensor.dtype not in operand.dtypes):
            kinds = [] if operand.dimensions is None else [f"{operand.dimensions}-D"]
            kinds.append(" or ".join(str(dtype).removeprefix("torch.") for dtype in operand.dtypes) or "of any type")
            raise TypeError(
                f"{name}: {operand.name} must be {', '.join(kinds)}, got {tensor.dtype} of shape "
                f"{tuple(tensor.shape)}; reshape and cast it"
            )
    for written in operator.written(overwrites):
        tensor = call.tensors[written]
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(
                f"{name}: {written} must be contiguous, got strides {tensor.stride()}; pass a contiguous copy"
            )


def _is_empty(operator: Operator, call: Call) -> bool:
    """Return whether a required input has no elements; a kernel needs at least one."""
    tensors = [call.tensors[name] for name in operator.required]
    return any(tensor is not None and tensor.numel() == 0 for tensor in tensors)


def _kernel_keywords(operator: Operator, call: Call) -> dict[str, Any]:
    """Return the keyword arguments of the kernel: dense tensors detached from autograd, and the options that the kernel
    has.

    An option that requests an output is not passed if the kernel has no such result.
    """
    keywords = {name: call.options[name] for name in operator.kernel_options}
    if operator.arguments is not None:
        keywords.update(operator.arguments(call))
    for name, keyword in operator.kernel_inputs.items():
        if keyword not in keywords:
            tensor = call.tensors[name]
            keywords[keyword] = None if tensor is None else tensor.detach().contiguous()
    return keywords


def _is_own_copy(operator: Operator, call: Call, keywords: Mapping[str, Any]) -> bool:
    """Return whether the kernel gets a copy of the first input that nothing else uses, so that it can write the first
    output over it.

    In a traced graph, this is left to the compiler.
    """
    first, tensor, output = operator.inputs[0], call.first, operator.outputs[0]
    copy = keywords[first.of_kernel]
    if is_traced(tensor) or not isinstance(copy, Tensor) or tensor.is_contiguous() or not output.is_given(call):
        return False
    return copy.dtype == output.dtype_of(call) and copy.shape == output.shape(call)


def _write_over(target: Tensor, result: Tensor, place: OperatorDevice) -> None:
    """Copy ``result`` to ``target``, unless an in-place kernel has already written it there.

    A framework may return another tensor object for the same memory: copying it would read and write all logits once
    more for nothing. A framework without in-place writes, such as XLA, returns other memory.
    """
    is_known_to_framework = place.declares_writes and is_traced(target)
    if result is target or is_known_to_framework:
        return
    own = address(target)
    if own is None or own != address(result):
        target.copy_(result)


def _result(output: Output, call: Call, results: Mapping[str, Tensor]) -> Tensor:
    if not output.is_given(call):
        return output.new(call)
    result = results[output.name] if output.computed is None else output.computed(call, results)
    return unviewed(result) if result._is_view() else result


def _launched(operator: Operator, call: Call, place: OperatorDevice, overwrites: bool) -> list[Tensor]:
    """Launch the kernel on the number of cores that the environment defines, and return the operator's results."""
    launch = library_launch(operator.qualified(overwrites), operator.kernel())
    keywords = _kernel_keywords(operator, call)
    if operator.may_overwrite:
        keywords["inplace"] = overwrites or _is_own_copy(operator, call, keywords)
    requests = operator.on_request
    returned = [name for name in operator.kernel_results if name not in requests or keywords.get(requests[name], False)]
    values = dict(zip(returned, as_tuple(launch(**keywords)), strict=True))
    for name, result in operator.written(overwrites).items():
        _write_over(keywords[operator.kernel_inputs[name]], values[result], place)
    return [_result(output, call, values) for output in operator.returned(overwrites)]


def run(operator: Operator, place: OperatorDevice, overwrites: bool, /, *args: Tensor | None, **options: Any) -> Any:
    """Run ``operator``, or with ``overwrites`` its in-place variant, on a device of the kind ``place``, and return the
    results.
    """
    call = operator.call(args, options)
    check_inputs(operator, call, overwrites)
    place.check(operator.qualified(overwrites), call.first.device, operator.instead)
    if place.may_read_values and operator.check_values is not None:
        operator.check_values(call)
    if _is_empty(operator, call):
        return as_returned([output.new(call, output.fill) for output in operator.returned(overwrites)])
    return as_returned(_launched(operator, call, place, overwrites))


def shapes(operator: Operator, overwrites: bool, /, *args: Tensor | None, **options: Any) -> Any:
    """Return uninitialised results of the shapes and dtypes that :func:`run` returns."""
    call = operator.call(args, options)
    check_inputs(operator, call, overwrites)
    return as_returned([output.new(call) for output in operator.returned(overwrites)])


def implementation(name: str, operators: Mapping[str, Operator], place: OperatorDevice, overwrites: bool) -> Any:
    """Return the function that runs the operator of a name, or its in-place variant, on a device of the kind ``place``;
    it reads ``operators`` at every call.
    """
    return lambda *args, **options: run(operators[name], place, overwrites, *args, **options)
