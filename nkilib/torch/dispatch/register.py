"""Operators of ``torch.ops.nkilib`` from their descriptions: schema, shapes, and one implementation for each device.

- CPU: the simulator; tensors go in and come out without a copy.
- XLA (torch-neuronx) and PrivateUse1 (the native device ``neuron``): the kernel. Neither has run on hardware.
- Every other device: NotImplementedError.

:mod:`nkilib.lnc` decides on how many cores the kernel is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from nkilib.torch.dispatch.devices import CPU, NEURON, Place, unsupported_device
from nkilib.torch.dispatch.launch import as_returned, as_tuple, run, shapes
from nkilib.torch.dispatch.operator import Operator

# By name, without the "_" of those that overwrite. Implementations look here at every call.
OPERATORS: Final[dict[str, Operator]] = {}
# What PyTorch made of them, by qualified name; a registration lasts as long as this object.
DEFINITIONS: Final[dict[str, Any]] = {}


def register(operator: Operator) -> Operator:
    """Make ``torch.ops.nkilib.<name>`` of a description, and ``<name>_`` if it can overwrite an input.

    Returns:
        The description.

    Raises:
        ValueError: there is an operator of that name.
    """
    if operator.name in OPERATORS:
        raise ValueError(f"register: there is an operator {operator.qualified()} already; choose another name")
    OPERATORS[operator.name] = operator
    _define(operator.name, overwrites=False)
    if operator.may_overwrite:
        _define(operator.name, overwrites=True)
        torch.library.impl(operator.qualified(True), "Functionalize", _functionalized(operator.name))
    return operator


def _define(name: str, overwrites: bool) -> None:
    """Define one operator with all its implementations. It refuses every device that gets none here."""
    operator = OPERATORS[name]
    qualified = operator.qualified(overwrites)

    def refuse(first: Tensor, /, *args: Tensor | None, **options: Any) -> NoReturn:
        raise unsupported_device(qualified, first.device, operator.instead)

    def implementation(place: Place) -> Callable[..., Any]:
        return lambda *args, **options: run(OPERATORS[name], place, overwrites, *args, **options)

    mutated = [operator.inputs[0].name] if overwrites else []
    definition = torch.library.custom_op(qualified, refuse, mutates_args=mutated, schema=operator.schema(overwrites))
    definition.register_fake(lambda *args, **options: shapes(OPERATORS[name], overwrites, *args, **options))
    definition.register_kernel("cpu")(implementation(CPU))
    for dispatch_key in ("XLA", "PrivateUse1"):
        torch.library.impl(qualified, dispatch_key, implementation(NEURON))
    DEFINITIONS[qualified] = definition


def _functionalized(name: str) -> Callable[..., Any]:
    """In place where tensors have no memory to write to, as XLA's: the first output becomes the input's value.

    PyTorch functionalizes its own operators before XLA sees them, and refuses a custom one that mutates unless it is
    told how.
    """

    def overwrite(first: Tensor, /, *args: Tensor | None, **options: Any) -> Any:
        result, *others = as_tuple(OPERATORS[name].op()(first, *args, **options))
        first.copy_(result)
        return as_returned(others)

    return overwrite
