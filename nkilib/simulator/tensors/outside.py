"""Views by ``NkiTensor.ap`` that leave their tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..terms.dtypes import DType
from ..terms.errors import OutOfRangeError
from ..terms.layout import Layout
from .tensor import NkiTensor
from .view import View

if TYPE_CHECKING:
    from .indirect import Indirect


class OutsideTensor(NkiTensor):
    """A view whose pattern leaves its tensor: it may be made, and refuses every use.

    Published kernels make the views of all rounds of a loop and use those that a condition, stated later, lets through.
    """

    __slots__ = ("_message",)

    def __init__(self, tensor: View, layout: Layout, dtype: DType, message: str) -> None:
        self._message = message
        self._set(layout, dtype, tensor.storage, tensor.buffer, tensor.name, None)

    # What an instruction, and each method that makes a view of this one, asks for before it looks at an element.
    @property
    def _indirect(self) -> NoReturn:
        raise OutOfRangeError(self._message)

    @_indirect.setter
    def _indirect(self, indirect: Indirect | None) -> None:
        """A static view has none."""
