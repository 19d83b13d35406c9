"""How a matmul leaves its product in PSUM: overwriting, or adding to what earlier ones left.

Sources: docstrings of ``nc_matmul`` and ``nc_matmul_mx``; ``nki/guides/architecture/trainium3_arch.rst`` (BF16 Matmul
Results in PSUM).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...memory.written import WrittenMap
from ...numerics.casts import store_float
from ...tensors.tensor import NkiTensor
from ...terms.enums import nc_version
from ...terms.errors import NkiValidationError

_TRN3 = nc_version.gen4.value


def overwrites(core: Core, dst: NkiTensor, accumulate: bool | None) -> bool:
    """Whether a matmul into ``dst`` certainly adds to no element of it."""
    if accumulate is not None:
        return not accumulate
    storage = dst.storage
    return storage.accumulated.is_untouched and (core.version_number != _TRN3 or storage.written.is_untouched)


def accumulate_in_psum(core: Core, dst: NkiTensor, product: npt.NDArray[Any], accumulate: bool | None) -> None:
    """Store ``product`` in ``dst``: added to the element there, in float32, or in its place.

    Args:
        core: the core that runs the matmul.
        dst: the PSUM tile.
        product: as many float32 elements as ``dst`` has, in row-major order; it may be overwritten.
        accumulate: True adds, False overwrites, None adds to elements that hold a matmul result (on trn3: to all that
            were written) and overwrites the others.

    Raises:
        NkiValidationError: if ``accumulate`` is True and an element holds nothing to add to.
    """
    values = product.reshape(dst.shape)
    if not overwrites(core, dst, accumulate):
        _add_to(values, core, dst, bool(accumulate))
    store_float(dst.array, values, dst.dtype)
    dst.storage.accumulated.mark(dst.layout, dst.array.itemsize)


def _add_to(values: npt.NDArray[np.float32], core: Core, dst: NkiTensor, is_demanded: bool) -> None:
    """Add to ``values`` what ``dst`` holds of matmul results, or on trn3 of anything, which may be demanded of all."""
    summed = _elements_in(dst.storage.accumulated, dst)
    if core.version_number == _TRN3:
        summed |= _elements_in(dst.storage.written, dst)
    if is_demanded and not summed.all():
        raise NkiValidationError(
            f"accumulate=True needs 'dst' to hold a matmul result; {int((~summed).sum())} of the {dst.size} "
            f"elements of {dst} were not written by a matmul, start with accumulate=False"
        )
    np.add(values, dst.array.astype(np.float32, copy=False), out=values, where=summed)


def _elements_in(elements: WrittenMap, dst: NkiTensor) -> npt.NDArray[np.bool_]:
    """Which elements of ``dst`` the map holds."""
    if elements.is_full:
        return np.ones(dst.shape, np.bool_)
    return np.asarray(elements.mask_of(dst.layout, dst.array.itemsize).all(axis=-1))
