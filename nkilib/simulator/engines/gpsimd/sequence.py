# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``sequence_bounds``: the first and last positions of the segments of a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.operand import SBUF, Operand, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import float32, int32
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..actions import act

_TYPES = frozenset({float32, int32})
_NO_END = -1


@instruction(
    operands=(output("dst", regions=SBUF, dtypes=_TYPES), Operand("segment_ids", regions=SBUF, dtypes=_TYPES)),
    on=(Engine.gpsimd,),
    cost=costs.assumed("dst"),
)
def sequence_bounds(call: Call, dst: NkiTensor, segment_ids: NkiTensor) -> None:
    """Find, for each of n elements, the begin (``dst[0, 0]``) and the end (``dst[0, 1]``) of its segment.

    A segment is a run of equal ids; the end is the index of the first element after it. Elements with id 0 are
    padding: they begin at n and end at -1. ``segment_ids`` has shape (1, n), ``dst`` shape (1, 2, n).

    Raises:
        NkiValidationError: if a shape does not fit, or an id is not an integer or negative.
    """
    if segment_ids.ndim != 2 or segment_ids.shape[0] != 1:
        raise NkiValidationError(f"operand 'segment_ids' must have shape (1, n), got {segment_ids}")
    length = segment_ids.shape[1]
    if dst.shape != (1, 2, length):
        raise NkiValidationError(f"operand 'dst' must have shape (1, 2, {length}), got {dst}")
    if dst.storage.is_abstract:
        segment_ids.storage.need_values(segment_ids)
        _check_ids(segment_ids.array[0])
    act(call.core, _bound, writes=(dst,), reads=(segment_ids,))


def _bound(into: npt.NDArray[Any], segment_ids: npt.NDArray[Any]) -> None:
    ids = segment_ids[0]
    _check_ids(ids)
    length = len(ids)
    begins = np.ones(length, np.bool_)
    begins[1:] = ids[1:] != ids[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], length)
    run = np.cumsum(begins) - 1
    bounds = np.where(ids == 0, [[length], [_NO_END]], [starts[run], ends[run]])
    np.copyto(into, bounds[None], casting="unsafe")


def _check_ids(ids: npt.NDArray[Any]) -> None:
    is_wrong = ~(ids >= 0) | (ids != np.floor(ids)) | ~np.isfinite(ids)
    if is_wrong.any():
        position = int(is_wrong.argmax())
        raise NkiValidationError(
            f"operand 'segment_ids' must hold non-negative integers, got {ids[position]} at index {position}"
        )
