# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The accumulation of matmul products in PSUM: a product overwrites, or is added to the results of earlier matmuls.

Sources: docstrings of ``nc_matmul`` and ``nc_matmul_mx``; ``nki/guides/architecture/trainium3_arch.rst`` (BF16 Matmul
Results in PSUM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...memory.written import WrittenMap
from ...numerics.casts import store_float
from ...tensors.tensor import NkiTensor
from ...terms.enums import nc_version
from ...terms.errors import NkiValidationError
from ..actions import act

_TRN3 = nc_version.gen4.value


def overwrites(core: Core, dst: NkiTensor, accumulate: bool | None) -> bool:
    """Return whether a matmul into ``dst`` certainly overwrites all of its elements, and adds to none."""
    if accumulate is not None:
        return not accumulate
    storage = dst.storage
    return storage.accumulated.is_untouched and (core.version_number != _TRN3 or storage.written.is_untouched)


def accumulate_in_psum(
    core: Core,
    dst: NkiTensor,
    product: Callable[..., npt.NDArray[Any]],
    operands: Sequence[NkiTensor],
    accumulate: bool | None,
) -> None:
    """Store a product in ``dst``: added to the existing elements, in float32, or in place of them.

    Args:
        core: the core that runs the matmul.
        dst: the PSUM tile.
        product: a function of the arrays of the operands. It returns as many float32 elements as ``dst`` has, in
            row-major order, in an array that may be overwritten.
        operands: the operands of the matmul.
        accumulate: True adds, False overwrites, None adds to elements that hold a matmul result (on trn3: to all that
            were written) and overwrites the others.

    Raises:
        NkiValidationError: if ``accumulate`` is True and an element holds nothing to add to.
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


def _pass_over(core: Core, dst: NkiTensor, accumulate: bool | None) -> None:
    """Check and mark the elements of a product in a launch that leaves out its values, without computing it."""
    accumulated, width = dst.storage.accumulated, dst.storage.width_of(dst.dtype)
    if accumulate and not accumulated.is_written(dst.layout, width):
        _summed_elements(core, dst, is_demanded=True)
    accumulated.mark(dst.layout, width)


def _summed_elements(core: Core, dst: NkiTensor, is_demanded: bool) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements of ``dst`` that hold a matmul result, or on trn3 any value: a matmul adds to them.

    Raises:
        NkiValidationError: if ``is_demanded`` and some elements hold none.
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


def _elements_in(elements: WrittenMap, dst: NkiTensor) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements of ``dst`` that are marked in the map ``elements``."""
    if elements.is_full:
        return np.ones(dst.shape, np.bool_)
    return np.asarray(elements.mask_of(dst.layout, dst.storage.width_of(dst.dtype)).all(axis=-1))
