# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of arguments: integers, values of NKI, and calls that do not fit a signature.

Errors name the offending argument and suggest parameters for keywords that are misspelt or removed from NKI. The words
by which messages describe tensors and other values are here too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from operator import index
from types import CodeType, FrameType
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import DType
from .enums import MemoryRegion
from .errors import ArgumentTypeError, NkiValidationError, RegisterTypeError

EMPTY = " (empty: a slice is where start >= stop, and a negative start or stop counts from the end)"

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
# The exceptions of Python that an argument of a wrong type can cause inside a function, where no check has met it.
PLAIN_ERRORS = (TypeError, ValueError, AttributeError)

# Where an instruction lacks a parameter, or has none of that name, by habits of the first releases.
_NO_DST = "an instruction writes into dst and returns no tile: make one with nl.ndarray"
_NO_DTYPE = "the result has the type of dst"

# How Python begins its message about a call that does not fit a signature.
_PYTHONS_MESSAGE = re.compile(r"([\w.]+)\(\) (missing|takes|got) ")


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


def describe(name: str, shape: tuple[int, ...], dtype: DType, region: MemoryRegion) -> str:
    """Return one line with the tensor's name (if it has one), shape, type and memory region."""
    label = f"{name!r} " if name else ""
    return f"tensor {label}{list(shape)} {dtype} in {region}{EMPTY if 0 in shape else ''}"


def describe_foreign_value(value: Any) -> str:
    """Describe a value that is not a tensor of the kernel: an array in one line, without its elements, and a remedy."""
    if hasattr(value, "is_data_representable"):
        return f"{value!r}: a grid is no operand, its tensor is grid.data"
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple) or hasattr(value, "buffer") or not hasattr(value, "dtype"):
        return repr(value)
    library = type(value).__module__.partition(".")[0]
    return (
        f"a {library} {type(value).__name__} {list(shape)} {value.dtype}: pass it to the kernel as an argument and "
        f"load it, or use nl.shared_constant"
    )


def first_and_last(chosen: npt.NDArray[np.bool_]) -> str:
    """Return text that names the first and the last true element of a mask, by their indices, in row-major order."""
    first, last = (np.argwhere(chosen)[end].tolist() for end in (0, -1))
    return f"the element {first}" if first == last else f"the first is {first}, the last {last}"


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
    removed, suggestions = _removed(function, kwargs), _suggestions(signature, args, kwargs)
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


def wrong_argument(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ArgumentTypeError | None:
    """Return the error about the first argument that is no value of NKI, such as an array or a class; None without one.

    Functions call this when Python has raised one of :data:`PLAIN_ERRORS`. If every argument is a value of NKI, the
    exception is a fault of the simulator.
    """
    return wrong_value("", signature.bind_partial(*args, **kwargs).arguments)


class PublicNames:
    """The functions, and the methods of the classes, that modules of NKI offer to kernels.

    Only those are listed for which Python itself checks the arguments of a call.
    """

    def __init__(self) -> None:
        self._modules: dict[str, tuple[Sequence[str], Mapping[str, Any]]] = {}
        self._found: dict[str, tuple[str, Callable[..., Any]]] = {}

    def offer(self, called: str, names: Sequence[str], namespace: Mapping[str, Any]) -> None:
        """Register the ``names`` of a module with the contents ``namespace``, which kernels know as ``called``."""
        self._modules[called] = names, namespace
        self._found.clear()

    def find(self, qualname: str) -> tuple[str, Callable[..., Any]] | None:
        """Return the function that Python's messages call ``qualname``, preceded by its name in ours; or None."""
        return self._all().get(qualname)

    def label_of(self, code: CodeType) -> str:
        """Return the name of the function with this code in messages; any other function has its own name."""
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


def wrong_call_in(frame: FrameType, error: Exception) -> ArgumentTypeError | None:
    """Return the error for a call of a public function whose arguments Python itself refused, or None for other errors.

    Args:
        frame: the frame that made the call.
        error: the exception of Python.
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
    suggestion = _suggestions(inspect.signature(function), (), {keyword.split("'")[1]: None}) if keyword else ""
    return ArgumentTypeError(f"{label}: {suggestion or message}")
