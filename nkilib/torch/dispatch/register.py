"""Operators of ``torch.ops.nkilib`` from their descriptions: schema, shapes, and one implementation for each device.

- CPU: the simulator, on two simulated cores; tensors go in and come out without a copy.
- XLA (torch-neuronx) and PrivateUse1 (the native device ``neuron``): the kernel, launched on the cores of
  ``NEURON_LOGICAL_NC_CONFIG``. Neither has run on hardware.
- Every other device: NotImplementedError.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from nkilib.torch.dispatch import launch
from nkilib.torch.dispatch.devices import CPU, NEURON, Place, unsupported_device
from nkilib.torch.dispatch.operator import NAMESPACE, Operator

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
    _define(operator, overwrites=False)
    if operator.may_overwrite:
        _define(operator, overwrites=True)
        torch.library.impl(operator.qualified(True), "Functionalize", partial(_functionalized, operator.name))
    return operator


def _define(operator: Operator, overwrites: bool) -> None:
    """Define one operator with all its implementations. It refuses every device that gets none here."""
    name = operator.qualified(overwrites)
    definition = torch.library.custom_op(
        name,
        partial(_refuse, operator.name, overwrites),
        mutates_args=[operator.inputs[0].name] if overwrites else [],
        schema=operator.schema(overwrites),
    )
    definition.register_fake(partial(_shapes, operator.name, overwrites))
    definition.register_kernel("cpu")(partial(_run, operator.name, overwrites, CPU))
    for dispatch_key in ("XLA", "PrivateUse1"):
        torch.library.impl(name, dispatch_key, partial(_run, operator.name, overwrites, NEURON))
    DEFINITIONS[name] = definition


def _run(name: str, overwrites: bool, place: Place, /, *args: Tensor | None, **options: Any) -> Any:
    return launch.run(OPERATORS[name], place, overwrites, *args, **options)


def _shapes(name: str, overwrites: bool, /, *args: Tensor | None, **options: Any) -> Any:
    return launch.shapes(OPERATORS[name], overwrites, *args, **options)


def _refuse(name: str, overwrites: bool, first: Tensor, /, *args: Tensor | None, **options: Any) -> NoReturn:
    operator = OPERATORS[name]
    raise unsupported_device(operator.qualified(overwrites), first.device, operator.instead)


def _functionalized(name: str, first: Tensor, /, *args: Tensor | None, **options: Any) -> Any:
    """In place where tensors have no memory to write to, as XLA's: the first output becomes the input's value.

    PyTorch functionalizes its own operators before XLA sees them, and refuses a custom one that mutates unless it is
    told how.
    """
    result, *others = launch.as_tuple(getattr(getattr(torch.ops, NAMESPACE), name)(first, *args, **options))
    first.copy_(result)
    return launch.as_returned(others)
