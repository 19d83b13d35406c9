# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of DMA: casts, loads with stride 0, the bounds of indices, the order of writes, written arguments, and large
tensors.

A *mark* is a number that fills memory before a probe writes to it, and shows what the probe left unwritten.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.probe import (
    INSTRUCTION_READINGS,
    OUT_OF_RANGE,
    PROMISES,
    Probe,
    Reading,
    column,
    indices,
    left,
    loaded,
    row,
    same_arguments,
    stored,
    tile,
)
from nkilib.verify.step import Array

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
_MARK: Final = -5.0


def bfloat16(values: Array) -> Array:
    """Return the numbers rounded to the nearest bfloat16, halves to even: one way in which a DMA may cast."""
    return values.astype(BFLOAT16)


def truncated(values: Array) -> Array:
    """Return the upper 16 bits of float32 numbers as bfloat16: one way in which a DMA may cast."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)


def half_up(values: Array) -> Array:
    """Return the numbers rounded to the nearest bfloat16, halves away from zero: one way in which a DMA may cast."""
    bits = np.ascontiguousarray(values).view(np.uint32) + np.uint32(0x8000)
    return (bits >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)


def lower_half(values: Array) -> Array:
    """Return the lower 16 bits of float32 numbers as bfloat16: the result if a DMA moves bytes without a cast."""
    return (np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFF)).astype(np.uint16).view(BFLOAT16)


# Below, at and above the middle of two neighbours, where the lower one is even and where it is odd.
_TO_ROUND: Final = column(
    1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-12, -1 - 3 * 2**-8, 1.75 + 2**-20, 3.0, -0.5
)
_ROUNDINGS: Final = {
    "rounded to the nearest, halves to even": bfloat16,
    "the lower bits are cut off": truncated,
    "rounded to the nearest, halves away from zero": half_up,
    "not cast: the lower bits are moved": lower_half,
}


@nki.jit
def rounded_loads(values_hbm: nl.NkiTensor, index_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return float32 numbers that were loaded from HBM into bfloat16 tiles: all in order, and gathered by index."""
    rows = values_hbm.shape[0]
    direct_sbuf, gathered_sbuf = tile((rows, 1), nl.bfloat16), tile((rows, 1), nl.bfloat16)
    nisa.dma_copy(dst=direct_sbuf, src=values_hbm)
    nisa.dma_copy(dst=gathered_sbuf, src=values_hbm.vector_select(0, loaded(index_hbm)))
    return stored(direct_sbuf), stored(gathered_sbuf)


_ORDER: Final = (7, 2, 5, 0, 3, 6, 1, 4)
ROUNDED: Final = Probe(
    "casts of a load and a gather",
    True,
    "how a DMA rounds float32 to bfloat16, by itself and combined with a gather",
    (PROMISES, "- A cast combined with indirect DMA"),
    "float32 logits in bfloat16 tiles, and the target's logit, which must be rounded like the others",
    rounded_loads,
    same_arguments(values_hbm=_TO_ROUND, index_hbm=indices(*_ORDER)),
    ("loaded", "gathered"),
    [
        Reading(
            f"loaded: {by_load}; gathered: {by_gather}" if by_load != by_gather else f"both: {by_load}",
            {"loaded": of_load(_TO_ROUND), "gathered": of_gather(_TO_ROUND)[list(_ORDER)]},
        )
        for by_load, of_load in _ROUNDINGS.items()
        for by_gather, of_gather in _ROUNDINGS.items()
    ],
)


@nki.jit
def widened_scatter(values_hbm: nl.NkiTensor, index_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return a float32 tensor in HBM, filled with a mark, to which bfloat16 numbers of a tile were scattered."""
    result_hbm = nl.ndarray(values_hbm.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    mark_sbuf = tile(values_hbm.shape)
    nisa.memset(dst=mark_sbuf, value=_MARK)
    marked = nisa.dma_copy(dst=result_hbm, src=mark_sbuf)
    scatter = nisa.dma_copy(dst=result_hbm.vector_select(0, loaded(index_hbm)), src=loaded(values_hbm))
    scatter.depends_on(marked, kind=nisa.dependency.runtime)
    return result_hbm


_WIDE: Final = column(1.5, -2.25, 3.0, 0.0078125)
_PLACES: Final = (2, 0, 3, 1)


def _scattered(values: Array) -> Array:
    scattered = np.zeros_like(values)
    scattered[list(_PLACES)] = values
    return scattered


def _as_bits(values: Array, shift: int) -> Array:
    """Return float32 numbers whose bits ``shift`` to ``shift + 15`` are the bfloat16 values; their other bits are 0."""
    return (bfloat16(values).view(np.uint16).astype(np.uint32) << np.uint32(shift)).view(np.float32)


def _half_written(values: Array, mark: float) -> Array:
    """Return the expected float32 numbers if a cast writes only two bytes: ``mark``, with its lower half replaced by
    the bfloat16 values.
    """
    upper = np.float32(mark).view(np.uint32) & np.uint32(0xFFFF0000)
    return (bfloat16(values).view(np.uint16).astype(np.uint32) | upper).view(np.float32)


WIDENED: Final = Probe(
    "cast of a scatter",
    False,
    "whether a scatter casts bfloat16 to float32",
    (PROMISES, "- A cast combined with indirect DMA"),
    "the gradient at the target, in place over float32 logits with bfloat16 tiles",
    widened_scatter,
    same_arguments(values_hbm=bfloat16(_WIDE), index_hbm=indices(*_PLACES)),
    ("scattered",),
    [
        Reading("cast", {"scattered": _scattered(_WIDE)}),
        Reading("not cast: the bits become the lower half", {"scattered": _scattered(_as_bits(_WIDE, 0))}),
        Reading("not cast: only the lower half is written", {"scattered": _scattered(_half_written(_WIDE, _MARK))}),
        Reading("nothing is scattered", {"scattered": np.full_like(_WIDE, _MARK)}),
    ],
)


@nki.jit
def gathered_from_part(values_hbm: nl.NkiTensor, index_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return elements of rows 4 to 7, gathered by indices that count from row 4, in a tile filled with a mark."""
    part_hbm = values_hbm.slice(0, 4, 8)
    gathered_sbuf = tile((index_hbm.shape[0], 1))
    nisa.memset(dst=gathered_sbuf, value=_MARK)
    nisa.dma_copy(dst=gathered_sbuf, src=part_hbm.vector_select(0, loaded(index_hbm)))
    return stored(gathered_sbuf)


_SIXTEEN: Final = column(*range(100, 116))


def _bounds_probe(name: str, question: str, index: int, readings: list[Reading]) -> Probe:
    return Probe(
        name,
        False,
        question,
        (PROMISES, "- How the DMA engine checks bounds"),
        "invalid targets: they must be reported, and never read or write another row",
        gathered_from_part,
        same_arguments(values_hbm=_SIXTEEN, index_hbm=indices(1, index)),
        ("gathered",),
        readings,
    )


_REPORTED: Final = Reading("reported as out of range", {}, refused=OUT_OF_RANGE)
OUTSIDE_VIEW: Final = _bounds_probe(
    "an index outside the view, inside the tensor",
    "whether the bounds of an index are those of the view or of the whole tensor",
    6,
    [
        _REPORTED,
        Reading("the whole tensor's bounds: a neighbour is read", {"gathered": column(105, 110)}),
        Reading("skipped in silence", {"gathered": column(105, _MARK)}),
        Reading("0 in silence", {"gathered": column(105, 0)}),
        Reading("the last element of the view in silence", {"gathered": column(105, 107)}),
    ],
)
OUTSIDE_TENSOR: Final = _bounds_probe(
    "an index outside the tensor by 2^30",
    "whether an index that leaves the tensor by 2^30 elements is reported",
    2**30 + 1,
    [
        _REPORTED,
        Reading("byte offsets wrap at 32 bits: element 1 is read", {"gathered": column(105, 105)}),
        Reading("skipped in silence", {"gathered": column(105, _MARK)}),
        Reading("0 in silence", {"gathered": column(105, 0)}),
        Reading("the last element of the view in silence", {"gathered": column(105, 107)}),
        Reading("the last element of the tensor in silence", {"gathered": column(105, 115)}),
    ],
)


@nki.jit
def repeated_row(values_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return four partitions, filled with a mark, into which a vector was loaded with stride 0, as class weights are
    loaded.
    """
    row_hbm = values_hbm.expand_dim(0).broadcast(0, 4)
    repeated_sbuf = tile((4, values_hbm.shape[0]))
    nisa.memset(dst=repeated_sbuf, value=_MARK)
    nisa.dma_copy(dst=repeated_sbuf, src=row_hbm)
    return stored(repeated_sbuf)


_VECTOR: Final = np.arange(1, 13, dtype=np.float32)


def _one_row(others: float) -> Array:
    rows = np.full((4, len(_VECTOR)), others, np.float32)
    rows[0] = _VECTOR
    return rows


REPEATED: Final = Probe(
    "a load with stride 0",
    True,
    "whether a DMA reads the same row for every partition",
    (PROMISES, "- DMA reads of class weights with stride 0"),
    "class weights",
    repeated_row,
    same_arguments(values_hbm=_VECTOR),
    ("rows",),
    [
        Reading("every partition gets the row", {"rows": np.tile(_VECTOR, (4, 1))}),
        Reading("the first partition alone gets it", {"rows": _one_row(_MARK)}),
        Reading("the other partitions get zeros", {"rows": _one_row(0.0)}),
    ],
)


@nki.jit
def overwritten(values_hbm: nl.NkiTensor, index_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Gather an element of each row, store the negated rows, and scatter 1000 over the gathered elements, in the order
    of cross-entropy's backward. Return the gathered elements and the rows.
    """
    rows, columns = values_hbm.shape
    elements_hbm = values_hbm.reshape((rows * columns, 1))
    index_sbuf, values_sbuf = loaded(index_hbm), loaded(values_hbm)
    gathered_sbuf, mark_sbuf = tile((rows, 1)), tile((rows, 1))
    nisa.memset(dst=mark_sbuf, value=1000.0)
    nisa.tensor_scalar(dst=values_sbuf, data=values_sbuf, op0=nl.multiply, operand0=-1.0)
    gather = nisa.dma_copy(dst=gathered_sbuf, src=elements_hbm.vector_select(0, index_sbuf))
    store = nisa.dma_copy(dst=values_hbm, src=values_sbuf)
    store.depends_on(gather, kind=nisa.dependency.runtime)
    scatter = nisa.dma_copy(dst=elements_hbm.vector_select(0, index_sbuf), src=mark_sbuf)
    scatter.depends_on(store, kind=nisa.dependency.runtime)
    return stored(gathered_sbuf), values_hbm


_POSITIVE: Final = np.arange(1, 128 * 64 + 1, dtype=np.float32).reshape(128, 64)
_COLUMNS: Final = (np.arange(128) * 7) % 64
_FLAT: Final = np.arange(128) * 64 + _COLUMNS


def _left_over(mark: float | None) -> Array:
    """Return the expected rows: all negated, with ``mark`` at the elements that were scattered to, unless it is
    None.
    """
    rows = -_POSITIVE
    if mark is not None:
        rows[np.arange(128), _COLUMNS] = mark
    return rows


_OLD: Final = _POSITIVE.ravel()[_FLAT][:, np.newaxis]
IN_ORDER: Final = Probe(
    "the order of writes to one address",
    True,
    "whether `depends_on` orders a gather, a store and a scatter of the same addresses of HBM",
    (PROMISES, "- The order of DMA writes to the same HBM address"),
    "the gradient at the target, and the target's logit, in place",
    overwritten,
    same_arguments(values_hbm=_POSITIVE, index_hbm=_FLAT.astype(np.int32)[:, np.newaxis]),
    ("gathered", "rows"),
    [
        Reading("as stated", {"gathered": _OLD, "rows": _left_over(1000.0)}),
        Reading("the store comes last", {"gathered": _OLD, "rows": _left_over(None)}),
        Reading("the gather comes after the store", {"gathered": -_OLD, "rows": _left_over(1000.0)}),
        Reading("the gather comes last", {"gathered": np.full_like(_OLD, 1000), "rows": _left_over(1000.0)}),
        Reading("the gather after the store, which comes last", {"gathered": -_OLD, "rows": _left_over(None)}),
    ],
)


@nki.jit
def negated_in_place(values_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Overwrite the argument in HBM with its negative, and return it."""
    values_sbuf = loaded(values_hbm)
    nisa.tensor_scalar(dst=values_sbuf, data=values_sbuf, op0=nl.multiply, operand0=-1.0)
    nisa.dma_copy(dst=values_hbm, src=values_sbuf)
    return values_hbm


_PLAIN: Final = row(1, 2, 3, 4)
IN_PLACE: Final = Probe(
    "an argument that the kernel writes",
    True,
    "whether a numpy array that a kernel writes and returns has the new values after the launch",
    ("reference/simulator.md", "- Arguments: numpy arrays"),
    "`inplace=True` if you launch kernels on your own arrays and read the argument instead of the result",
    negated_in_place,
    same_arguments(values_hbm=_PLAIN),
    ("returned",),
    [
        Reading("the result and the argument", {"returned": -_PLAIN, left("values_hbm"): -_PLAIN}),
        Reading("the result alone; the argument is as it was", {"returned": -_PLAIN, left("values_hbm"): _PLAIN}),
        Reading("the argument alone", {"returned": _PLAIN, left("values_hbm"): -_PLAIN}),
        Reading("neither", {"returned": _PLAIN, left("values_hbm"): _PLAIN}),
    ],
)

_WIDE_COLUMNS: Final = 2**16


@nki.jit
def far_elements(rows: int) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Write 1 to the end of the first row of a bfloat16 matrix [rows, 2^16], and 2 to the end of the last row; return
    both as they are read back, [1, 8] each.
    """
    matrix_hbm = nl.ndarray((rows, _WIDE_COLUMNS), dtype=nl.bfloat16, buffer=nl.hbm)
    results = []
    writes = []
    for value, place in ((1.0, 0), (2.0, rows - 1)):
        value_sbuf = tile((1, 8), nl.bfloat16)
        nisa.memset(dst=value_sbuf, value=value)
        writes.append(nisa.dma_copy(dst=matrix_hbm[place : place + 1, _WIDE_COLUMNS - 8 :], src=value_sbuf))
    for place in (0, rows - 1):
        read_sbuf = tile((1, 8), nl.bfloat16)
        read = nisa.dma_copy(dst=read_sbuf, src=matrix_hbm[place : place + 1, _WIDE_COLUMNS - 8 :])
        for write in writes:
            read.depends_on(write, kind=nisa.dependency.runtime)
        results.append(stored(read_sbuf))
    return results[0], results[1]


def _far_arguments(is_device: bool) -> dict[str, Any]:
    """Return the number of rows: on a device enough for more than 2^31 elements, which take 4.3 GB; on the simulator
    few.
    """
    return {"rows": 2**15 + 2 if is_device else 4}


def _eight(value: float) -> Array:
    return np.full((1, 8), value, BFLOAT16)


FAR: Final = Probe(
    "more than 2^31 elements",
    False,
    "whether the last elements of a tensor with more than 2^31 elements are separate from the first ones",
    (PROMISES, "- N * V of 2^31 elements or more relies"),
    "logits of 2^31 elements or more",
    far_elements,
    _far_arguments,
    ("first", "last"),
    [
        Reading("yes", {"first": _eight(1), "last": _eight(2)}),
        Reading("no: the last write went to the first elements", {"first": _eight(2), "last": _eight(2)}),
        Reading("no: both are read where the first write went", {"first": _eight(1), "last": _eight(1)}),
        Reading("the write to the last elements is lost", {"first": _eight(1), "last": _eight(0)}),
    ],
)


@nki.jit
def skipped_scatter(values_hbm: nl.NkiTensor, index_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return a tensor filled with a mark, to which elements were scattered; the DMA engine skips indices out of
    range.
    """
    result_hbm = nl.ndarray(values_hbm.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    mark_sbuf = tile(values_hbm.shape)
    nisa.memset(dst=mark_sbuf, value=_MARK)
    marked = nisa.dma_copy(dst=result_hbm, src=mark_sbuf)
    scatter = nisa.dma_copy(
        dst=result_hbm.vector_select(0, loaded(index_hbm)), src=loaded(values_hbm), oob_mode=nisa.oob_mode.skip
    )
    scatter.depends_on(marked, kind=nisa.dependency.runtime)
    return result_hbm


SKIPPED: Final = Probe(
    "a scatter that skips",
    False,
    "whether `oob_mode=skip` skips elements that are out of range, by one or by far, and writes the rest",
    (INSTRUCTION_READINGS, "`oob_mode=skip` with a scalar offset that moves"),
    "recomputed rows: slots without a row are out of range",
    skipped_scatter,
    same_arguments(values_hbm=column(1, 2, 3, 4), index_hbm=indices(2, 4, 0, 2**24)),
    ("rows",),
    [
        Reading("it skips them, and writes the rest", {"rows": column(3, _MARK, 1, _MARK)}),
        Reading("reported as out of range", {}, refused=OUT_OF_RANGE),
        Reading("it stops at the first of them", {"rows": column(_MARK, _MARK, 1, _MARK)}),
        Reading("they are written to the last element", {"rows": column(3, _MARK, 1, 4)}),
        Reading("nothing is written", {"rows": column(*[_MARK] * 4)}),
    ],
)

PROBES: Final = (ROUNDED, WIDENED, SKIPPED, REPEATED, IN_ORDER, IN_PLACE, FAR)
BOUNDS: Final = (OUTSIDE_VIEW, OUTSIDE_TENSOR)
