# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that the kernels of probes share."""

from __future__ import annotations

from nkilib.nki import nisa, nl


def loaded(array_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load a whole matrix [rows, columns] into a tile of its type."""
    tile_sbuf = nl.ndarray(array_hbm.shape, dtype=array_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile_sbuf, src=array_hbm)
    return tile_sbuf


def tile(shape: tuple[int, ...], dtype: nl.DType = nl.float32) -> nl.NkiTensor:
    """Return a tile that is not written yet."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def stored(tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Store a tile as a result, in its type."""
    result_hbm = nl.ndarray(tile_sbuf.shape, dtype=tile_sbuf.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result_hbm, src=tile_sbuf)
    return result_hbm
