# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling of a launch along any axis (:class:`SoftmaxTiling`), and its choice (:func:`choose_softmax_tiling`).

For host code; arithmetic only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, Final, NamedTuple

from nkilib.core.host.sizes import dtype_name
from nkilib.experimental.softmax.kernels import RANK_MAX
from nkilib.experimental.softmax.rows import forward_plan
from nkilib.experimental.softmax.rows_backward import backward_plan
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind
from nkilib.nki import nl

__all__ = ["SoftmaxTiling"]

_TYPES: Final = {"bfloat16": nl.bfloat16, "float16": nl.float16, "float32": nl.float32}
_DIRECTIONS: Final = ("forward", "backward")


class SoftmaxTiling(NamedTuple):
    """The tiling of a launch, to pass to a kernel: ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: the maximum number of elements per partition that an instruction processes; None means the number
            that is modelled to be fastest.
    """

    chunk_size: int | None = None


def choose_softmax_tiling(
    shape: Sequence[int], axis: int, dtype: Any, direction: str, *, kind: Kind = Kind.SOFTMAX
) -> SoftmaxTiling:
    """Return the tiling that the kernels use by default, for tensors of one type.

    The rounding of results depends on the tiling. The tiling therefore depends only on the type, on the size of the
    axis, and on whether the sizes after the axis hold more than one element. If they and the axis do, the result is
    ``chunk_size=None``: the kernel then chooses the tiling of its columns itself.

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
    element = _TYPES[name]
    if direction == "forward":
        return SoftmaxTiling(forward_plan(sizes[axis], kind, element, element, None).piece_size)
    return SoftmaxTiling(backward_plan(sizes[axis], kind, BackwardTypes(element, element, element), None).piece_size)
