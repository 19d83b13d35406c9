# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors for calls that do not fit a signature, with suggestions for keywords that are misspelt or removed from NKI."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import Any

# By function and parameter, or by parameter alone (nki/migration/index.rst).
_REMOVED = {
    "mask": "slice the tensors to what is inside, t[:rows, :columns]",
    "nisa.dma_copy dst_rmw_op": "use nisa.dma_compute",
    "nisa.dma_copy unique_indices": "use nisa.dma_compute",
    "nisa.register_move imm": "pass src",
    "nisa.sendrecv use_gpsimd_dma": "pass dma_engine=nisa.dma_engine.gpsimd_dma",
}


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
# Where an instruction lacks a parameter, or has none of that name, by habits of the first releases.
_NO_DST = "an instruction writes into dst and returns no tile: make one with nl.ndarray"
_NO_DTYPE = "the result has the type of dst"


def call_error(function: str, signature: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> TypeError | None:
    """Return the error for a call that does not fit ``signature``, or None if it fits.

    The message names the function and suggests a parameter for a keyword that the function does not have.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        message = str(error)
    else:
        return None
    removed, suggestions = _removed(function, kwargs), _suggestions(signature, args, kwargs)
    if suggestions and not removed:
        return TypeError(f"{function}: {suggestions}")
    has_dst = function.startswith("nisa.") and message.endswith("argument: 'dst'")
    return TypeError(f"{function}: {message}{removed or (f'; {_NO_DST}' if has_dst else '')}")


def bound_call(
    function: str, signature: inspect.Signature, args: Any, kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call bound to the parameters of ``signature``.

    Raises:
        TypeError: the error of :func:`call_error`, if the arguments do not fit.
    """
    error = None
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        error = call_error(function, signature, args, kwargs)
    assert error is not None
    raise error


def _removed(function: str, kwargs: dict[str, Any]) -> str:
    for name in kwargs:
        instead = _REMOVED.get(f"{function} {name}") or _REMOVED.get(name)
        if instead is not None:
            return f"; {name!r} was removed from NKI: {instead}"
    return ""


def _suggestions(signature: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> str:
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
