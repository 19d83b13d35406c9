# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Uncomputed``: a shape and a type, returned in place of a tensor by a launch that skips arithmetic."""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

from ..terms.dtypes import DType
from ..terms.errors import UncomputedError


class Uncomputed:
    """A result of a kernel whose values were left out. Every operation that needs values raises an error.

    Another launch with ``skip_arithmetic`` accepts it as an argument.

    Attributes:
        kernel: the name of the kernel that returned it.
        path: its position in the kernel's result, such as ``[0]``; empty for the only result.
        shape: the size of each dimension.
        dtype: the NKI type of an element.
    """

    __slots__ = ("dtype", "kernel", "path", "shape")

    def __init__(self, kernel: str, path: str, shape: tuple[int, ...], dtype: DType) -> None:
        self.kernel = kernel
        self.path = path
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def refuse(self, who: str = "") -> NoReturn:
        """Raise the error about missing values; ``who`` is the operation that asks for them.

        Raises:
            UncomputedError: always.
        """
        raise UncomputedError(f"{who}: {self._reason()}" if who else self._reason())

    def _reason(self) -> str:
        which = f"result {self.path}" if self.path else "the result"
        return (
            f"{self.kernel}: {which}, {list(self.shape)} {self.dtype}, has no values: the launch had "
            f"skip_arithmetic=True, which leaves them out; launch the kernel without it to read them"
        )

    def __len__(self) -> int:
        """Return the size of the first dimension, like an array."""
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Uncomputed {list(self.shape)} {self.dtype} of {self.kernel}>"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name!r}: {self._reason()}")

    def _refuse_operation(self, *operands: Any, **options: Any) -> NoReturn:
        self.refuse()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        operand = next((item for item in args if isinstance(item, cls)), None)
        if operand is None:
            raise UncomputedError(f"{function}: an Uncomputed has no values; launch its kernel without skip_arithmetic")
        operand.refuse()

    # Functions of numpy, operators of its numbers and arrays too, come to the second and third.
    __array__ = __array_ufunc__ = __array_function__ = _refuse_operation
    __getitem__ = __setitem__ = __iter__ = __contains__ = _refuse_operation
    __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse_operation
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_operation
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __pos__ = __abs__ = _refuse_operation
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse_operation
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse_operation
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse_operation

    __hash__ = object.__hash__
