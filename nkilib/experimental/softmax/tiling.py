# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of a launch along any axis (:class:`SoftmaxTiling`), and its choice (:func:`choose_softmax_tiling`).

For host code; arithmetic only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, Final, NamedTuple

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.host.sizes import dtype_name
from nkilib.core.plan_limits import PlanLimits, limits_in_force
from nkilib.core.rows.row_plan import RowPlan
from nkilib.experimental.softmax.kernels import RANK_MAX
from nkilib.experimental.softmax.rows import forward_plan
from nkilib.experimental.softmax.rows_backward import backward_plan
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind
from nkilib.nki import nl

__all__ = ["SoftmaxTiling"]

_TYPES: Final = {"bfloat16": nl.bfloat16, "float16": nl.float16, "float32": nl.float32}
_DIRECTIONS: Final = ("forward", "backward")
# The cores that share the rows of a launch: results must not depend on how many there are.
_CORES: Final = 2
# The shortest row that is spread over partitions that would be idle, and the fewest elements of its parts.
_LEAST_SPREAD_ROW: Final = {"forward": 2048, "backward": 1000}
_LEAST_WIDTH: Final = 192


class SoftmaxTiling(NamedTuple):
    """The tiling of a launch, to pass to a kernel: ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: the maximum number of elements per partition that an instruction processes; None means the number
            that is modelled to be fastest.
        partitions_per_row: the minimum number of partitions that hold a row along the last axis; None means as few as
            can hold the row.
    """

    chunk_size: int | None = None
    partitions_per_row: int | None = None


def choose_softmax_tiling(
    shape: Sequence[int], axis: int, dtype: Any, direction: str, *, kind: Kind = Kind.SOFTMAX
) -> SoftmaxTiling:
    """Return the tiling that is modelled to be fastest, for tensors of one type.

    If the dimensions after the axis have more than one element, the result is ``SoftmaxTiling()``, and the kernel
    chooses the tiling itself. Otherwise the axis gives rows, and the result differs from the kernel's default if the
    rows, divided over two cores, would leave partitions idle. A row is then spread over 2, 4, ... or 128 partitions, as
    many as still hold all rows of the core at once with at least 192 elements of a row on each partition. Rows of less
    than 2,048 elements in a forward, or 1,000 in a backward, are not spread.

    The rounding of results depends on the tiling, and so on the type, the size of the axis and the number of rows. Pass
    ``partitions_per_row=None`` to the kernel for results whose bits do not depend on the number of rows.

    Example::

        tiling = choose_softmax_tiling(x.shape, -1, nl.bfloat16, "forward")
        y = softmax_forward[2](x, -1, **tiling._asdict())

    Args:
        shape: the shape of the tensor.
        axis: the axis of the kernel.
        dtype: bfloat16, float16 or float32, as an NKI, numpy or torch type or as a string.
        direction: ``"forward"`` or ``"backward"``.
        kind: softmax or log-softmax.

    Raises:
        TypeError: if a size or the axis is no integer.
        ValueError: if a size, the axis, ``dtype`` or ``direction`` is not accepted.
    """
    sizes = [index(size) for size in shape]
    rank = len(sizes)
    if not 1 <= rank <= RANK_MAX or min(sizes) < 0:
        raise ValueError(
            f"choose_softmax_tiling: shape must have 1 to {RANK_MAX} sizes of at least 0, got {tuple(shape)}"
        )
    if not -rank <= index(axis) < rank:
        raise ValueError(f"choose_softmax_tiling: axis must be from {-rank} to {rank - 1}, got {axis}")
    name = dtype_name(dtype)
    if name not in _TYPES:
        raise ValueError(
            f"choose_softmax_tiling: dtype must be bfloat16, float16 or float32, got {dtype!r}; cast the tensor"
        )
    if direction not in _DIRECTIONS:
        raise ValueError(f'choose_softmax_tiling: direction must be "forward" or "backward", got {direction!r}')
    axis = index(axis) % rank
    if prod(sizes) == 0 or (prod(sizes[axis + 1 :]) > 1 and sizes[axis] > 1):
        return SoftmaxTiling()
    return _chosen(prod(sizes) // sizes[axis], sizes[axis], name, direction, kind, limits_in_force())


@lru_cache(maxsize=1024)
def _chosen(rows: int, row_size: int, name: str, direction: str, kind: Kind, limits: PlanLimits) -> SoftmaxTiling:
    """Return the tiling of rows along the last axis.

    ``limits`` is not read: as an argument it keeps cached results of other limits apart.
    """
    element = _TYPES[name]

    def plan(parts: int | None) -> RowPlan:
        if direction == "forward":
            return forward_plan(row_size, kind, element, element, None, parts)
        return backward_plan(row_size, kind, BackwardTypes(element, element, element), None, parts)

    chosen, parts = plan(None), _parts_of_few(rows, row_size, direction)
    if parts <= chosen.parts:
        return SoftmaxTiling(chosen.piece_size)
    return SoftmaxTiling(plan(parts).piece_size, parts)


def _parts_of_few(rows: int, row_size: int, direction: str) -> int:
    """Return the number of partitions over which each row is spread: 1 if there are many rows, or rows are short."""
    if row_size < _LEAST_SPREAD_ROW[direction]:
        return 1
    parts, share = 1, div_ceil(rows, _CORES)
    while 2 * parts * share <= PARTITIONS and row_size >= 2 * parts * _LEAST_WIDTH:
        parts *= 2
    return parts
