# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Python functions with the type annotations of an operator, as ``nki_op`` of torch-neuronx requires them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any

from torch import Tensor

from nkilib.torch.dispatch.operator import Operator


def typed_function(operator: Operator, overwrites: bool, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``body`` with the signature of an operator: positional arguments with types, as in published code for
    ``nki_op``.

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


def operator_signature(operator: Operator, overwrites: bool) -> Signature:
    """Return the signature: inputs, then options. A parameter has a default only if all later ones do, as Python
    requires.
    """
    parameters: list[Parameter] = []
    has_default = True
    for parameter in reversed([*_inputs(operator), *_options(operator)]):
        has_default = has_default and parameter.default is not Parameter.empty
        parameters.append(parameter if has_default else parameter.replace(default=Parameter.empty))
    return Signature(parameters[::-1], return_annotation=_returned(len(operator.returned(overwrites))))


def _returned(results: int) -> Any:
    if results < 2:
        return Tensor if results else None
    return GenericAlias(tuple, (Tensor,) * results)


def _inputs(operator: Operator) -> Iterator[Parameter]:
    for operand in operator.inputs:
        annotation: Any = Tensor | None if operand.is_optional else Tensor
        yield _parameter(operand.name, annotation, None if operand.is_optional else Parameter.empty)


def _options(operator: Operator) -> Iterator[Parameter]:
    for option in operator.keywords:
        annotation: Any = option.type | None if option.is_optional else option.type
        yield _parameter(option.name, annotation, Parameter.empty if option.default is MISSING else option.default)


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
