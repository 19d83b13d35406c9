# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``VirtualRegister``: a 32-bit scalar that a kernel reads at run time, for loops and dynamic addresses.

Sources: docstring of ``VirtualRegister``, ``nki/get-started/nki-language-guide.rst`` (Dynamic Control Flow),
``nki/deep-dives/nki-dynamic-loops.rst`` and ``nki/migration/index.rst`` (Rules for migrated loops); page of
``nki.isa.register_load`` (2.33).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..hardware.current import current_scope, is_abstract_launch, is_traced
from ..terms.dtypes import DType
from ..terms.errors import NkiValidationError, RegisterTypeError, UninitializedReadError
from ..terms.integers import is_integer
from ..terms.objects import NKIObject
from ..terms.scopes import CORE, is_around, why_apart
from ..terms.spec import DataNeeded, ValuesWanted

_INT32_MIN, _UINT32_MAX = -(2**31), 2**32 - 1

_REMEDY = "nisa.register_store it to a [1, 1] tile, compute there, and nisa.register_load the result"
_REMEDY_AS_INTEGER = (
    "nl.fori_loop(0, register, body) counts to it, and nl.ds(register, size) makes it an index of a tensor"
)


@dataclass(frozen=True)
class LoadedFloat:
    """The content of a register that was loaded with a float: its bits can be stored, but not computed with.

    Attributes:
        number: the value of the element.
        dtype: the type of the element.
    """

    number: float
    dtype: DType

    def __str__(self) -> str:
        return f"the {self.dtype} {self.number}"


class VirtualRegister(NKIObject):
    """A register of the engines' sequencers; ``nisa.register_alloc`` makes one.

    It holds 32 bits: an integer, read as int32, or an element of a float type. On the device its value is not known
    while the kernel is built, so Python can neither compute with it nor branch on it: arithmetic, comparison, ``if``,
    ``while``, ``int()`` and ``range()`` raise ``RegisterTypeError``. With the front end of NKI 0.6
    (``Options.frontend``) ``while reg:`` runs until the register holds 0.

    Args:
        state: the first value, or None for a register that is not set yet.
        frozen: whether ``nisa.register_move`` and ``nisa.register_load`` raise an error instead of writing it, as for
            the loop variable of ``nl.dynamic_range``.

    Attributes:
        loaded_by: the number of the last instruction of the core that wrote it; 0 if none did.
        origin: the ``origin`` of the :class:`Storage` from which it was loaded, if a launch with ``skip_arithmetic``
            has left out the value; else None.
    """

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        self._content: int | LoadedFloat | None = None if state is None else wrap_integer("state", state)
        self.origin: Hashable = None
        self.frozen = frozen
        self.loaded_by = 0
        self._scope = current_scope()[:CORE]  # a register outlives the loop in which it is allocated

    @property
    def is_unknown(self) -> bool:
        """Whether the register was set to a value that the launch has not computed."""
        return self._content is None and (self.origin is not None or is_abstract_launch())

    def usable_anywhere(self) -> VirtualRegister:
        """Return a copy that every launch can use. For the simulator."""
        register = copy.copy(self)
        register._scope = ()
        return register

    def _check_use(self, what: str) -> None:
        here = current_scope()
        if not is_around(self._scope, here):
            raise NkiValidationError(f"{what}: {self} {why_apart(self._scope, here, '')}")

    def forget(self, origin: Hashable = None) -> None:
        """Set the register to a value that the launch has not computed; ``origin`` is the attribute of this name."""
        self._check_writable()
        self._content, self.origin = None, origin

    def content(self, what: str) -> int | LoadedFloat:
        """Return the integer or float that the register holds; ``what`` names the reader in messages.

        Raises:
            UninitializedReadError: if the register was never set.
            NkiValidationError: if it belongs to another core or another launch.
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
        """Return the integer that the register holds, an int32; ``what`` names the reader in messages.

        Raises:
            UninitializedReadError: if the register was never set.
            NkiValidationError: if it holds a float.
        """
        content = self.content(what)
        if isinstance(content, LoadedFloat):
            raise NkiValidationError(f"{what}: must be an integer, got a register loaded with {content}")
        return content

    def write(self, value: int | LoadedFloat) -> None:
        """Set the register to an element of a float type or to the low 32 bits of an integer.

        Raises:
            NkiValidationError: if it is frozen, or belongs to another core or another launch.
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

    def _refuse(self, *operands: Any, remedy: str = _REMEDY) -> NoReturn:
        raise RegisterTypeError(
            f"Python cannot compute with {self}: a register has its value on the device only; {remedy}"
        )

    def __index__(self) -> NoReturn:
        """Raise RegisterTypeError; ``int()``, ``float()``, ``range()`` and list indexing call this."""
        self._refuse(remedy=_REMEDY_AS_INTEGER)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __abs__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __eq__(self, other: object) -> bool:
        """Raise RegisterTypeError for numbers and registers; anything else, such as None or a name, is not equal."""
        if isinstance(other, int | float | np.generic | VirtualRegister):
            self._refuse(other)
        return False

    __hash__ = object.__hash__


def wrap_integer(name: str, value: Any) -> int:
    """Return the integer ``value`` as the int32 with the same 32 bits.

    Raises:
        NkiValidationError: if it is no integer or has more than 32 bits; the message names ``name``.
    """
    if not is_integer(value) or not _INT32_MIN <= value <= _UINT32_MAX:
        remedy = "; nisa.register_load takes it from a tensor" if hasattr(value, "buffer") else ""
        remedy = "; nisa.register_move takes it from a register" if isinstance(value, VirtualRegister) else remedy
        raise NkiValidationError(f"{name} must be an integer of 32 bits, got {value!r}{remedy}")
    return _as_int32(int(value))


def _as_int32(value: int) -> int:
    return (value - _INT32_MIN) % 2**32 + _INT32_MIN
