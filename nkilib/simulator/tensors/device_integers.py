# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Integers that only the device knows, for loops and dynamic addresses: ``VirtualRegister`` and ``NkiScalar``.

- :class:`VirtualRegister`: can be written again, and Python cannot compute with it. :class:`LoadedFloat`: the content
  of a register that was loaded with a float.
- :class:`NkiScalar`: is immutable and has arithmetic. :func:`check_scalar_type` checks its type.
- :func:`int32_of`: the integer in a register or scalar (:data:`DeviceInteger`). :func:`wrap_integer`: an integer
  wrapped to 32 bits.

``what`` is the use of the value in messages, such as ``"operand 'src'"``.

Sources: docstring of ``VirtualRegister``, ``nki/get-started/nki-language-guide.rst`` (Dynamic Control Flow),
``nki/deep-dives/nki-dynamic-loops.rst`` and ``nki/migration/index.rst`` (Rules for migrated loops); pages of
``nki.isa.register_load``, ``NkiScalar``, ``scalar_load``, ``scalar_store`` and ``nki.language.fori_loop`` (2.33); the
deep dive on scalar values.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..hardware.current import current_scope, is_abstract_launch, is_traced
from ..terms.argument_checks import is_integer
from ..terms.dtypes import DType, int32, int64
from ..terms.errors import NkiValidationError, RegisterTypeError, UninitializedReadError
from ..terms.nki_object import NKIObject
from ..terms.scopes import CORE, is_around, why_apart
from ..terms.spec import DataNeeded, ValuesWanted

_INT32_MIN, _UINT32_MAX = -(2**31), 2**32 - 1

_REGISTER_REMEDY = "nisa.register_store it to a [1, 1] tile, compute there, and nisa.register_load the result"
_REGISTER_REMEDY_AS_INTEGER = (
    "nl.fori_loop(0, register, body) counts to it, and nl.ds(register, size) makes it an index of a tensor"
)


_SCALAR_REMEDY = "nisa.scalar_store it to a [1, 1] tile, compute there, and nisa.scalar_load the result"
_MADE_IN_LOOP = (
    "was made in the body of a dynamic loop, or in another iteration of it, and cannot be used here; "
    "nisa.scalar_store it to a tensor made before the loop, and nisa.scalar_load it here"
)
_STEERS = (
    "has its value on the device only and cannot steer Python: no if, while, int() or range() goes by it; nl.fori_loop "
    "counts to it"
)


@dataclass(frozen=True)
class LoadedFloat:
    """The content of a register that was loaded with a float. It can be stored, but Python cannot compute with it.

    Attributes:
        number: the value of the element.
        dtype: the type of the element.
    """

    number: float
    dtype: DType

    def __str__(self) -> str:
        return f"the {self.dtype} {self.number}"


def _as_int32(value: int) -> int:
    return (value - _INT32_MIN) % 2**32 + _INT32_MIN


class VirtualRegister(NKIObject):
    """A register of the engines' sequencers; ``nisa.register_alloc`` makes one.

    It holds 32 bits: an integer, read as int32, or an element of a float type. The value is not known while the kernel
    is built, so that Python can neither compute with it nor branch on it: arithmetic, comparison, ``if``, ``while``,
    ``int()`` and ``range()`` raise ``RegisterTypeError``. With the front end of NKI 0.6 (``Options.frontend``) ``while
    reg:`` runs until the register holds 0.

    Args:
        state: the first value, or None for a register that is not set yet.
        frozen: whether writing the register with ``nisa.register_move`` or ``nisa.register_load`` raises an error, as
            for the loop variable of ``nl.dynamic_range``.

    Attributes:
        loaded_by: the number of the last instruction of the core that wrote the register; 0 if none did.
        origin: the ``origin`` of the :class:`Storage` from which the register was loaded, if a launch with
            ``skip_arithmetic`` did not compute the value; otherwise None.
    """

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        self._content: int | LoadedFloat | None = None if state is None else wrap_integer("state", state)
        self.origin: Hashable = None
        self.frozen = frozen
        self.loaded_by = 0
        self._scope = current_scope()[:CORE]  # a register outlives the loop in which it is allocated

    @property
    def is_unknown(self) -> bool:
        """Whether the register was set to a value that this launch does not compute."""
        return self._content is None and (self.origin is not None or is_abstract_launch())

    def usable_anywhere(self) -> VirtualRegister:
        """Return a copy of the register that every launch can use. For the simulator only."""
        register = copy.copy(self)
        register._scope = ()
        return register

    def _check_use(self, what: str) -> None:
        here = current_scope()
        if not is_around(self._scope, here):
            raise NkiValidationError(f"{what}: {self} {why_apart(self._scope, here, '')}")

    def forget(self, origin: Hashable = None) -> None:
        """Mark the register as holding a value that the launch does not compute; ``origin`` sets the attribute
        ``origin``.
        """
        self._check_writable()
        self._content, self.origin = None, origin

    def content(self, what: str) -> int | LoadedFloat:
        """Return the integer or float that the register holds.

        Raises:
            UninitializedReadError: the register was never set.
            NkiValidationError: the register belongs to another core or another launch.
        """
        self._check_use(what)
        if self.is_unknown:
            raise DataNeeded(f"a register ({what})") if self.origin is None else ValuesWanted(self.origin)
        if self._content is None:
            raise UninitializedReadError(
                f"{what}: the register was never set; give nisa.register_alloc a value, or nisa.register_load one first"
            )
        return self._content

    def value(self, what: str) -> int:
        """Return the integer that the register holds, an int32.

        Raises:
            UninitializedReadError: the register was never set.
            NkiValidationError: the register holds a float, or belongs to another core or another launch.
        """
        content = self.content(what)
        if isinstance(content, LoadedFloat):
            raise NkiValidationError(f"{what}: must be an integer, got a register loaded with {content}")
        return content

    def write(self, value: int | LoadedFloat) -> None:
        """Set the register to an element of a float type, or to the low 32 bits of an integer.

        Raises:
            NkiValidationError: the register is frozen, or belongs to another core or another launch.
        """
        self._check_writable()
        self._content, self.origin = value if isinstance(value, LoadedFloat) else _as_int32(value), None

    def _check_writable(self) -> None:
        self._check_use("operand 'dst'")
        if self.frozen:
            raise NkiValidationError(
                f"operand 'dst': {self} is the value of a loop and read-only; nisa.register_move it to a register of "
                "your own and write that one"
            )

    def __bool__(self) -> bool:
        if is_traced():
            raise RegisterTypeError(
                f"Python cannot go by {self}: a register has its value on the device only and cannot steer Python; "
                f"nl.fori_loop(0, register, body) counts to it, and nl.while_loop(register, body) runs until it holds "
                f"0. NKI_COMPILER_FRONTEND=custom runs while register: as NKI 0.6 did"
            )
        return self.value("a register as a condition") != 0

    def __repr__(self) -> str:
        content = self._content
        state = "unset" if content is None else str(content.number if isinstance(content, LoadedFloat) else content)
        return f"VirtualRegister({state}{', frozen' if self.frozen else ''})"

    def _refuse(self, *operands: Any, remedy: str = _REGISTER_REMEDY) -> NoReturn:
        raise RegisterTypeError(
            f"Python cannot compute with {self}: a register has its value on the device only; {remedy}"
        )

    def __index__(self) -> NoReturn:
        """Raise RegisterTypeError. ``int()``, ``float()``, ``range()`` and list indexing call this method."""
        self._refuse(remedy=_REGISTER_REMEDY_AS_INTEGER)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __abs__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __eq__(self, other: object) -> bool:
        """Raise RegisterTypeError for a number or a register; return False for anything else, such as None or a
        name.
        """
        if isinstance(other, int | float | np.generic | VirtualRegister):
            self._refuse(other)
        return False

    __hash__ = object.__hash__


def wrap_integer(name: str, value: Any) -> int:
    """Return the integer ``value`` as the int32 with the same 32 bits.

    Raises:
        NkiValidationError: ``value`` is no integer, or has more than 32 bits; ``name`` is its name in the message.
    """
    if not is_integer(value) or not _INT32_MIN <= value <= _UINT32_MAX:
        remedy = "; nisa.register_load takes it from a tensor" if hasattr(value, "buffer") else ""
        remedy = "; nisa.register_move takes it from a register" if isinstance(value, VirtualRegister) else remedy
        raise NkiValidationError(f"{name} must be an integer of 32 bits, got {value!r}{remedy}")
    return _as_int32(int(value))


def _wrapped(value: int, dtype: DType) -> int:
    span = 1 << (8 * dtype.itemsize)
    return (value + span // 2) % span - span // 2


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.generic | NkiScalar | VirtualRegister)


class NkiScalar(NKIObject):
    """An immutable integer, which ``nisa.scalar_load`` reads or ``nl.fori_loop`` counts.

    ``+``, ``-`` and ``*`` with an integer or a scalar of the same type make a new scalar of that type, whose value
    wraps around at its width; scalars of different types raise a TypeError. Python cannot read the value: a scalar in
    ``if``, ``while``, ``int()`` or ``range()`` raises a TypeError. A comparison of two int32 makes an object that no
    operation accepts; int64 has no comparisons.

    A scalar that is made in the body of a dynamic loop belongs to that iteration: the device runs one copy of the body,
    and passes values from one iteration to the next only in memory.

    Attributes:
        dtype: ``nl.int32`` or ``nl.int64``.
        loaded_by: the number of the core's last instruction that loaded a value from which the scalar was computed; 0
            if none did.
        origin: the ``origin`` of the :class:`Storage` of a value from which the scalar was computed, if a launch with
            ``skip_arithmetic`` did not compute that value; otherwise None.
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
        """Return a scalar of this value; None is a value that the launch does not know. For the simulator only."""
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
        """Return a scalar with the same value that every launch can use. For the simulator only."""
        scalar = self.holding(self._value, self.dtype, is_comparison=self._is_comparison, loaded_by=self.loaded_by)
        scalar._scope = ()
        return scalar

    @property
    def is_unknown(self) -> bool:
        """Whether this launch does not know the scalar's value."""
        return self._value is None

    def value(self, what: str) -> int:
        """Return the value.

        Raises:
            RegisterTypeError: the scalar is the result of a comparison.
            NkiValidationError: the scalar was made on another core, in another launch, or in a loop iteration that has
                ended.
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
        """Return the values of this scalar and of ``other`` for the operator ``symbol``, after checking that the types
        fit.

        The result is None if one of the values is not known.
        """
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
        """Compare with a number or scalar like the other comparisons; return False for anything else, such as None."""
        return self._compared("==", other) if _is_number(other) else False

    def __ne__(self, other: object) -> Any:
        return self._compared("!=", other) if _is_number(other) else True

    __hash__ = object.__hash__

    def _steer(self) -> NoReturn:
        raise RegisterTypeError(f"Python cannot go by {self}: a scalar {_STEERS}")

    # int(), float() and range() go through __index__ too.
    __bool__ = __index__ = _steer

    def _refuse(self, *_: Any) -> NoReturn:
        raise RegisterTypeError(f"{self} has the operators +, - and * only; {_SCALAR_REMEDY}")

    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __abs__ = _refuse
    __divmod__ = __rdivmod__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse

    def __repr__(self) -> str:
        state = "unknown" if self._value is None else str(self._value)
        return f"NkiScalar({'comparison' if self._is_comparison else state}, {self.dtype})"


# What stands for an integer that only the device knows.
DeviceInteger = VirtualRegister | NkiScalar


def int32_of(name: str, holder: DeviceInteger) -> int:
    """Return the int32 that a register or a scalar holds; ``name`` is the parameter or index that it is used for.

    Raises:
        NkiValidationError: the value has 64 bits, or is no integer.
        UninitializedReadError: a register was never set.
    """
    if isinstance(holder, NkiScalar) and holder.dtype != int32:
        raise NkiValidationError(f"{name} must be an int32, got {holder}; nisa.scalar_load it from a tensor of int32")
    return holder.value(name)


# A scalar has 32 bits, or 64 in two halves.
_SCALAR_TYPES = frozenset({int32, int64})


def check_scalar_type(name: str, dtype: DType) -> None:
    """Check that the type of a tensor from which a scalar is loaded, or in which it is stored, is int32 or int64.

    Raises:
        NkiValidationError: the type is another one; the message names the operand ``name`` and the remedy.
    """
    if dtype not in _SCALAR_TYPES:
        signed = "int64" if dtype.itemsize == int64.itemsize else "int32"
        same = dtype.kind == "uint" and dtype.itemsize == int32.itemsize
        remedy = f"; view it as nl.{signed}" if same else "; cast it to nl.int32 with nisa.tensor_copy"
        raise NkiValidationError(f"operand {name!r} must be a tensor of int32 or int64, got one of {dtype}{remedy}")
