# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Python's operators and numpy's functions on tensors: NKI documents none, and each error names what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ..terms.errors import TensorTypeError
from ..terms.objects import NKIObject
from ..terms.other_names import NUMPY_NAMES
from ..terms.regions import MemoryRegion

_BINARY = {
    "add": ("+", "nl.add"),
    "sub": ("-", "nl.subtract"),
    "mul": ("*", "nl.multiply"),
    "truediv": ("/", "nl.divide"),
    "floordiv": ("//", "nl.divide and nl.floor"),
    "mod": ("%", "nl.mod"),
    "pow": ("**", "nl.power"),
    "matmul": ("@", "nl.matmul"),
    "and": ("&", "nl.bitwise_and"),
    "or": ("|", "nl.bitwise_or"),
    "xor": ("^", "nl.bitwise_xor"),
    "lshift": ("<<", "nl.left_shift"),
    "rshift": (">>", "nl.right_shift"),
}
_COMPARISONS = {
    "lt": ("<", "nl.less"),
    "le": ("<=", "nl.less_equal"),
    "gt": (">", "nl.greater"),
    "ge": (">=", "nl.greater_equal"),
}
_UNARY = {
    "neg": ("-", "nl.negative"),
    "abs": ("abs()", "nl.abs"),
    "invert": ("~", "nl.invert"),
}
# The functions by which numbers and arrays of numpy compute an operator, with its symbol and the function to use.
_BY_UFUNC = {
    np.floor_divide: _BINARY["floordiv"],
    **{
        getattr(np, function.removeprefix("nl.")): (symbol, function)
        for symbol, function in (*_BINARY.values(), *_COMPARISONS.values())
        if " " not in function
    },
}
_EQUALITY = {np.equal: False, np.not_equal: True}
_ELSE = "the functions of nki.language (in a debugger, .array is a numpy view)"


def _refusal(symbol: str, function: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *others: Any) -> NoReturn:
        raise TensorTypeError(f"{self}: Python's {symbol} is no operation of NKI on tensors; use {function}")

    return refuse


class PythonOperators(NKIObject):
    """The base of ``NkiTensor``: arithmetic raises TensorTypeError; equality is identity, so tensors are hashable."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> bool:
        """Raise TensorTypeError, unless a number or an array of numpy is compared with the tensor: they are not equal.

        numpy calls this for its elementwise functions, and for an operator with such a number or array on its left.
        """
        is_call = method == "__call__"
        if is_call and ufunc in _EQUALITY and isinstance(inputs[0], np.generic | np.ndarray):
            return _EQUALITY[ufunc]
        if is_call and ufunc in _BY_UFUNC:
            symbol, function = _BY_UFUNC[ufunc]
            raise TensorTypeError(
                f"{self}: Python's {symbol} is no operation of NKI on tensors, nor is numpy's {ufunc.__name__}; use "
                f"{function}"
            )
        raise self._no_operation(ufunc.__name__ if is_call else f"{ufunc.__name__}.{method}")

    def __array_function__(self, function: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of numpy's other functions if they compute nothing, such as ``np.shape``, or else raise.

        Raises:
            TensorTypeError: naming the function, and what to use instead.
        """
        try:
            return function._implementation(*args, **kwargs)
        except TensorTypeError:
            raise self._no_operation(function.__name__) from None

    def _no_operation(self, name: str) -> TensorTypeError:
        """Return the error about a function of numpy."""
        return TensorTypeError(
            f"{self}: numpy's {name} is no operation of NKI on tensors; use {NUMPY_NAMES.get(name, _ELSE)}"
        )

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TensorTypeError: numpy would treat a tensor as one object, and its sum as the tensor itself."""
        raise TensorTypeError(f"{self}: numpy cannot compute with a tensor; use {_ELSE}")

    def __index__(self) -> NoReturn:
        """Raise TensorTypeError; ``int()``, ``float()`` and ``range()`` call this too."""
        raise TensorTypeError(
            f"{self}: the values of a tensor are not known while the kernel is being built; nisa.register_load brings "
            f"one into a register"
        )


def _refuse_in_place(symbol: str, function: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *others: Any) -> NoReturn:
        use = f"{function}, or nisa.tensor_tensor(t, t, other, op={function}) for a result in the same tile"
        if " " in function or function == "nl.matmul":  # no single operator of tensor_tensor
            use = function
        elif symbol == "+" and self.buffer is MemoryRegion.psum:
            use = "nisa.nc_matmul(t, stationary, moving), which adds to what an earlier matmul wrote there"
        raise TensorTypeError(f"{self}: Python's {symbol}= is no operation of NKI on tensors; use {use}")

    return refuse


for _name, (_symbol, _function) in _BINARY.items():
    setattr(PythonOperators, f"__i{_name}__", _refuse_in_place(_symbol, _function))
for _table, _prefixes in ((_BINARY, ("", "r")), (_COMPARISONS, ("",)), (_UNARY, ("",))):
    for _name, (_symbol, _function) in _table.items():
        for _prefix in _prefixes:
            setattr(PythonOperators, f"__{_prefix}{_name}__", _refusal(_symbol, _function))
