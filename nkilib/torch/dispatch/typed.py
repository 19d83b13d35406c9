# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A Python function with the types of an operator, as ``nki_op`` of torch-neuronx wants to decorate one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any

from torch import Tensor

from nkilib.torch.dispatch.operator import Operator


def typed_function(operator: Operator, overwrites: bool, body: Callable[..., Any]) -> Callable[..., Any]:
    """``body`` with the signature of an operator: positional arguments with types, as public code registers them.

    Args:
        operator: described.
        overwrites: its second operator, which returns nothing for what it writes over.
        body: called with the inputs in order, and the options by name.
    """
    signature = operator_signature(operator, overwrites)
    inputs = len(operator.inputs)

    def function(*args: Any, **keywords: Any) -> Any:
        bound = signature.bind(*args, **keywords)
        bound.apply_defaults()
        given = list(bound.arguments.items())
        return body(*(value for _, value in given[:inputs]), **dict(given[inputs:]))

    function.__name__ = function.__qualname__ = operator.qualified(overwrites).rpartition(":")[2]
    function.__dict__["__signature__"] = signature  # what inspect.signature shows
    function.__annotations__ = {
        **{name: parameter.annotation for name, parameter in signature.parameters.items()},
        "return": signature.return_annotation,
    }
    return function


def operator_signature(operator: Operator, overwrites: bool) -> Signature:
    """Inputs, then options. A default stands where all that follow have one, as Python wants it."""
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
    for each in operator.inputs:
        annotation: Any = Tensor | None if each.is_optional else Tensor
        yield _parameter(each.name, annotation, None if each.is_optional else Parameter.empty)


def _options(operator: Operator) -> Iterator[Parameter]:
    for each in operator.keywords:
        annotation: Any = each.type | None if each.is_optional else each.type
        yield _parameter(each.name, annotation, Parameter.empty if each.default is MISSING else each.default)


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
