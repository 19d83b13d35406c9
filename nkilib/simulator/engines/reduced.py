# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``reduce_rows``: the reduction of each row of a tile to a few numbers, one block of rows after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..machine.core import Core
from ..numerics.casts import store_float
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import bfloat16
from .blocks import SourceRows, row_blocks
from .results import Float32s

# Computes the results of some rows, an array (rows, results), from their elements.
Reduce = Callable[[npt.NDArray[Any], Float32s], object]


def reduce_rows(core: Core, dst: NkiTensor, tile: NkiTensor, reduce: Reduce, *, reads_bfloat16: bool = False) -> None:
    """Reduce the rows of ``tile`` with ``reduce`` and store the results in ``dst``, which has as many partitions.

    Args:
        core: the core that runs the instruction.
        dst: the tile of the results.
        tile: the tile that is read.
        reduce: the reduction. It receives some rows in float32, and an array (rows, elements of ``dst`` in a
            partition) for their results.
        reads_bfloat16: whether ``reduce`` takes rows in bfloat16 unchanged, where they are dense and stored in 16
            bits.
    """
    if core.emitter is not None:
        core.emitter.reduce_rows(dst, tile, reduce, reads_bfloat16)
        return
    if dst.storage.is_abstract:
        return
    results = np.empty((tile.shape[0], dst.free_size), np.float32)
    bits = tile.rows_to_read if reads_bfloat16 and is_in_16_bits(tile) else None
    if bits is not None:
        reduce(bits, results)
    else:
        source = SourceRows(core, "source", tile)
        for rows in row_blocks(tile, tile.free_size):
            reduce(source.load(rows), results[rows])
    store_float(dst.array, results, dst.dtype)


def is_in_16_bits(tile: NkiTensor) -> bool:
    """Return whether a tile has bfloat16 elements that its storage holds in 16 bits each.

    With ``precise_fp=False`` bfloat16 elements are held in float32.
    """
    return tile.size > 0 and tile.dtype == bfloat16 and not tile.storage.is_widened
