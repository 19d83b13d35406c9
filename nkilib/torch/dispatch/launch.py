# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The execution of an operator from its description, the same for every device.

- :func:`run`: checks the inputs (:func:`check_inputs`), launches the kernel and returns the results;
- :func:`shapes`: results of the same shapes, without a launch;
- :func:`implementation`: :func:`run` as a function that PyTorch registers;
- :func:`as_returned`, :func:`as_tuple`: results as an operator returns them, and back.

``overwrites`` selects the in-place variant of an operator, which writes its first output over its first input. Values
are never read, except by an operator's own checks on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nkilib.base.lnc import library_launch
from nkilib.torch.dispatch.devices import OperatorDevice
from nkilib.torch.dispatch.layout import unviewed
from nkilib.torch.dispatch.memory import address, is_traced
from nkilib.torch.dispatch.operator import Call, Operator, Output


def as_returned(results: Sequence[Any]) -> Any:
    """Return a sequence of results as an operator returns them: one result alone, several as a tuple, and None for
    none.
    """
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def as_tuple(returned: Any) -> tuple[Any, ...]:
    """Return the results of an operator as a tuple; the reverse of :func:`as_returned`."""
    return () if returned is None else returned if isinstance(returned, tuple) else (returned,)


def check_inputs(operator: Operator, call: Call, overwrites: bool) -> None:
    """Check that the operator accepts the tensors of a call.

    Raises:
        TypeError: the description does not allow a tensor's number of dimensions or dtype.
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
    tensors = [call.tensors[name] for name in operator.required]
    return any(tensor is not None and tensor.numel() == 0 for tensor in tensors)


def _kernel_keywords(operator: Operator, call: Call) -> dict[str, Any]:
    """Return the keyword arguments of the kernel: contiguous tensors, detached from autograd, and options.

    Arguments from :attr:`Operator.arguments` are added to them, or replace them.
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
    """Return whether the kernel gets its own copy of the first input, over which it can write the first output.

    In a traced graph the result is False, because the compiler decides about copies.
    """
    first, tensor, output = operator.inputs[0], call.first, operator.outputs[0]
    copy = keywords[first.of_kernel]
    if is_traced(tensor) or not isinstance(copy, Tensor) or tensor.is_contiguous() or not output.is_given(call):
        return False
    return copy.dtype == output.dtype_of(call) and copy.shape == output.shape(call)


def _write_over(target: Tensor, result: Tensor, place: OperatorDevice) -> None:
    """Copy ``result`` to ``target``, unless the kernel has already written it there.

    A framework may return another tensor object with the memory of ``target``; copying would then read and write all
    logits for nothing. A framework without in-place writes, such as XLA, returns other memory.
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
    """Launch the operator's kernel for a call, and return the operator's results.

    :mod:`nkilib.base.lnc` sets the number of cores.
    """
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
    """Run an operator or its in-place variant, and return the results as an operator returns them.

    Args:
        operator: the description of the operator.
        place: the kind of device.
        overwrites: whether to run the in-place variant.
        args: the inputs in order.
        options: the options by name.
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
    """Return uninitialised results with the shapes and dtypes of the results of :func:`run`, for tracing. No kernel is
    launched.
    """
    call = operator.call(args, options)
    check_inputs(operator, call, overwrites)
    return as_returned([output.new(call) for output in operator.returned(overwrites)])


def implementation(name: str, operators: Mapping[str, Operator], place: OperatorDevice, overwrites: bool) -> Any:
    """Return the function that PyTorch registers for the operator ``name`` on devices of the kind ``place``.

    The function looks the name up in ``operators`` at every call, so a later description takes effect.
    """
    return lambda *args, **options: run(operators[name], place, overwrites, *args, **options)
