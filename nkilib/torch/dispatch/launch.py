# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Running an operator as it is described, the same for every device. Nothing here looks at values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nkilib.base.lnc import library_launch
from nkilib.torch.dispatch.devices import Place
from nkilib.torch.dispatch.memory import address, is_traced
from nkilib.torch.dispatch.operator import Call, Operator, Output


def run(operator: Operator, place: Place, overwrites: bool, /, *args: Tensor | None, **options: Any) -> Any:
    """What ``operator``, or with ``overwrites`` its second one, returns."""
    call = operator.call(args, options)
    check_inputs(operator, call, overwrites)
    place.check(operator.qualified(overwrites), call.first.device, operator.instead)
    if place.may_look and operator.check_values is not None:
        operator.check_values(call)
    if _is_empty(operator, call):
        return as_returned([each.new(call, each.fill) for each in operator.returned(overwrites)])
    return as_returned(_launched(operator, call, place, overwrites))


def _is_empty(operator: Operator, call: Call) -> bool:
    """An input that every call has is without elements, and a kernel needs one of each."""
    return any(call.tensor(each.name).numel() == 0 for each in operator.inputs if not each.is_optional)


def shapes(operator: Operator, overwrites: bool, /, *args: Tensor | None, **options: Any) -> Any:
    """As :func:`run` without values: uninitialized results."""
    call = operator.call(args, options)
    check_inputs(operator, call, overwrites)
    return as_returned([each.new(call) for each in operator.returned(overwrites)])


def as_returned(results: Sequence[Any]) -> Any:
    """Results as an operator returns them: one is not wrapped, and none are None."""
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def as_tuple(returned: Any) -> tuple[Any, ...]:
    """The reverse of :func:`as_returned`."""
    return () if returned is None else returned if isinstance(returned, tuple) else (returned,)


def check_inputs(operator: Operator, call: Call, overwrites: bool) -> None:
    """Refuse tensors of another kind than the operator takes.

    Raises:
        TypeError: number of dimensions or dtype.
        ValueError: one that is written to is not contiguous.
    """
    name = operator.qualified(overwrites)
    for each in operator.inputs:
        tensor = call.tensors[each.name]
        if tensor is None:
            continue
        if each.dimensions not in (None, tensor.dim()) or (each.dtypes and tensor.dtype not in each.dtypes):
            kinds = [] if each.dimensions is None else [f"{each.dimensions}-D"]
            kinds.append(" or ".join(str(dtype).removeprefix("torch.") for dtype in each.dtypes) or "of any type")
            raise TypeError(
                f"{name}: {each.name} must be {', '.join(kinds)}, got {tensor.dtype} of shape {tuple(tensor.shape)}; "
                f"reshape and cast it"
            )
    for written in operator.written(overwrites):
        tensor = call.tensors[written]
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(
                f"{name}: {written} must be contiguous, got strides {tensor.stride()}; pass a contiguous copy"
            )


def _launched(operator: Operator, call: Call, place: Place, overwrites: bool) -> list[Tensor]:
    """What the operator returns, from a launch of the kernel on the cores that the environment gives."""
    launch = library_launch(operator.qualified(overwrites), operator.kernel)
    results = operator.results or [each.name for each in operator.outputs]
    keywords = _kernel_keywords(operator, call, results)
    if operator.may_overwrite:
        keywords["inplace"] = overwrites or _is_own_copy(operator, call, keywords)
    requests = operator.on_request
    returned = [name for name in results if name not in requests or keywords.get(requests[name], False)]
    found = dict(zip(returned, as_tuple(launch(**keywords)), strict=True))
    of_kernel = {each.name: each.of_kernel for each in operator.inputs}
    for name, result in operator.written(overwrites).items():
        _write_over(keywords[of_kernel[name]], found[result], place)
    return [_result(each, call, found) for each in operator.returned(overwrites)]


def _is_own_copy(operator: Operator, call: Call, keywords: Mapping[str, Any]) -> bool:
    """Whether the kernel gets a copy of the first input that nobody else has, which the first output may replace.

    A graph that is traced is left to its compiler.
    """
    first, given, output = operator.inputs[0], call.first, operator.outputs[0]
    copy = keywords[first.of_kernel]
    if is_traced(given) or not isinstance(copy, Tensor) or given.is_contiguous() or not output.is_given(call):
        return False
    return copy.dtype == output.dtype_of(call) and copy.shape == output.shape(call)


def _write_over(given: Tensor, result: Tensor, place: Place) -> None:
    """Give ``given`` the values of ``result``, which a kernel in place has written there already.

    A framework may return another tensor of the same memory: copied, all logits would be read and written once more for
    nothing. One without writing in place, as XLA, returns other memory.
    """
    is_known_to_framework = place.declares_writes and is_traced(given)
    if result is given or is_known_to_framework:
        return
    own = address(given)
    if own is None or own != address(result):
        given.copy_(result)


def _kernel_keywords(operator: Operator, call: Call, results: Sequence[str]) -> dict[str, Any]:
    """What the kernel gets: tensors dense and without autograd, and of the options those that are its own.

    An option that asks for an output is the operator's alone where the kernel has no such result.
    """
    keywords = dict(operator.arguments(call)) if operator.arguments else {}
    for each in operator.inputs:
        if each.of_kernel not in keywords and not each.is_for_backward:
            tensor = call.tensors[each.name]
            keywords[each.of_kernel] = None if tensor is None else tensor.detach().contiguous()
    own = {each.request for each in operator.outputs if each.name not in results}
    return {**{name: value for name, value in call.options.items() if name not in own}, **keywords}


def _result(output: Output, call: Call, found: Mapping[str, Tensor]) -> Tensor:
    if not output.is_given(call):
        return output.new(call)
    return found[output.name] if output.computed is None else output.computed(call, found)
