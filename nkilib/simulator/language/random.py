# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.rand``, ``nl.random_seed`` and ``nl.dropout``.

The random numbers are reproducible, and differ from those of a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engines.dma_instructions import dma_copy
from ..engines.gpsimd.generators import dropout as dropout_elements
from ..engines.gpsimd.generators import rng, set_rng_seed
from ..engines.vector.arithmetic import tensor_scalar
from ..hardware.generations import PARTITIONS
from ..isa.operators import OPERATORS
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.enums import HBM, MemoryRegion
from ..terms.errors import NkiValidationError
from .creation import ndarray, new_tile
from .language_function import language_function
from .operands import as_tile, in_type

# Significant bits of the types, and the integers of the same width.
_SIGNIFICANT_BITS = {
    dt.float32: (24, dt.uint32),
    dt.tfloat32: (11, dt.uint32),
    dt.float16: (11, dt.uint16),
    dt.bfloat16: (8, dt.uint16),
    dt.float8_e4m3: (4, dt.uint8),
    dt.float8_e4m3fn: (4, dt.uint8),
    dt.float8_e5m2: (3, dt.uint8),
}
# Elements of a partition that one DMA of a tensor in HBM carries.
_HBM_COLUMNS = 2048


@language_function
def random_seed(seed: NkiTensor) -> None:
    """Seed the generators of :func:`rand` and :func:`dropout` with a [1, 1] tile of 32 bits, by
    ``nisa.set_rng_seed``.
    """
    set_rng_seed(seed)


def _fill(tile: NkiTensor) -> None:
    significant, integers = _SIGNIFICANT_BITS[tile.dtype]
    bits = new_tile(tile.shape, integers)
    rng(bits)
    tensor_scalar(bits, bits, OPERATORS["right_shift"], 8 * integers.itemsize - significant)
    tensor_scalar(tile, bits, OPERATORS["multiply"], 2.0**-significant)


def _fill_hbm(flat: NkiTensor) -> None:
    for start in range(0, flat.size, PARTITIONS * _HBM_COLUMNS):
        part = flat[start : min(start + PARTITIONS * _HBM_COLUMNS, flat.size)]
        columns = -(-part.size // PARTITIONS)
        rows, rest = divmod(part.size, columns)
        tile = new_tile((rows + (rest > 0), columns), flat.dtype)
        _fill(tile)
        dma_copy(part[: rows * columns].reshape((rows, columns)), tile[:rows])
        if rest:
            dma_copy(part[rows * columns :].reshape((1, rest)), tile[rows:, :rest])


@language_function
def rand(shape: Sequence[int], dtype: Any, buffer: MemoryRegion | str = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """Return a new tensor of uniform random numbers in [0, 1).

    The numbers are multiples of 2^-b, where b is the number of significant bits of ``dtype``, so that no number rounds
    up to 1. The bits come from ``nisa.rng`` on the Vector engine.

    Raises:
        NkiValidationError: ``dtype`` is not a float type that holds such numbers.
    """
    kind = dt.as_dtype(dtype)
    if kind not in _SIGNIFICANT_BITS:
        raise NkiValidationError(f"dtype must be one of {', '.join(_SIGNIFICANT_BITS)}, got {kind}")
    tensor = ndarray(shape, kind, buffer, name)
    if tensor.buffer in HBM:
        _fill_hbm(tensor.reshape((tensor.size,)))
    else:
        _fill(tensor)
    return tensor


@language_function
def dropout(x: NkiTensor, rate: float | NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return ``x`` with every element replaced by 0 with probability ``rate``, by ``nisa.dropout``; nothing is
    rescaled.

    ``rate`` is a number in [0, 1] or a tile of shape (P, 1). The result is a new tile in SBUF of type ``dtype``, by
    default the type of ``x``.
    """
    data = as_tile("x", x)
    dropped = new_tile(data.shape, data.dtype)
    dropout_elements(dropped, data, rate)
    return in_type(dropped, dtype)
