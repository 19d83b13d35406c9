# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views of all elements of a tensor in another shape, order or type.

Source: docstrings of the methods of ``NkiTensor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..terms.dtypes import DType, as_dtype
from ..terms.errors import NkiValidationError, OutOfRangeError
from ..terms.integers import as_integer, as_integers
from ..terms.layout import reshape_strides, row_major_strides
from .rearrangement import Rearrangement, completed
from .view import View

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from 3.11 on


class ReshapedViews(View):
    """The methods of ``NkiTensor`` that keep every element."""

    __slots__ = ()

    def _reshape(self, shape: Sequence[int]) -> Self:
        """See :meth:`NkiTensor.reshape`."""
        new_shape = as_integers("NkiTensor.reshape: shape", shape)
        if min(new_shape, default=0) < 0:
            raise NkiValidationError(
                f"NkiTensor.reshape: sizes must not be negative, got {list(new_shape)} for {self}; reshape_dim takes "
                f"one -1, for what the other sizes leave"
            )
        if prod(new_shape) != self.size:
            raise NkiValidationError(
                f"NkiTensor.reshape: {self} has {self.size} elements, {list(new_shape)} has {prod(new_shape)}"
            )
        keeps_first = self._keeps_first_dimension()
        if keeps_first and new_shape[:1] != self.shape[:1]:
            raise NkiValidationError(
                f"NkiTensor.reshape: dimension 0 of {self} counts partitions and must stay {self.shape[0]}, "
                f"got {list(new_shape)}"
            )
        if self.is_on_chip() and len(new_shape) < 2:
            raise NkiValidationError(
                f"NkiTensor.reshape: an on-chip tensor has a partition and at least one free dimension, got "
                f"{list(new_shape)} for {self}"
            )
        first = 1 if keeps_first else 0
        strides = reshape_strides(self.shape[first:], self.strides[first:], new_shape[first:])
        if strides is None:
            raise NkiValidationError(
                f"NkiTensor.reshape: {self} with strides {self.strides} cannot become {list(new_shape)} without a copy"
            )
        return self._with(new_shape, (*self.strides[:first], *strides))

    def _permute(self, dims: Sequence[int]) -> Self:
        """See :meth:`NkiTensor.permute`."""
        order = as_integers("NkiTensor.permute: dims", dims)
        if sorted(order) != list(range(self.ndim)):
            raise NkiValidationError(
                f"NkiTensor.permute: dims must be a permutation of 0..{self.ndim - 1}, got {order}"
            )
        if order[0] != 0 and self._keeps_first_dimension():
            raise NkiValidationError(f"NkiTensor.permute: dimension 0 of {self} must stay first, got {order}")
        return self._with([self.shape[dim] for dim in order], [self.strides[dim] for dim in order])

    def _broadcast(self, dim: int, size: int) -> Self:
        """See :meth:`NkiTensor.broadcast`."""
        dim = self._check_dim("broadcast", dim)
        if self.indirect_access is not None and self.indirect_access.dim == dim:
            raise NkiValidationError(f"NkiTensor.broadcast: dimension {dim} of {self} is indirect")
        size = as_integer("NkiTensor.broadcast: size", size)
        if size < 1:
            raise NkiValidationError(f"NkiTensor.broadcast: size must be at least 1, got {size}")
        if self.shape[dim] != 1 or (dim == 0 and self.is_on_chip()):
            raise NkiValidationError(
                f"NkiTensor.broadcast: dimension {dim} of {self} must have size 1 and not be the partition dimension"
            )
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self._with(shape, strides)

    def _expand_dim(self, dim: int) -> Self:
        """See :meth:`NkiTensor.expand_dim`."""
        if not isinstance(dim, int | np.integer) or not -self.ndim - 1 <= dim <= self.ndim:
            raise OutOfRangeError(f"NkiTensor.expand_dim: dim must be in [0, {self.ndim}] of {self}, got {dim!r}")
        at = int(dim) % (self.ndim + 1)
        self._check_not_first("expand_dim", at)
        # Any stride serves a dimension of size 1; this one keeps a dense view's strides descending.
        stride = self.shape[at] * self.strides[at] if at < self.ndim else 1
        return self._with((*self.shape[:at], 1, *self.shape[at:]), (*self.strides[:at], stride, *self.strides[at:]))

    def _squeeze_dim(self, dim: int) -> Self:
        """See :meth:`NkiTensor.squeeze_dim`."""
        dim = self._check_dim("squeeze_dim", dim)
        self._check_not_first("squeeze_dim", dim)
        if self.shape[dim] != 1:
            raise NkiValidationError(f"NkiTensor.squeeze_dim: dimension {dim} of {self} must have size 1")
        if self.ndim == (2 if self.is_on_chip() else 1):
            raise NkiValidationError(f"NkiTensor.squeeze_dim: {self} must keep a dimension besides its partitions")
        return self._with((*self.shape[:dim], *self.shape[dim + 1 :]), (*self.strides[:dim], *self.strides[dim + 1 :]))

    def _reshape_dim(self, dim: int, shape: Sequence[int]) -> Self:
        """See :meth:`NkiTensor.reshape_dim`."""
        dim = self._check_dim("reshape_dim", dim)
        sizes = completed(f"NkiTensor.reshape_dim of dimension {dim} of {self}", self.shape[dim], shape)
        if len(sizes) != 1 or not self.is_on_chip():
            self._check_not_first("reshape_dim", dim)
        strides = [stride * self.strides[dim] for stride in row_major_strides(sizes)]
        return self._with(
            (*self.shape[:dim], *sizes, *self.shape[dim + 1 :]),
            (*self.strides[:dim], *strides, *self.strides[dim + 1 :]),
        )

    def _flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        """See :meth:`NkiTensor.flatten_dims`."""
        first, last = self._check_dim("flatten_dims", start_dim), self._check_dim("flatten_dims", end_dim)
        if first > last:
            raise NkiValidationError(
                f"NkiTensor.flatten_dims: start_dim must not come after end_dim, got {start_dim} and {end_dim} for "
                f"{self}"
            )
        self._check_not_first("flatten_dims", first)
        sizes = self.shape[first : last + 1]
        strides = reshape_strides(sizes, self.strides[first : last + 1], (prod(sizes),))
        if strides is None:
            raise NkiValidationError(
                f"NkiTensor.flatten_dims: dimensions {first} to {last} of {self} with strides {self.strides} are not "
                f"contiguous in memory"
            )
        return self._with(
            (*self.shape[:first], prod(sizes), *self.shape[last + 1 :]),
            (*self.strides[:first], *strides, *self.strides[last + 1 :]),
        )

    def _rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: dict[str, int] | None = None
    ) -> Self:
        """See :meth:`NkiTensor.rearrange`."""
        try:
            plan = Rearrangement(src_pattern, dst_pattern, fixed_sizes or {}, self.shape)
            view = self._with(self.shape, self.strides)
            # From the last dimension to the first, so that the numbers of those still to come do not change.
            for dim, sizes in reversed(plan.splits):
                view = view._reshape_dim(dim, sizes)
            view = view._permute(plan.order)
            for first, last in reversed(plan.merges):
                view = view._flatten_dims(first, last)
        except NkiValidationError as error:
            call = f"NkiTensor.rearrange({src_pattern!r}, {dst_pattern!r}, {fixed_sizes!r}) of {self}"
            raise NkiValidationError(f"{call}: {error}") from None
        return view

    def _check_not_first(self, method: str, dim: int) -> None:
        if dim == 0 and self._keeps_first_dimension():
            kind = "counts partitions" if self.is_on_chip() else "is indirect"
            raise NkiValidationError(f"NkiTensor.{method}: dimension 0 of {self} {kind} and must stay as it is")

    def _reinterpreted(self, dtype: DType, method: str) -> DType:
        if self.storage.is_widened and dtype != self.dtype:
            raise NkiValidationError(
                f"NkiTensor.{method}: {self} is held in float32 because NKI_PRECISE_FP=0; its bits cannot be read as "
                f"{dtype}"
            )
        if self.offset * self.dtype.itemsize % dtype.itemsize:
            raise NkiValidationError(
                f"NkiTensor.{method}: {self} starts at byte {self.offset * self.dtype.itemsize}, which is no multiple "
                f"of the {dtype.itemsize} bytes of {dtype}"
            )
        return dtype

    def _view(self, dtype: Any) -> Self:
        """See :meth:`NkiTensor.view`."""
        new = as_dtype(dtype)
        if self.indirect_access is not None:
            raise NkiValidationError(f"NkiTensor.view: {self} is indirect")
        old_width, new_width = self.dtype.itemsize, self._reinterpreted(new, "view").itemsize
        if old_width == new_width:
            return self._with(self.shape, self.strides, dtype=new)
        if self.ndim == 0 or (self.strides[-1] != 1 and self.shape[-1] != 1):
            raise NkiValidationError(
                f"NkiTensor.view: the last dimension of {self} must be dense, got strides {self.strides}"
            )
        last_bytes = self.shape[-1] * old_width
        outer = [stride * old_width for stride in self.strides[:-1]]
        if last_bytes % new_width or any(stride % new_width for stride in outer):
            raise NkiValidationError(
                f"NkiTensor.view: the {last_bytes} bytes of the last dimension of {self} and the strides before it "
                f"must be multiples of the {new_width} bytes of {new}"
            )
        shape = [*self.shape[:-1], last_bytes // new_width]
        strides = [*(stride // new_width for stride in outer), 1]
        return self._with(shape, strides, self.offset * old_width // new_width, new)
