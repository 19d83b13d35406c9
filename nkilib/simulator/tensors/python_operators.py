# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Python's operators on tensors: NKI documents none, and each error names the function to use instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..terms.errors import TensorTypeError
from ..terms.objects import NKIObject

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


def _refusal(symbol: str, function: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *others: Any) -> NoReturn:
        raise TensorTypeError(f"{self}: Python's {symbol} is no operation of NKI on tensors; use {function}")

    return refuse


class PythonOperators(NKIObject):
    """The base of ``NkiTensor``: arithmetic raises TensorTypeError; equality is identity, so tensors are hashable."""

    __slots__ = ()

    # Numbers of numpy leave an operator to the tensor on its other side.
    __array_priority__ = 1000.0

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TensorTypeError: numpy would treat a tensor as one object, and its sum as the tensor itself."""
        raise TensorTypeError(
            f"{self}: numpy cannot compute with a tensor; use the functions of nki.language (in a debugger, .array is "
            f"a numpy view)"
        )

    def __index__(self) -> NoReturn:
        """Raise TensorTypeError; ``int()``, ``float()`` and ``range()`` call this too."""
        raise TensorTypeError(
            f"{self}: the values of a tensor are not known while the kernel is being built; nisa.register_load brings "
            f"one into a register"
        )


for _table, _prefixes in ((_BINARY, ("", "r")), (_COMPARISONS, ("",)), (_UNARY, ("",))):
    for _name, (_symbol, _function) in _table.items():
        for _prefix in _prefixes:
            setattr(PythonOperators, f"__{_prefix}{_name}__", _refusal(_symbol, _function))
