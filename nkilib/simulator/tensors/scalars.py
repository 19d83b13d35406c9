# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``NkiScalar``: an integer of 32 or 64 bits that only the device knows, with arithmetic on the device.

Sources: pages of ``nki.isa.NkiScalar``, ``scalar_load``, ``scalar_store`` and ``nki.language.fori_loop`` (2.33), the
deep dive on scalar values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any, NoReturn

import numpy as np

from ..hardware.current import current_scope
from ..terms.dtypes import SCALARS, DType, int32, int64
from ..terms.errors import NkiValidationError, RegisterTypeError
from ..terms.integers import is_integer
from ..terms.objects import NKIObject
from ..terms.scopes import is_around, why_apart
from ..terms.spec import DataNeeded, ValuesWanted
from .registers import VirtualRegister

_REMEDY = "nisa.scalar_store it to a [1, 1] tile, compute there, and nisa.scalar_load the result"
_MADE_IN_LOOP = (
    "was made in the body of a dynamic loop, or in another iteration of it, and cannot be used here; "
    "nisa.scalar_store it to a tensor made before the loop, and nisa.scalar_load it here"
)
_STEERS = (
    "has its value on the device only and cannot steer Python: no if, while, int() or range() goes by it; nl.fori_loop "
    "counts to it"
)


class NkiScalar(NKIObject):
    """An immutable integer, read by ``nisa.scalar_load`` or counted by ``nl.fori_loop``.

    ``+``, ``-`` and ``*`` with an integer or a scalar of the same type make a new scalar of that type, whose value
    wraps around at its width. Python cannot read the value: a scalar in ``if``, ``while``, ``int()`` or ``range()``
    raises a TypeError, and so do two scalars of different types. A comparison of two int32 makes an object that no
    operation accepts; int64 has no comparisons.

    A scalar that is made in the body of a dynamic loop belongs to that iteration: the device runs one copy of the body,
    and passes values from one iteration to the next only in memory.

    Attributes:
        dtype: ``nl.int32`` or ``nl.int64``.
        loaded_by: the number of the core's last instruction that loaded a value from which it was computed; 0 if none
            did.
        origin: the ``origin`` of the :class:`Storage` of a value from which it was computed, if a launch with
            ``skip_arithmetic`` has left out that value; else None.
    """

    __slots__ = ("_is_comparison", "_scope", "_value", "dtype", "loaded_by", "origin")

    # Numbers of numpy leave an operator to the scalar on its other side.
    __array_ufunc__ = None

    def __init__(self, state: Any, dtype: DType | None = None, is_comparison: bool = False) -> None:
        """Raise an error: a kernel gets scalars only from ``nisa.scalar_load``, ``nl.fori_loop`` and arithmetic.

        Raises:
            NkiValidationError: always.
        """
        raise NkiValidationError(
            f"nisa.NkiScalar: a kernel does not make one, got state={state!r}, dtype={dtype!r}, "
            f"is_comparison={is_comparison!r}; nisa.scalar_load reads one from a tensor, and nl.fori_loop counts in one"
        )

    @classmethod
    def holding(
        cls,
        value: int | None,
        dtype: DType,
        *,
        is_comparison: bool = False,
        loaded_by: int = 0,
        origin: Hashable = None,
    ) -> NkiScalar:
        """Return a scalar of this value; None stands for a value that the launch does not know. For the simulator."""
        scalar = cls.__new__(cls)
        scalar._set(value, dtype, is_comparison, loaded_by, origin)
        return scalar

    def _set(self, value: int | None, dtype: DType, is_comparison: bool, loaded_by: int, origin: Hashable) -> None:
        self.loaded_by = loaded_by
        self.origin = origin
        self.dtype = dtype
        self._value = None if value is None else _wrapped(value, dtype)
        self._is_comparison = is_comparison
        self._scope = current_scope()

    def usable_anywhere(self) -> NkiScalar:
        """Return the same integer as a scalar that every launch can use. For the simulator."""
        scalar = self.holding(self._value, self.dtype, is_comparison=self._is_comparison, loaded_by=self.loaded_by)
        scalar._scope = ()
        return scalar

    @property
    def is_unknown(self) -> bool:
        """Whether the scalar has a value that the launch does not know."""
        return self._value is None

    def value(self, what: str) -> int:
        """Return the integer; ``what`` names the reader in messages.

        Raises:
            RegisterTypeError: if the scalar is the result of a comparison.
            NkiValidationError: on another core, in another launch, in a different iteration of a loop from the one in
                which it was made, or after the loop.
        """
        self._check_use(what)
        if self._value is None:
            raise DataNeeded(f"a scalar ({what})") if self.origin is None else ValuesWanted(self.origin)
        return self._value

    def _check_use(self, what: str) -> None:
        if self._is_comparison:
            raise RegisterTypeError(f"{what}: {self} is the result of a comparison of scalars, which nothing can use")
        here = current_scope()
        if self._scope is not here and not is_around(self._scope, here):
            raise NkiValidationError(f"{what}: {self} {why_apart(self._scope, here, _MADE_IN_LOOP)}")

    def _compute(self, symbol: str, function: Callable[[int, int], int], other: Any, *, swapped: bool) -> NkiScalar:
        known = self._operands(symbol, other)
        loaded_by = max(self.loaded_by, other.loaded_by if isinstance(other, NkiScalar) else 0)
        if known is None:
            origin = self.origin if self._value is None else other.origin
            return NkiScalar.holding(None, self.dtype, loaded_by=loaded_by, origin=origin)
        left, right = reversed(known) if swapped else known
        return NkiScalar.holding(function(left, right), self.dtype, loaded_by=loaded_by)

    def _operands(self, symbol: str, other: Any) -> tuple[int, int] | None:
        """Return the values of this scalar and another compatible operand; None if one of them is not known."""
        self._check_use(f"operator {symbol}")
        second: int | None
        if isinstance(other, NkiScalar):
            other._check_use(f"operator {symbol}")
            if other.dtype != self.dtype:
                raise RegisterTypeError(
                    f"operator {symbol}: two scalars must have one type, got {self} and {other}; nisa.scalar_load both "
                    f"from tensors of one type"
                )
            second = other._value
        else:
            second = self._immediate(symbol, other)
        return None if self._value is None or second is None else (self._value, second)

    def _immediate(self, symbol: str, other: Any) -> int:
        if not is_integer(other):
            remedy = "; nisa.scalar_load takes it from a tensor" if hasattr(other, "buffer") else ""
            if isinstance(other, VirtualRegister):
                remedy = "; nisa.register_store it to a [1, 1] tile, and nisa.scalar_load it from there"
            raise RegisterTypeError(
                f"operator {symbol}: the other operand of {self} must be an integer or a scalar, got {other!r}{remedy}"
            )
        limits = np.iinfo(self.dtype.numpy)
        if not limits.min <= other <= limits.max:
            raise RegisterTypeError(
                f"operator {symbol}: an integer beside {self} must have its {self.dtype.itemsize * 8} bits, got {other}"
            )
        return int(other)

    def _compared(self, symbol: str, other: Any) -> NkiScalar:
        if self.dtype == int64:
            raise RegisterTypeError(
                f"operator {symbol}: scalars of 64 bits are not compared, got {self}; nisa.scalar_store it and compare "
                f"tiles of 32 bits"
            )
        self._operands(symbol, other)
        return NkiScalar.holding(0, self.dtype, is_comparison=True)

    def __add__(self, other: Any) -> NkiScalar:
        return self._compute("+", operator.add, other, swapped=False)

    def __radd__(self, other: Any) -> NkiScalar:
        return self._compute("+", operator.add, other, swapped=True)

    def __sub__(self, other: Any) -> NkiScalar:
        return self._compute("-", operator.sub, other, swapped=False)

    def __rsub__(self, other: Any) -> NkiScalar:
        return self._compute("-", operator.sub, other, swapped=True)

    def __mul__(self, other: Any) -> NkiScalar:
        return self._compute("*", operator.mul, other, swapped=False)

    def __rmul__(self, other: Any) -> NkiScalar:
        return self._compute("*", operator.mul, other, swapped=True)

    def __neg__(self) -> NkiScalar:
        return self._compute("-", operator.sub, 0, swapped=True)

    def __pos__(self) -> NkiScalar:
        return self._compute("+", operator.add, 0, swapped=False)

    def __lt__(self, other: Any) -> NkiScalar:
        return self._compared("<", other)

    def __le__(self, other: Any) -> NkiScalar:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> NkiScalar:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> NkiScalar:
        return self._compared(">=", other)

    def __eq__(self, other: object) -> Any:
        """Compare with a number or scalar like the other operators; anything else, such as None, is not equal."""
        return self._compared("==", other) if _is_number(other) else False

    def __ne__(self, other: object) -> Any:
        return self._compared("!=", other) if _is_number(other) else True

    __hash__ = object.__hash__

    def _steer(self) -> NoReturn:
        raise RegisterTypeError(f"Python cannot go by {self}: a scalar {_STEERS}")

    # int(), float() and range() go through __index__ too.
    __bool__ = __index__ = _steer

    def _refuse(self, *_: Any) -> NoReturn:
        raise RegisterTypeError(f"{self} has the operators +, - and * only; {_REMEDY}")

    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __abs__ = _refuse
    __divmod__ = __rdivmod__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse

    def __repr__(self) -> str:
        state = "unknown" if self._value is None else str(self._value)
        return f"NkiScalar({'comparison' if self._is_comparison else state}, {self.dtype})"


# What stands for an integer that only the device knows.
DeviceInteger = VirtualRegister | NkiScalar


def int32_of(name: str, holder: DeviceInteger) -> int:
    """Return the int32 that a register or a scalar holds, for the parameter or index ``name``.

    Raises:
        NkiValidationError: if it has 64 bits, or is no integer.
        UninitializedReadError: if it is a register that was never set.
    """
    if isinstance(holder, NkiScalar) and holder.dtype != int32:
        raise NkiValidationError(f"{name} must be an int32, got {holder}; nisa.scalar_load it from a tensor of int32")
    return holder.value(name)


def check_scalar_type(name: str, dtype: DType) -> None:
    """Check that a scalar can have a tensor's type.

    Raises:
        NkiValidationError: if it cannot; the message names the operand, and the signed type of the same width.
    """
    if dtype not in SCALARS:
        signed = "int64" if dtype.itemsize == int64.itemsize else "int32"
        same = dtype.kind == "uint" and dtype.itemsize == int32.itemsize
        remedy = f"; view it as nl.{signed}" if same else "; cast it to nl.int32 with nisa.tensor_copy"
        raise NkiValidationError(f"operand {name!r} must be a tensor of int32 or int64, got one of {dtype}{remedy}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.generic | NkiScalar | VirtualRegister)


def _wrapped(value: int, dtype: DType) -> int:
    """Return the low bits of ``value``, as many as the type has, as a signed number."""
    span = 1 << (8 * dtype.itemsize)
    return (value + span // 2) % span - span // 2
