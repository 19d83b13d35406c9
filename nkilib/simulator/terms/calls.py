# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors for calls that do not fit a signature. The messages suggest a parameter for an unknown or removed keyword.

- :func:`call_error`, :func:`bound_call`, :func:`keyword_suggestions`: for functions that check their calls themselves;
- :func:`wrong_call_in`: for functions whose calls Python checks. Python's message has the ``__qualname__`` of such a
  function; :data:`PUBLIC_NAMES` finds the function by it;
- :func:`with_hint`: for operations of Python on a float instead of an integer, or on a tensor.

*Label* is the name of a function in the simulator's messages, such as ``nisa.activation``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from types import CodeType, FrameType
from typing import Any

from .argument_checks import DIVISION
from .errors import ArgumentTypeError

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
    """Return text that lists the unknown keywords of a call, each with the likely parameter; empty if none is likely.

    Python reports a missing argument before an unknown keyword, although the unknown keyword is often the cause.

    Args:
        signature: the signature of the function.
        args: the positional arguments of the call.
        kwargs: the keyword arguments of the call.
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
    """Return the error for a call that does not fit ``signature``, or None if the call fits.

    The message suggests a parameter for a keyword that the function does not have.

    Args:
        function: the label of the function.
        signature: the signature of the function.
        args: the positional arguments of the call.
        kwargs: the keyword arguments of the call.
        is_named: whether the message begins with the label.
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


class PublicNames:
    """A table of the functions and methods of NKI that kernels call and whose arguments Python itself checks."""

    def __init__(self) -> None:
        self._modules: dict[str, tuple[Sequence[str], Mapping[str, Any]]] = {}
        self._found: dict[str, tuple[str, Callable[..., Any]]] = {}

    def offer(self, called: str, names: Sequence[str], namespace: Mapping[str, Any]) -> None:
        """Add the functions and classes of a module to the table.

        Args:
            called: the name by which kernels call the module, such as ``nisa``.
            names: the public names of the module.
            namespace: the contents of the module by name.
        """
        self._modules[called] = names, namespace
        self._found.clear()

    def find(self, qualname: str) -> tuple[str, Callable[..., Any]] | None:
        """Return the pair (label, function) of the function whose ``__qualname__`` is ``qualname``; None if the table
        has no such function.
        """
        return self._all().get(qualname)

    def label_of(self, code: CodeType) -> str:
        """Return the label of the function with the code object ``code``; ``co_name`` if it is not in the table."""
        labels = [label for label, function in self._all().values() if function.__code__ is code]
        return labels[0] if labels else code.co_name

    def _all(self) -> dict[str, tuple[str, Callable[..., Any]]]:
        if not self._found:
            for called, (names, namespace) in self._modules.items():
                for name in names:
                    self._add(called, name, namespace[name])
        return self._found

    def _add(self, called: str, name: str, item: Any) -> None:
        if inspect.isfunction(item) and not hasattr(item, "__wrapped__"):
            self._found.setdefault(item.__qualname__, (f"{called}.{name}", item))
        elif inspect.isclass(item) and not issubclass(item, Enum):
            for attribute in dir(item):
                method = getattr(item, attribute)
                if inspect.isfunction(method):
                    self._found.setdefault(method.__qualname__, (f"{item.__name__}.{attribute}", method))


PUBLIC_NAMES = PublicNames()


# How Python begins its message about a call that does not fit a signature.
_PYTHONS_MESSAGE = re.compile(r"([\w.]+)\(\) (missing|takes|got) ")


# Messages of Python about what a kernel does with a float or a tensor, and what follows them.
_HINTS = (
    (
        re.compile(
            r"'(numpy\.)?float\d*' object cannot be interpreted as an integer"
            r"|can't multiply sequence by non-int of type '(numpy\.)?float\d*'"
            r"|(list|tuple|string|range object) (indices|index) must be integers.*float"
            r"|slice indices must be integers"
            r"|unsupported operand type\(s\) for (<<|>>|&|\^|\|)=?: .*'float'"
        ),
        DIVISION,
    ),
    (re.compile(r"object of type 'NkiTensor' has no len\(\)"), "; use its .shape[0]"),
)


def with_hint(error: Exception) -> ArgumentTypeError | None:
    """Return the error to raise instead of Python's, if a kernel used an operation of Python on a float instead of an
    integer, or on a tensor; None for other errors. The message is Python's, followed by a hint.
    """
    if isinstance(error, TypeError):
        for message, hint in _HINTS:
            if message.match(str(error)):
                return ArgumentTypeError(f"{error}{hint}")
    return None


def wrong_call_in(frame: FrameType, error: Exception) -> ArgumentTypeError | None:
    """Return the error to raise instead of Python's TypeError for a call that does not fit a public function.

    Args:
        frame: the frame that made the call.
        error: the exception that Python has raised.

    Returns:
        The error; None if ``error`` has another cause, or the function is not in :data:`PUBLIC_NAMES`.
    """
    match = _PYTHONS_MESSAGE.match(str(error)) if isinstance(error, TypeError) else None
    known = None if match is None else PUBLIC_NAMES.find(match[1])
    if match is None or known is None:
        return None
    label, function = known
    called = frame.f_locals.get(match[1], frame.f_globals.get(match[1], function))
    if inspect.isfunction(called) and called is not function:  # a function of the user that has the same name
        return None
    message = str(error)[match.end(1) + 3 :]
    _, _, keyword = message.partition("got an unexpected keyword argument ")
    suggestion = keyword_suggestions(inspect.signature(function), (), {keyword.split("'")[1]: None}) if keyword else ""
    return ArgumentTypeError(f"{label}: {suggestion or message}")
