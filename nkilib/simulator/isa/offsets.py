# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Resolution of a view with a scalar offset, when an instruction uses it, to the static view at that offset."""

from __future__ import annotations

from ..tensors.partitions import partition_elements
from ..tensors.tensor import NkiTensor
from ..tensors.view import Indirect
from ..terms.errors import NkiValidationError, OutOfRangeError
from ..terms.layout import Layout, extent
from ..terms.spec import DataNeeded


def resolve_scalar_offset(name: str, view: NkiTensor) -> NkiTensor:
    """Return the static view to which a view with a scalar offset points now.

    In a launch without data the value of the offset is not known; the view is then that of offset 0.

    Raises:
        OutOfRangeError: if it points outside the tensor.
        NkiValidationError: if the view has a vector offset.
    """
    indirect = view.indirect_access
    assert indirect is not None
    if indirect.kind == "vector":
        raise NkiValidationError(f"operand {name!r}: only DMA accepts a view with a vector offset, got {view}")
    index = _index(indirect)
    if not 0 <= index < indirect.limit:
        raise OutOfRangeError(f"operand {name!r}: {indirect.out_of_range(0, index)}")
    target = Layout(view.shape, view.strides, view.offset + index * indirect.stride)
    low, high = extent(target)
    elements = view.storage.elements_of(view.dtype)
    if low < 0 or high >= elements:
        raise OutOfRangeError(
            f"operand {name!r}: index {index} moves {view} to elements {low} to {high} of a storage of {elements}"
        )
    if view.is_on_chip():
        _check_stays_in_partitions(name, view, index, target.offset)
    return view.with_layout(target)


def _index(indirect: Indirect) -> int:
    """Return the value of a scalar offset; 0 if it is not known, since shape, checks and costs do not depend on it."""
    try:
        (index,) = indirect.read()
    except DataNeeded:
        return 0
    return int(index)


def _check_stays_in_partitions(name: str, view: NkiTensor, index: int, offset: int) -> None:
    """Check that an index moves an on-chip view within its partitions, never into the neighbouring one."""
    row = partition_elements(view)
    static = view.offset % row
    low, high = extent(Layout(view.shape[1:], view.strides[1:], static + offset - view.offset))
    if low < 0 or high >= row:
        raise OutOfRangeError(
            f"operand {name!r}: index {index} moves {view} to elements {low} to {high} of partitions of {row}"
        )
