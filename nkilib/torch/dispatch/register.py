# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""PyTorch operators made from their descriptions.

``torch.ops.nkilib.<name>``, registered with ``torch.library``, has a schema, shapes, and one implementation for each
device:

- CPU: the simulator; tensors are passed in and out without a copy.
- PrivateUse1 (the native device ``neuron``) and XLA (the older torch-neuronx): the kernel. Neither has run on hardware.
- Every other device: NotImplementedError.

``torch.ops.nkilib_neuron.<name>``, registered with torch-neuronx's ``nki_op``, is only for the native device, where
public functions call it (:mod:`.native`). It is a typed function whose body launches the kernel. The framework runs the
body on fake tensors to get the shapes, and traces it into a graph, where the kernel is a node: the body must not read a
value or an address.

:mod:`nkilib.base.lnc` defines the number of cores of a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from nkilib.torch.dispatch.devices import CPU, NATIVE, NEURON, Place, check_native, unsupported_device
from nkilib.torch.dispatch.launch import as_returned, as_tuple, run, shapes
from nkilib.torch.dispatch.native import registrar
from nkilib.torch.dispatch.operator import NAMESPACE, Operator
from nkilib.torch.dispatch.typed import typed_function

# By name, without the "_" of in-place variants. Implementations read it at every call.
OPERATORS: Final[dict[str, Operator]] = {}
# PyTorch's definitions by qualified name; a registration lasts as long as this object.
DEFINITIONS: Final[dict[str, Any]] = {}


def register(operator: Operator) -> Operator:
    """Register ``torch.ops.nkilib.<name>`` from a description, and ``<name>_`` if it can overwrite an input.

    Both are registered with ``nki_op`` too, if that serves the native device.

    Returns:
        The description.

    Raises:
        ValueError: an operator of that name exists.
    """
    if operator.name in OPERATORS:
        raise ValueError(f"register: there is an operator {operator.qualified()} already; choose another name")
    OPERATORS[operator.name] = operator
    _define(operator.name, overwrites=False)
    if operator.may_overwrite:
        _define(operator.name, overwrites=True)
        torch.library.impl(operator.qualified(True), "Functionalize", _functionalized(operator.name))
    nki_op = registrar.nki_op
    if nki_op is not None:
        try:
            _define_natively(operator, nki_op)
        except Exception as error:  # its signature is not known for sure: whatever it raises
            registrar.give_up(operator.qualified_natively(), error)
    return operator


def _define(name: str, overwrites: bool) -> None:
    """Define one operator with all its implementations. It rejects every device without an implementation."""
    operator = OPERATORS[name]
    qualified = operator.qualified(overwrites)

    def refuse(first: Tensor, /, *args: Tensor | None, **options: Any) -> NoReturn:
        raise unsupported_device(qualified, first.device, operator.instead)

    def implementation(place: Place) -> Callable[..., Any]:
        return lambda *args, **options: run(OPERATORS[name], place, overwrites, *args, **options)

    schema, mutated = operator.schema(overwrites), tuple(operator.written(overwrites))
    definition = torch.library.custom_op(qualified, refuse, mutates_args=mutated, schema=schema)
    definition.register_fake(lambda *args, **options: shapes(OPERATORS[name], overwrites, *args, **options))
    definition.register_kernel("cpu")(implementation(CPU))
    for dispatch_key in ("XLA", "PrivateUse1"):
        torch.library.impl(qualified, dispatch_key, implementation(NEURON))
    DEFINITIONS[qualified] = definition


def _define_natively(operator: Operator, nki_op: Callable[..., Any]) -> None:
    """Pass typed functions to ``nki_op`` by the call that published code agrees on: a name, ``mutates_args``, and a
    function.

    A function that overwrites an input does not return it: a returned buffer would be copied.
    """
    definitions = {}
    for overwrites in (False, True) if operator.may_overwrite else (False,):
        function = typed_function(operator, overwrites, _native_body(operator.name, overwrites))
        decorate = nki_op(operator.qualified_natively(overwrites), mutates_args=set(operator.written(overwrites)))
        definitions[operator.unqualified(overwrites)] = decorate(function)
    registrar.definitions.update(definitions)


def _native_body(name: str, overwrites: bool) -> Callable[..., Any]:
    def body(*args: Tensor | None, **options: Any) -> Any:
        operator = OPERATORS[name]
        check_native(operator.qualified_natively(overwrites), operator.call(args, options).first.device, NAMESPACE)
        return run(operator, NATIVE, overwrites, *args, **options)

    return body


def _functionalized(name: str) -> Callable[..., Any]:
    """Return the in-place variant for tensors without memory, such as XLA's: the first output becomes the input's
    value.

    PyTorch functionalizes its own operators before XLA sees them, but rejects a custom operator that mutates, unless
    such a function is registered for it.
    """

    def overwrite(first: Tensor, /, *args: Tensor | None, **options: Any) -> Any:
        result, *others = as_tuple(OPERATORS[name].op(first.device)(first, *args, **options))
        first.copy_(result)
        return as_returned(others)

    return overwrite
