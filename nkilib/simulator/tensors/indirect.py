# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of an index that is read at run time: a tensor, a register or a scalar."""

from __future__ import annotations

from typing import Any

from ..terms.dtypes import COMPUTABLE, int32, int64
from ..terms.errors import NkiValidationError
from ..terms.layout import Layout
from ..terms.regions import MemoryRegion
from .registers import VirtualRegister
from .scalars import DeviceInteger, NkiScalar
from .view import View

# Of an index that an engine reads element by element.
_INDEX_TYPES = frozenset(dtype for dtype in COMPUTABLE if dtype.is_integer)


def checked_index_tensor(method: str, view: View, index: Any, kind: str, columns: int | None = 1) -> View:
    """Check that an index is an integer SBUF tensor of the documented shape, and return it in two dimensions.

    Further dimensions of size 1 are removed: the patterns of published kernels keep them.

    Args:
        method, view: the method and the view that use the index, for messages.
        index: the kernel's argument.
        kind: ``"scalar"`` or ``"vector"``.
        columns: the number of elements per partition; None for any number.

    Raises:
        NkiValidationError: if it is not; the message names the method and the requirement.
    """
    wrong = _violation(index, kind, columns)
    if wrong:
        raise NkiValidationError(f"NkiTensor.{method} on {view}: the {kind} offset must {wrong}")
    return _in_two_dimensions(index)


def _violation(index: Any, kind: str, columns: int | None) -> str:
    """Return the requirement that an index violates, as text after "must"; an empty string if there is none."""
    wanted = "(1, 1)" if kind == "scalar" else "(P, 1)" if columns == 1 else "(P, 1) or (P, N)"
    shape = getattr(index, "shape", None)
    if shape is None or not hasattr(index, "buffer"):
        return f"be an SBUF tensor of shape {wanted}, got {index!r}"
    if index.buffer is not MemoryRegion.sbuf or not index.dtype.is_integer:
        return f"be an integer tensor in SBUF, got {index}"
    if index.dtype == int64:
        return f"have 32 bits or fewer, got {index}; nisa.scalar_load takes one of 64"
    if index.is_indirect():
        return f"not be an indirect view itself, got {index}"
    flat = _in_two_dimensions(index).shape
    if len(flat) != 2 or columns not in (None, flat[1]) or (kind == "scalar" and shape[0] != 1):
        return f"have shape {wanted}, got {index}"
    return ""


def _in_two_dimensions(index: View) -> View:
    """Return an index tensor without its free dimensions of size 1; if all are of size 1, the last one stays."""
    if len(index.shape) <= 2:
        return index
    free = [dim for dim in range(1, index.ndim) if index.shape[dim] != 1] or [index.ndim - 1]
    shape, strides = (tuple(sizes[dim] for dim in (0, *free)) for sizes in (index.shape, index.strides))
    return index.with_layout(Layout(shape, strides, index.offset))


def checked_scalar_index(method: str, view: View, index: Any) -> View | DeviceInteger:
    """Check that an index is a register, a scalar or an integer SBUF tensor of shape (1, 1), and return it.

    The tensor is returned in two dimensions.

    Raises:
        NkiValidationError: if it is not; the message names the method and the requirement.
    """
    if isinstance(index, VirtualRegister):
        return index
    if isinstance(index, NkiScalar):
        if view.is_on_chip() and index.dtype != int32:
            raise NkiValidationError(
                f"NkiTensor.{method} on {view}: on chip the scalar offset must be an int32, got {index}; "
                f"nisa.scalar_load it from a tensor of int32"
            )
        return index
    return checked_index_tensor(method, view, index, "scalar")


def check_offsets(owner: str, index: Any, partitions: int) -> None:
    """Check that the index of ``NkiTensor.indirect`` is an integer SBUF tensor of shape (``partitions``, K).

    Raises:
        NkiValidationError: if it is not; the message names ``owner`` and the requirement.
    """
    is_in_sbuf = hasattr(index, "buffer") and str(index.buffer) == "sbuf"
    if not is_in_sbuf or index.dtype not in _INDEX_TYPES or index.is_indirect():
        raise NkiValidationError(f"{owner}: the index must be a static integer tensor in SBUF, got {index!r}")
    if len(index.shape) != 2 or index.shape[0] != partitions:
        raise NkiValidationError(f"{owner}: the index must have shape ({partitions}, K), got {index}")
