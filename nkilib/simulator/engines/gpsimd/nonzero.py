# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nonzero_with_count``: each GpSimd core lists the nonzero elements in the first of its 16 partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...hardware.limits import GPSIMD_CORE_PARTITIONS
from ...isa.checks import same_partitions
from ...isa.operand import SBUF, Operand, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...machine.operands import check_written
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import float32, int32
from ...terms.enums import Engine, nc_version
from ...terms.errors import NkiValidationError
from ...terms.layout import Layout
from ...timing import costs
from ..actions import act

_INT32 = np.iinfo(np.int32)


@instruction(
    operands=(
        output("dst", regions=SBUF, dtypes=frozenset({int32}), marks_itself=True, may_leave=True),
        Operand("src", regions=SBUF, dtypes=frozenset({float32, int32}), is_accessed=False),
    ),
    on=(Engine.gpsimd,),
    since=nc_version.gen3,
    cost=costs.assumed("src"),
)
def nonzero_with_count(
    call: Call, dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1
) -> None:
    """List the indices of the nonzero elements of partitions 0, 16, 32, ..., and their number.

    A partition of ``dst`` has one element more than one of ``src``: first the indices, counted from ``index_offset``,
    then ``padding_val``, and in the last element the number of indices. The other partitions are neither read nor
    written. The instruction needs trn2 or newer.
    """
    same_partitions({"dst": dst, "src": src}, "src", "dst")
    width = src.free_size
    if dst.free_size != width + 1:
        raise NkiValidationError(
            f"operand 'dst' must have {width + 1} elements per partition, one more than 'src', got {dst}"
        )
    _require_int32("index_offset", index_offset)
    _require_int32("padding_val", padding_val)
    read, written = _first_partitions(src), _first_partitions(dst)
    check_written(call.core, "src", read)
    cores, columns = read.shape[0], np.arange(width)

    def list_nonzero(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        is_nonzero = elements.reshape(cores, width) != 0
        counts = is_nonzero.sum(axis=1, keepdims=True)
        # Zeros sort behind the nonzero elements, which stay in order.
        indices = np.argsort(~is_nonzero, axis=1, kind="stable") + index_offset
        listed = np.where(columns < counts, indices, padding_val)
        np.copyto(into, np.concatenate([listed, counts], axis=1).reshape(into.shape), casting="unsafe")

    act(call.core, list_nonzero, writes=(written,), reads=(read,))
    written.storage.written.mark(written.layout, written.storage.width_of(written.dtype))


def _first_partitions(tensor: NkiTensor) -> NkiTensor:
    """Return a view of every 16th partition of a tile."""
    cores = -(-tensor.shape[0] // GPSIMD_CORE_PARTITIONS)
    strides = (GPSIMD_CORE_PARTITIONS * tensor.strides[0], *tensor.strides[1:])
    return tensor.with_layout(Layout((cores, *tensor.shape[1:]), strides, tensor.offset))


def _require_int32(name: str, value: Any) -> None:
    if not isinstance(value, int | np.integer) or not _INT32.min <= value <= _INT32.max:
        raise NkiValidationError(f"{name} must be an int32, got {value!r}")
