# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of the values of arguments. Errors name the offending argument.

- :func:`is_integer`, :func:`as_integer`, :func:`as_integers`: integers; :func:`division_remedy`: a hint at ``//``;
- :func:`wrong_value`, :func:`wrong_argument`: find arguments that are no values of NKI.

A *value of NKI* is a value that a kernel can pass to a function of NKI: a tensor, number, string, tuple or the like.
Arrays of numpy or torch, dicts, sets, classes and complex numbers are no values of NKI.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np

from .descriptions import describe_foreign_value
from .errors import ArgumentTypeError, NkiValidationError, RegisterTypeError


def is_integer(value: Any) -> bool:
    """Return whether ``value`` is an integer of Python or numpy; a boolean is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


# What follows in an error about a float that should be an integer.
DIVISION = "; of two integers, / makes a float and // an integer"


def _has_quotient(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_quotient, value))
    return isinstance(value, float) and value.is_integer()


def division_remedy(value: Any) -> str:
    """Return :data:`DIVISION` if ``value``, which should be an integer or a sequence of integers, is or holds a float
    that may be the result of a division; else an empty string.
    """
    return DIVISION if _has_quotient(value) else ""


def as_integer(what: str, value: Any) -> int:
    """Return ``value`` as an int.

    Args:
        what: the name of the value in the error message.
        value: an integer of Python or numpy.

    Raises:
        NkiValidationError: if ``value`` is not an integer.
        RegisterTypeError: if ``value`` is a register.
    """
    try:
        return index(value)
    except RegisterTypeError:
        raise
    except TypeError:
        raise NkiValidationError(f"{what} must be an integer, got {value!r}{division_remedy(value)}") from None


def as_integers(what: str, values: Any) -> tuple[int, ...]:
    """Return ``values`` as a tuple of int.

    Args:
        what: the name of the tuple in the error message.
        values: a sequence of integers of Python or numpy.

    Raises:
        NkiValidationError: if ``values`` is not a sequence of integers.
        RegisterTypeError: if an element is a register.
    """
    try:
        return tuple(map(index, values))
    except RegisterTypeError:
        raise
    except TypeError:
        raise NkiValidationError(
            f"{what} must be a tuple of integers, got {values!r}{division_remedy(values)}"
        ) from None


def wrong_value(function: str, arguments: Mapping[str, Any]) -> ArgumentTypeError | None:
    """Return an error about the first argument that is no value of NKI, or None if all are.

    Args:
        function: the name of the function, with which the message begins; empty to leave it out.
        arguments: the values of the arguments by parameter name.
    """
    for name, value in arguments.items():
        is_tensor = hasattr(value, "buffer") or hasattr(value, "is_data_representable")
        is_array = hasattr(value, "dtype") and getattr(value, "shape", ()) != () and not is_tensor
        if is_array or isinstance(value, dict | set | type | complex) or type(value) is object:
            what = f"argument {name!r} has a wrong type: {describe_foreign_value(value)}"
            return ArgumentTypeError(f"{function}: {what}" if function else what)
    return None


# The exceptions of Python that an argument of a wrong type can cause inside a function, where no check has met it.
PLAIN_ERRORS = (TypeError, ValueError, AttributeError)


def wrong_argument(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ArgumentTypeError | None:
    """Return an error about the first argument of a call that is no value of NKI, or None if all are.

    This serves to explain an exception of a type in :data:`PLAIN_ERRORS` that the call has raised. If all arguments are
    values of NKI, the exception is a fault of the simulator.
    """
    return wrong_value("", signature.bind_partial(*args, **kwargs).arguments)
