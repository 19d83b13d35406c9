# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""PyTorch operators made from their descriptions by :func:`register`.

:data:`OPERATORS` holds the descriptions, and :data:`DEFINITIONS` the objects that PyTorch made from them.
:func:`typed_function` makes a function with the signature of an operator (:func:`operator_signature`).

``torch.ops.nkilib.<name>``, registered with ``torch.library``, has a schema, shapes, and one implementation for each
device:

- CPU: the simulator; tensors are passed in and out without a copy.
- PrivateUse1 (the native device ``neuron``) and XLA (the older torch-neuronx): the kernel. Neither has run on hardware.
- Every other device: NotImplementedError.

``torch.ops.nkilib_neuron.<name>``, registered with torch-neuronx's ``nki_op``, is only for the native device, where
public functions call it (:mod:`.devices`). It is a function with type annotations, as ``nki_op`` requires, whose body
launches the kernel. The body must not read a value or an address: the framework runs it on fake tensors to get the
shapes, and traces it into a graph, where the kernel is a node.

:mod:`nkilib.base.lnc` defines the number of cores of a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from nkilib.torch.dispatch.devices import (
    CPU,
    NATIVE,
    NEURON,
    check_native,
    registrar,
    unsupported_device,
)
from nkilib.torch.dispatch.launch import as_returned, as_tuple, implementation, run, shapes
from nkilib.torch.dispatch.operator import NAMESPACE, Operator


def _returned(results: int) -> Any:
    if results < 2:
        return Tensor if results else None
    return GenericAlias(tuple, (Tensor,) * results)


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _inputs(operator: Operator) -> Iterator[Parameter]:
    for operand in operator.inputs:
        annotation: Any = Tensor | None if operand.is_optional else Tensor
        yield _parameter(operand.name, annotation, None if operand.is_optional else Parameter.empty)


def _options(operator: Operator) -> Iterator[Parameter]:
    for option in operator.keywords:
        annotation: Any = option.type | None if option.is_optional else option.type
        yield _parameter(option.name, annotation, Parameter.empty if option.default is MISSING else option.default)


def operator_signature(operator: Operator, overwrites: bool) -> Signature:
    """Return the Python signature of an operator, or of its in-place variant: inputs, then options.

    A parameter has its default only if all later ones have one too, as Python requires.
    """
    parameters: list[Parameter] = []
    has_default = True
    for parameter in reversed([*_inputs(operator), *_options(operator)]):
        has_default = has_default and parameter.default is not Parameter.empty
        parameters.append(parameter if has_default else parameter.replace(default=Parameter.empty))
    return Signature(parameters[::-1], return_annotation=_returned(len(operator.returned(overwrites))))


def typed_function(operator: Operator, overwrites: bool, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``body``, with the signature of an operator: positional arguments with types, as in
    published code for ``nki_op``.

    Args:
        operator: the description of the operator.
        overwrites: whether it is the in-place variant, which does not return the tensor that it writes over.
        body: the function, called with the inputs in order and the options by name.
    """
    signature = operator_signature(operator, overwrites)
    inputs = len(operator.inputs)

    def function(*args: Any, **keywords: Any) -> Any:
        bound = signature.bind(*args, **keywords)
        bound.apply_defaults()
        arguments = list(bound.arguments.items())
        return body(*(value for _, value in arguments[:inputs]), **dict(arguments[inputs:]))

    function.__name__ = function.__qualname__ = operator.qualified(overwrites).rpartition(":")[2]
    function.__dict__["__signature__"] = signature  # what inspect.signature shows
    function.__annotations__ = {
        **{name: parameter.annotation for name, parameter in signature.parameters.items()},
        "return": signature.return_annotation,
    }
    return function


# By name, without the "_" of in-place variants. Implementations read it at every call.
OPERATORS: Final[dict[str, Operator]] = {}
# It holds the implementations beside that of the CPU: one object for each of them would take time at each import.
_LIBRARY: Final = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
# PyTorch's definitions by qualified name; a registration lasts as long as this object.
DEFINITIONS: Final[dict[str, Any]] = {}


def _define(name: str, overwrites: bool) -> None:
    """Define the operator ``name``, or its in-place variant, with ``torch.library``, for all devices.

    On a device that no kernel supports, the implementation raises NotImplementedError.
    """
    operator = OPERATORS[name]
    qualified = operator.qualified(overwrites)

    def refuse(first: Tensor, /, *args: Tensor | None, **options: Any) -> NoReturn:
        raise unsupported_device(qualified, first.device, operator.instead)

    schema, mutated = operator.schema(overwrites), tuple(operator.written(overwrites))
    definition = torch.library.custom_op(qualified, refuse, mutates_args=mutated, schema=schema)
    definition.register_fake(lambda *args, **options: shapes(OPERATORS[name], overwrites, *args, **options))
    definition.register_kernel("cpu")(implementation(name, OPERATORS, CPU, overwrites))
    for dispatch_key in ("XLA", "PrivateUse1"):
        torch.library.impl(qualified, dispatch_key, implementation(name, OPERATORS, NEURON, overwrites), lib=_LIBRARY)
    DEFINITIONS[qualified] = definition


def _native_body(name: str, overwrites: bool) -> Callable[..., Any]:
    def body(*args: Tensor | None, **options: Any) -> Any:
        operator = OPERATORS[name]
        check_native(operator.qualified_natively(overwrites), operator.call(args, options).first.device, NAMESPACE)
        return run(operator, NATIVE, overwrites, *args, **options)

    return body


def _define_natively(operator: Operator, nki_op: Callable[..., Any]) -> None:
    """Register an operator and its in-place variant, if it has one, with torch-neuronx's ``nki_op``.

    The call has the form that all published code agrees on: a name, ``mutates_args``, and a typed function. A function
    that overwrites an input does not return it, because a returned buffer would be copied.
    """
    definitions = {}
    for overwrites in (False, True) if operator.may_overwrite else (False,):
        function = typed_function(operator, overwrites, _native_body(operator.name, overwrites))
        decorate = nki_op(operator.qualified_natively(overwrites), mutates_args=set(operator.written(overwrites)))
        definitions[operator.unqualified(overwrites)] = decorate(function)
    registrar.definitions.update(definitions)


def _functionalized(name: str) -> Callable[..., Any]:
    """Return the in-place variant of the operator ``name`` for tensors without memory, such as XLA's.

    It runs the ordinary operator and makes the first output the new value of the first input. PyTorch functionalizes
    its own operators before XLA sees them, but rejects a custom operator that mutates unless such a function is
    registered.
    """

    def overwrite(first: Tensor, /, *args: Tensor | None, **options: Any) -> Any:
        result, *others = as_tuple(OPERATORS[name].op(first.device)(first, *args, **options))
        first.copy_(result)
        return as_returned(others)

    return overwrite


def register(operator: Operator) -> Operator:
    """Register ``torch.ops.nkilib.<name>`` from a description, and ``<name>_`` if there is an in-place variant.

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
        torch.library.impl(operator.qualified(True), "Functionalize", _functionalized(operator.name), lib=_LIBRARY)
    nki_op = registrar.nki_op
    if nki_op is not None:
        try:
            _define_natively(operator, nki_op)
        except Exception as error:  # its signature is not known for sure: whatever it raises
            registrar.give_up(operator.qualified_natively(), error)
    return operator
