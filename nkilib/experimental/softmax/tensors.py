# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tensors of a softmax launch: views [O, C, I] around an axis, element types, and the softmax mode.

:func:`around_axis` makes the views (:class:`Matrices`); :class:`Kind` is the mode, softmax or log-softmax;
:class:`BackwardTypes` has the types of the backward.

All tensors of a launch have one shape; their strides may differ. Dimensions *inside* the axis have smaller strides than
the axis, dimensions *outside* it larger ones. C is the size of the axis, O is the product of merged outside dimensions,
and I that of merged inside dimensions; dimensions can be merged if they are contiguous in all tensors. The tensors have
one *part* for each index of the dimensions that are not merged; a kernel processes the parts one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import prod
from typing import NamedTuple

from nkilib.nki import nl


class Kind(Enum):
    """The softmax mode: whether the output is softmax or log-softmax."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"


class BackwardTypes(NamedTuple):
    """The element types of the backward's tensors: ``grad`` is that of dy, ``output`` of y and ``grad_x`` of dx."""

    grad: nl.DType
    output: nl.DType
    grad_x: nl.DType


@dataclass(frozen=True)
class Matrices:
    """Views [O, C, I] of the same part of several tensors, all of one shape."""

    tensors: tuple[nl.NkiTensor, ...]

    def squeezed(self) -> Matrices:
        """Return the views as [O, C], for views with I = 1."""
        return Matrices(tuple(tensor_hbm.squeeze_dim(2) for tensor_hbm in self.tensors))


def _sides(tensors: tuple[nl.NkiTensor, ...], axis: int) -> tuple[list[int], list[int]]:
    """Return the dimensions outside the axis, and those inside it, each list with the largest strides first."""
    outer, inner = [], []
    for dim, size in enumerate(tensors[0].shape):
        if dim == axis or size == 1:
            continue
        is_inner = [tensor_hbm.strides[dim] < tensor_hbm.strides[axis] for tensor_hbm in tensors]
        if tensors[0].shape[axis] == 1:
            outer.append(dim)
        elif all(is_inner) or (any(is_inner) and dim > axis):
            inner.append(dim)
        else:
            outer.append(dim)
    strides = tensors[-1].strides
    return sorted(outer, key=lambda dim: -strides[dim]), sorted(inner, key=lambda dim: -strides[dim])


def _follow(tensor_hbm: nl.NkiTensor, dim: int, next_dim: int) -> bool:
    return bool(tensor_hbm.strides[dim] == tensor_hbm.shape[next_dim] * tensor_hbm.strides[next_dim])


def _longest(tensors: tuple[nl.NkiTensor, ...], dims: list[int]) -> list[int]:
    """Return the run of mergeable dimensions (contiguous in every tensor) that has the most elements."""
    runs: list[list[int]] = []
    for dim in dims:
        if runs and all(_follow(tensor_hbm, runs[-1][-1], dim) for tensor_hbm in tensors):
            runs[-1].append(dim)
        else:
            runs.append([dim])
    shape = tensors[0].shape
    return max(runs, key=lambda run: prod(shape[dim] for dim in run), default=[])


def _part(tensor_hbm: nl.NkiTensor, left: list[int], index: tuple[int, ...], kept: tuple[int, ...]) -> nl.NkiTensor:
    """Return a view of the dimensions ``kept``, in this order, at position ``index`` of the dimensions ``left``."""
    for dim, position in sorted(zip(left, index, strict=True), reverse=True):
        tensor_hbm = tensor_hbm.select(dim, position)
    remaining = sorted(kept)
    return tensor_hbm.permute([remaining.index(dim) for dim in kept])


def around_axis(tensors: tuple[nl.NkiTensor, ...], axis: int) -> list[Matrices]:
    """Return the views [O, C, I] of every part of the tensors; all parts have the same shape.

    Args:
        tensors: tensors of one shape.
        axis: the axis of the softmax, not negative.
    """
    outer, inner = _sides(tensors, axis)
    kept_outer, kept_inner = _longest(tensors, outer), _longest(tensors, inner)
    kept = (*kept_outer, axis, *kept_inner)
    shape = tensors[0].shape
    left = [dim for dim in range(len(shape)) if dim not in kept]
    sizes = (prod(shape[dim] for dim in kept_outer), shape[axis], prod(shape[dim] for dim in kept_inner))
    return [
        Matrices(tuple(_part(tensor_hbm, left, index, kept).reshape(sizes) for tensor_hbm in tensors))
        for index in product(*(range(shape[dim]) for dim in left))
    ]
