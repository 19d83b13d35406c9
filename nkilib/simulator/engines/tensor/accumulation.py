# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Accumulation of matmul products in PSUM: a product overwrites the results of earlier matmuls, or is added to them.

:func:`accumulate_in_psum` computes the product at once. :func:`defer_product` defers it until an instruction reads the
sum (:class:`SumOfProducts`).

A kernel adds the products of tiles of 128 rows, one matmul after the other. Casting the operands of each matmul takes
up to twice as long as casting the adjacent operands of several matmuls together. The result of a matmul is therefore
deferred (see memory/deferred.py), and the next matmul that adds to the same elements joins the same sum. The sum is
computed before

- any other instruction reads or writes elements of the PSUM tensor, or
- an instruction changes an operand.

A *run* is a series of products whose operands are adjacent in their tiles, ``tile[:, k, :]`` for k = 0, 1, ... The
operands of a run have one float32 copy, which is kept until they change. The product of each k is computed separately
and added to the previous products, as in PSUM. One product over all k would save up to a tenth of the time, but BLAS
sums it in one accumulator, in its own order: the error of a sum of 512 products was then two to three times as large,
and its size depended on the CPU.

Sources: docstrings of ``nc_matmul`` and ``nc_matmul_mx``; ``nki/guides/architecture/trainium3_arch.rst`` (BF16 Matmul
Results in PSUM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...memory.deferred import Deferred
from ...memory.storage import Storage
from ...memory.written import WrittenMap
from ...numerics.casts import store_float, to_float32
from ...numerics.products import transposed_product
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import DType, float32
from ...terms.enums import nc_version
from ...terms.errors import NkiValidationError
from ...terms.layout import Layout
from ..actions import act
from ..rowwise import Float32s

_TRN3 = nc_version.gen4.value


def overwrites(core: Core, dst: NkiTensor, accumulate: bool | None) -> bool:
    """Return whether it is certain that a matmul into ``dst`` overwrites all elements and adds to none."""
    if accumulate is not None:
        return not accumulate
    storage = dst.storage
    return storage.accumulated.is_untouched and (core.version_number != _TRN3 or storage.written.is_untouched)


def _elements_in(elements: WrittenMap, dst: NkiTensor) -> npt.NDArray[np.bool_]:
    if elements.is_full:
        return np.ones(dst.shape, np.bool_)
    return np.asarray(elements.mask_of(dst.layout, dst.storage.width_of(dst.dtype)).all(axis=-1))


def _summed_elements(core: Core, dst: NkiTensor, is_demanded: bool) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements of ``dst`` to which a matmul can add: those that hold a matmul result.

    On trn3 these are all elements that were written.

    Raises:
        NkiValidationError: ``is_demanded`` is set, and the mask is not true for all elements.
    """
    summed = _elements_in(dst.storage.accumulated, dst)
    if core.version_number == _TRN3:
        summed |= _elements_in(dst.storage.written, dst)
    if is_demanded and not summed.all():
        raise NkiValidationError(
            f"accumulate=True needs 'dst' to hold a matmul result; {int((~summed).sum())} of the {dst.size} "
            f"elements of {dst} were not written by a matmul, start with accumulate=False"
        )
    return summed


def _pass_over(core: Core, dst: NkiTensor, accumulate: bool | None) -> None:
    """Make the checks and marks of a matmul into ``dst``, in a launch that computes no values."""
    accumulated, width = dst.storage.accumulated, dst.storage.width_of(dst.dtype)
    if accumulate and not accumulated.is_written(dst.layout, width):
        _summed_elements(core, dst, is_demanded=True)
    accumulated.mark(dst.layout, width)


def accumulate_in_psum(
    core: Core,
    dst: NkiTensor,
    product: Callable[..., npt.NDArray[Any]],
    operands: Sequence[NkiTensor],
    accumulate: bool | None,
) -> None:
    """Store a product in ``dst``: add it to the existing elements in float32, or overwrite them.

    Args:
        core: the core that runs the matmul.
        dst: the PSUM tile.
        product: a function of the arrays of the operands. It returns as many float32 elements as ``dst`` has, in
            row-major order, in an array that may be overwritten.
        operands: the operands of the matmul.
        accumulate: True adds, False overwrites, None adds to elements that hold a matmul result (on trn3: to all
            written elements) and overwrites the other elements.

    Raises:
        NkiValidationError: ``accumulate`` is True and an element holds nothing to add to.
    """
    if dst.storage.is_abstract:
        _pass_over(core, dst, accumulate)
        return
    dtype, is_overwritten = dst.dtype, overwrites(core, dst, accumulate)
    summed = None if is_overwritten else _summed_elements(core, dst, bool(accumulate))
    dst.storage.accumulated.mark(dst.layout, dst.storage.width_of(dst.dtype))
    if is_overwritten:

        def store(into: npt.NDArray[Any], *elements: npt.NDArray[Any]) -> None:
            store_float(into, product(*elements), dtype)

        act(core, store, writes=(dst,), reads=operands)
    else:

        def add(into: npt.NDArray[Any], *elements: npt.NDArray[Any]) -> None:
            values = product(*elements).reshape(into.shape)
            np.add(values, into.astype(np.float32, copy=False), out=values, where=summed)
            store_float(into, values, dtype)

        act(core, add, updates=(dst,), reads=operands)


def _emit(core: Core, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, accumulate: bool | None) -> bool:
    """Record the product in the replay plan that is being made, if it overwrites all elements or adds to all.

    Returns:
        Whether the product was recorded.
    """
    assert core.emitter is not None
    is_overwritten = overwrites(core, dst, accumulate)
    if not is_overwritten and not dst.storage.accumulated.is_written(dst.layout, dst.dtype.itemsize):
        return False
    core.emitter.multiply(dst, stationary, moving, not is_overwritten)
    dst.storage.accumulated.mark(dst.layout, dst.dtype.itemsize)
    return True


def _are_dense(*tiles: NkiTensor) -> bool:
    return not any([len(tile.shape) != 2 or tile.strides[1] != 1 for tile in tiles])  # a generator takes twice as long


def _float32_matrix(storage: Storage, layout: Layout, dtype: DType) -> Float32s:
    rows, count, columns = layout.shape
    return to_float32(storage.array(layout, storage.numpy_type_of(dtype))).reshape(rows * count, columns)


class _Side:
    """The left or the right operands of a run: views of one storage and shape at a common distance from each other.

    Attributes:
        storage: the storage of the views.
        count: the number of views.
    """

    __slots__ = ("_distance", "_dtype", "_first", "count", "storage")

    def __init__(self, tile: NkiTensor) -> None:
        self.storage = tile.storage
        self._first = tile.layout
        self._dtype = tile.dtype
        self._distance = 0
        self.count = 1

    def goes_on_with(self, tile: NkiTensor) -> bool:
        """Return whether ``tile`` continues the series: it has the views' shape, and follows at the common distance."""
        if tile.storage is not self.storage or tile.dtype is not self._dtype:
            return False
        shape, strides, offset = tile.layout
        if shape != self._first.shape or strides != self._first.strides:
            return False
        return self.count == 1 or offset == self._first.offset + self.count * self._distance

    def add(self, tile: NkiTensor) -> None:
        if self.count == 1:
            self._distance = tile.offset - self._first.offset
        self.count += 1

    def matrix(self) -> Float32s:
        """Return all views as one float32 matrix: the first row of every view, then the second row of every view, and
        so on.
        """
        (rows, columns), (step, _), offset = self._first
        layout = Layout((rows, self.count, columns), (step, self._distance, 1), offset)
        make = partial(_float32_matrix, self.storage, layout, self._dtype)
        return self.storage.derive().copy_of(layout, self._dtype, make)


class _Run:
    """Successive products whose left operands form a :class:`_Side`, and whose right operands form another one."""

    __slots__ = ("left", "right")

    def __init__(self, stationary: NkiTensor, moving: NkiTensor) -> None:
        self.left, self.right = _Side(stationary), _Side(moving)

    def goes_on_with(self, stationary: NkiTensor, moving: NkiTensor) -> bool:
        return self.left.goes_on_with(stationary) and self.right.goes_on_with(moving)

    def add(self, stationary: NkiTensor, moving: NkiTensor) -> None:
        self.left.add(stationary)
        self.right.add(moving)

    def factors(self, rows: slice, columns: slice) -> Iterator[tuple[Float32s, Float32s]]:
        """Yield the two factors of each product: the columns ``rows`` of the left operand (the product transposes it),
        and the columns ``columns`` of the right one.
        """
        left, right, count = self.left.matrix()[:, rows], self.right.matrix()[:, columns], self.left.count
        return ((left[number::count], right[number::count]) for number in range(count))


class SumOfProducts:
    """The deferred sum of the products of several matmuls into one matrix of PSUM.

    Args:
        target: the matrix.
        is_added: whether the products are added to the present elements of the matrix.

    Attributes:
        layout: the layout of the matrix.
        operands: the storages of the factors.
    """

    __slots__ = ("_is_added", "_runs", "_target", "layout", "operands")

    def __init__(self, target: NkiTensor, is_added: bool) -> None:
        self._target = target.storage
        self._is_added = is_added
        self._runs: list[_Run] = []
        self.layout = target.layout
        self.operands: set[Storage] = set()

    def add(self, stationary: NkiTensor, moving: NkiTensor) -> None:
        """Add the product ``stationary.T @ moving`` of two tiles to the sum."""
        if self._runs and self._runs[-1].goes_on_with(stationary, moving):
            self._runs[-1].add(stationary, moving)
            return
        self._runs.append(_Run(stationary, moving))
        for tile in (stationary, moving):
            self.operands.add(tile.storage)
            tile.storage.derive().readers.add(self._target)

    def __call__(self, elements: npt.NDArray[Any], rows: slice, columns: slice) -> None:
        """Write the sums in ``rows`` and ``columns`` of the matrix into ``elements``, an array of exactly their
        size.
        """
        product: Float32s | None = None  # one array for all products that are added: fresh memory costs more
        is_begun = self._is_added
        for run in self._runs:
            for left, right in run.factors(rows, columns):
                if is_begun:
                    product = transposed_product(left, right, product)
                    np.add(elements, product, out=elements)
                else:
                    transposed_product(left, right, elements)
                is_begun = True


def defer_product(
    core: Core, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, accumulate: bool | None
) -> bool:
    """Defer the product of two tiles until ``dst`` is read, if possible.

    Deferring needs a float32 ``dst`` in PSUM and non-empty matrices with dense rows, and the product must either
    overwrite all elements or be added to all elements.

    Args:
        core: the core that runs the matmul.
        dst: the PSUM tile.
        stationary, moving: the operands; the product is ``stationary.T @ moving``.
        accumulate: the argument of ``nc_matmul``.

    Returns:
        Whether the product was deferred.
    """
    storage = dst.storage
    if dst.size == 0 or dst.dtype != float32 or not _are_dense(dst, stationary, moving):
        return False
    if core.emitter is not None:
        return _emit(core, dst, stationary, moving, accumulate)
    if storage.is_abstract:
        return False
    waiting = storage.parts[-1].content.write if storage.parts else None
    if accumulate is not False and isinstance(waiting, SumOfProducts) and dst.layout == waiting.layout:
        waiting.add(stationary, moving)
        return True
    if overwrites(core, dst, accumulate):
        waiting = SumOfProducts(dst, is_added=False)
    elif storage.accumulated.is_written(dst.layout, dst.dtype.itemsize):
        storage.settle()
        waiting = SumOfProducts(dst, is_added=True)
    else:
        return False
    waiting.add(stationary, moving)
    storage.defer(Deferred(dst.layout, dst.dtype, waiting, operands=waiting.operands, may_grow=True))
    storage.accumulated.mark(dst.layout, dst.dtype.itemsize)
    return True
