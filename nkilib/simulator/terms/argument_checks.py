# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of arguments: integers, values of NKI, and calls that do not fit a signature.

Errors name the offending argument and suggest parameters for keywords that are misspelt or removed from NKI.

- :func:`is_integer`, :func:`as_integer`, :func:`as_integers`: integers;
- :func:`call_error`, :func:`bound_call`: calls that do not fit a signature;
- :func:`wrong_value`, :func:`wrong_argument`: arguments that are no values of NKI.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from operator import index
from typing import Any

import numpy as np

from .descriptions import describe_foreign_value
from .errors import ArgumentTypeError, NkiValidationError, RegisterTypeError


def is_integer(value: Any) -> bool:
    """Return whether ``value`` is an integer of Python or numpy; a boolean is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _remedy(values: Any) -> str:
    is_quotient = any(isinstance(value, float) and value.is_integer() for value in values)
    return "; of two integers, / makes a float and // an integer" if is_quotient else ""


def as_integer(what: str, value: Any) -> int:
    """Return ``value`` as an int.

    Raises:
        NkiValidationError: if it is no integer; the message names ``what``.
        RegisterTypeError: if it is a register.
    """
    try:
        return index(value)
    except RegisterTypeError:
        raise
    except TypeError:
        raise NkiValidationError(f"{what} must be an integer, got {value!r}{_remedy([value])}") from None


def as_integers(what: str, values: Any) -> tuple[int, ...]:
    """Return ``values`` as a tuple of int.

    Raises:
        NkiValidationError: if they are no sequence of integers; the message names ``what``.
        RegisterTypeError: if one of them is a register.
    """
    try:
        return tuple(map(index, values))
    except RegisterTypeError:
        raise
    except TypeError:
        parts = values if isinstance(values, tuple | list) else []
        raise NkiValidationError(f"{what} must be a tuple of integers, got {values!r}{_remedy(parts)}") from None


# Removed keywords, by function and parameter, or by parameter alone (nki/migration/index.rst).
_REMOVED = {
    "mask": "slice the tensors to what is inside, t[:rows, :columns]",
    "nisa.dma_copy dst_rmw_op": "use nisa.dma_compute",
    "nisa.dma_copy unique_indices": "use nisa.dma_compute",
    "nisa.nc_matmul psumAccumulateFlag": "leave it out, it had no effect",
    "nisa.nc_matmul is_moving_zero": "pass is_moving_onezero",
    "nisa.memset shape": "dst has the shape",
    "nisa.affine_select pred": "pass pattern, channel_multiplier and cmp_op",
    "nisa.iota expr": "pass pattern and offset",
    "num_channels": "pass channel_ids to nki.collectives.collective_permute_implicit",
    "nisa.register_move imm": "pass src",
    "nisa.sendrecv use_gpsimd_dma": "pass dma_engine=nisa.dma_engine.gpsimd_dma",
}


def _removed(function: str, kwargs: dict[str, Any]) -> str:
    for name in kwargs:
        instead = _REMOVED.get(f"{function} {name}") or _REMOVED.get(name)
        if instead is not None:
            return f"; {name!r} was removed from NKI: {instead}"
    return ""


# What a keyword that a function does not have is likely to mean, the first of these that it does have.
_MEANT = {
    "op": ("op0",),
    "operand": ("operand0",),
    "src": ("data", "srcs"),
    "data": ("src",),
    "out": ("dst",),
    "axes": ("axis",),
    "dim": ("axis",),
}

# By the habits of the first releases: an instruction is given a ``dtype``, or no ``dst``.
_NO_DTYPE = "the result has the type of dst"
_NO_DST = "an instruction writes into dst and returns no tile: make one with nl.ndarray"


def keyword_suggestions(signature: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> str:
    """Return text that lists the unknown keywords with the likely parameters; empty if there is no likely one.

    Python names such a keyword only if no argument is missing, although it is often the reason why one is missing.
    """
    parameters = signature.parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return ""
    free = [name for name in list(parameters)[len(args) :] if name not in kwargs]
    texts = []
    for name in [name for name in kwargs if name not in parameters]:
        likely = [candidate for candidate in _MEANT.get(name, ()) if candidate in free] or get_close_matches(
            name, free, 1
        )
        if likely:
            texts.append(f"{name!r}; did you mean {likely[0]!r}?")
            free.remove(likely[0])
        elif name == "dtype" and "dst" in parameters:
            texts.append(f"{name!r}; {_NO_DTYPE}")
    return f"got an unexpected keyword argument {' And '.join(texts)}" if texts else ""


def call_error(
    function: str, signature: inspect.Signature, args: Any, kwargs: dict[str, Any], *, is_named: bool = True
) -> ArgumentTypeError | None:
    """Return the error for a call that does not fit ``signature``, or None if it fits.

    The message suggests a parameter for a keyword that the function does not have. It begins with the name of the
    function, unless ``is_named`` is False because the caller adds the name together with the line of the kernel.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        message = str(error)
    else:
        return None
    removed, suggestions = _removed(function, kwargs), keyword_suggestions(signature, args, kwargs)
    has_dst = function.startswith("nisa.") and message.endswith("argument: 'dst'")
    if suggestions and not removed:
        message = suggestions
    else:
        message += removed or (f"; {_NO_DST}" if has_dst else "")
    return ArgumentTypeError(f"{function}: {message}" if is_named else message)


def bound_call(
    function: str, signature: inspect.Signature, args: Any, kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call bound to the parameters of ``signature``.

    Raises:
        ArgumentTypeError: the error of :func:`call_error`, if the arguments do not fit.
    """
    error = None
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        error = call_error(function, signature, args, kwargs)
    assert error is not None
    raise error


def wrong_value(function: str, arguments: Mapping[str, Any]) -> ArgumentTypeError | None:
    """Return the error about the first of some named arguments that is no value of NKI, or None.

    Its message begins with the name of the ``function``, unless that is empty.
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
    """Return the error about the first argument that is no value of NKI, such as an array or a class; None without one.

    Functions call this when Python has raised one of :data:`PLAIN_ERRORS`. If every argument is a value of NKI, the
    exception is a fault of the simulator.
    """
    return wrong_value("", signature.bind_partial(*args, **kwargs).arguments)
