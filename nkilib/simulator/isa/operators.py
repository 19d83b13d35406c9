# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operators that instructions take as ``op``, by their names in ``nki.language``.

:data:`OPERATORS` holds the :class:`Operator` of each name; :func:`operator_key` returns the name of an operator.

Source: table "Supported Math Operators" (``nki/api/nki.api.shared.rst``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from ..hardware.current import current_generation
from ..numerics.activations import ACTIVATIONS, PARAMETRIC
from ..numerics.operators import ARITHMETIC, ARITHMETIC_UNARY, BITWISE, BITWISE_UNARY
from ..terms.enums import nc_version
from ..terms.errors import NkiValidationError

# "Available only on NeuronCore-v4 (trn3) and newer" (docstrings of nl.abs_max and nl.abs_min).
_SINCE_TRN3 = frozenset({"abs_max", "abs_min"})

# The mean over partitions is an operator of ``tensor_partition_reduce`` alone: ``average`` until NKI 0.6.
MEAN = "mean"

# nl.max and nl.min are functions of the language; the instructions' texts also name them as operators.
_ALIASES = {"max": "maximum", "min": "minimum", "sum": "add", "average": MEAN}

# Where an instruction may leave out a step, the operator that says so.
BYPASS = "bypass"


class Operator:
    """A function of ``nki.language`` that instructions accept as ``op``, for instance ``nl.add`` or ``nl.exp``.

    Kernels may also call it on tiles; the call runs the function that ``api/language.py`` binds to the operator.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.key = _ALIASES.get(name, name)
        self._function: Callable[..., Any] | None = None

    def bind(self, function: Callable[..., Any]) -> None:
        """Make calls of the operator run ``function``, and copy its signature and docstring to the operator."""
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            raise NotImplementedError(
                f"nki.language.{self.__name__} is an operator only, not implemented in the simulator yet as a function "
                "on tiles; pass it as op= to a nisa instruction"
            )
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"nl.{self.__name__}"


def operator_key(parameter: str, op: Any) -> str:
    """Return the name of ``op`` in the tables of this module and of ``activations``.

    Args:
        parameter: the name of the instruction's parameter, for messages.
        op: the value of the parameter.

    Raises:
        NkiValidationError: ``op`` is not an operator of ``nki.language``, or the target does not have it.
    """
    if not isinstance(op, Operator):
        raise NkiValidationError(f"{parameter} must be an operator such as nl.add, got {op!r}")
    if op.key in _SINCE_TRN3 and current_generation().version is not nc_version.gen4:
        raise NkiValidationError(f"{parameter}={op!r} needs trn3; the target is {current_generation().name}")
    return op.key


# Every function of nki.language that the tables of instructions know.
OPERATORS: dict[str, Operator] = {
    name: Operator(name)
    for name in sorted(
        {
            *ARITHMETIC,
            *ARITHMETIC_UNARY,
            *BITWISE,
            *BITWISE_UNARY,
            *ACTIVATIONS,
            *PARAMETRIC,
            *_ALIASES,
            BYPASS,
            MEAN,
        }
    )
}
