# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of integers: the arithmetic of int32 on GpSimd, masks of comparisons, and the search for a value."""

from __future__ import annotations

from typing import Final

import numpy as np

from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.probe import (
    INSTRUCTION_READINGS,
    PROMISES,
    TENSOR_READINGS,
    Probe,
    Reading,
    integer_row,
    loaded,
    row,
    same_arguments,
    stored,
    tile,
)
from nkilib.verify.step import Array

_ALL_ONES: Final = 2**32 - 1


@nki.jit
def integer_arithmetic(left_hbm: nl.NkiTensor, right_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return products and sums of int32 numbers, from GpSimd."""
    left_sbuf, right_sbuf = loaded(left_hbm), loaded(right_hbm)
    results = []
    for op in (nl.multiply, nl.add):
        result_sbuf = tile(left_hbm.shape, nl.int32)
        nisa.tensor_tensor(dst=result_sbuf, data1=left_sbuf, data2=right_sbuf, op=op, engine=nisa.engine.gpsimd)
        results.append(stored(result_sbuf))
    return results[0], results[1]


_LEFT: Final = integer_row(16777217, 12345, 1, 7)
_RIGHT: Final = integer_row(3, 67891, 2**30, 16777217)


def _through_float32(exact: Array) -> Array:
    return exact.astype(np.float32).astype(np.int32)


EXACT: Final = Probe(
    "integers beyond 2^24",
    True,
    "whether int32 arithmetic of GpSimd is exact, or goes through float32",
    (TENSOR_READINGS, "int32 tile with a Python integer"),
    "the index of a target's logit: row * V + target",
    integer_arithmetic,
    same_arguments(left_hbm=_LEFT, right_hbm=_RIGHT),
    ("product", "sum"),
    [
        Reading("exact", {"product": _LEFT * _RIGHT, "sum": _LEFT + _RIGHT}),
        Reading(
            "through float32", {"product": _through_float32(_LEFT * _RIGHT), "sum": _through_float32(_LEFT + _RIGHT)}
        ),
        Reading(
            "sums exact, products through float32", {"product": _through_float32(_LEFT * _RIGHT), "sum": _LEFT + _RIGHT}
        ),
    ],
)


@nki.jit
def unequal_and_chosen(
    left_hbm: nl.NkiTensor, right_hbm: nl.NkiTensor, values_hbm: nl.NkiTensor
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return a uint32 mask of unequal int32 values, from GpSimd, and a tile of zeros to which values were copied where
    the mask is set.
    """
    left_sbuf, right_sbuf, values_sbuf = loaded(left_hbm), loaded(right_hbm), loaded(values_hbm)
    mask_sbuf, chosen_sbuf = tile(left_hbm.shape, nl.uint32), tile(left_hbm.shape)
    nisa.tensor_tensor(dst=mask_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.not_equal, engine=nisa.engine.gpsimd)
    nisa.memset(dst=chosen_sbuf, value=0.0)
    nisa.tensor_copy_predicated(dst=chosen_sbuf, src=values_sbuf, predicate=mask_sbuf)
    return stored(mask_sbuf), stored(chosen_sbuf)


def mask(is_set: int) -> Array:
    """Return the expected mask if a comparison writes the number ``is_set`` for true."""
    return np.array([[0, is_set, is_set, 0]], np.uint32)


MASKS: Final = Probe(
    "masks of ignored targets",
    True,
    "what a comparison of integers writes, and whether a predicated copy leaves the rest as it was",
    (PROMISES, "- `tensor_copy_predicated` with a uint32 predicate"),
    "ignored positions: their NaN must not reach the loss; masks are multiplied, so true must be 1",
    unequal_and_chosen,
    same_arguments(
        left_hbm=integer_row(5, 5, -1, 7),
        right_hbm=integer_row(5, 6, 1, 7),
        values_hbm=row(np.nan, 3, 4, np.inf),
    ),
    ("mask", "chosen"),
    [
        Reading("1 is true; the rest is kept", {"mask": mask(1), "chosen": row(0, 3, 4, 0)}),
        Reading("all ones are true; the rest is kept", {"mask": mask(_ALL_ONES), "chosen": row(0, 3, 4, 0)}),
        Reading("1 is true; the copy multiplies", {"mask": mask(1), "chosen": row(np.nan, 3, 4, np.nan)}),
        Reading("1 is true; the copy takes what is not chosen", {"mask": mask(1), "chosen": row(np.nan, 0, 0, np.inf)}),
        Reading("1 is true; the copy takes everything", {"mask": mask(1), "chosen": row(np.nan, 3, 4, np.inf)}),
        Reading("1 is true; the copy takes nothing", {"mask": mask(1), "chosen": row(0, 0, 0, 0)}),
        Reading(
            "1.0 as a float32 is true; the rest is kept",
            {"mask": mask(int(np.float32(1).view(np.uint32))), "chosen": row(0, 3, 4, 0)},
        ),
    ],
)


@nki.jit
def searched(data_hbm: nl.NkiTensor, values_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return the columns at which eight values occur in a row, as uint32 and converted to float32."""
    data_sbuf, values_sbuf = loaded(data_hbm), loaded(values_hbm)
    places_sbuf, counted_sbuf = tile((1, 8), nl.uint32), tile((1, 8))
    nisa.nc_find_index8(dst=places_sbuf, data=data_sbuf, vals=values_sbuf)
    nisa.tensor_scalar(dst=counted_sbuf, data=places_sbuf, op0=nl.add, operand0=0.0)
    return stored(places_sbuf), stored(counted_sbuf)


_DATA: Final = row(1, 7, 3, 7, 7, 0, 7, 5, 7, 7, 7, 7)
_SEVENS: Final = (1, 3, 4, 6, 8, 9, 10, 11)


def places(*values: int) -> Array:
    """Return an expected result: the columns of eight values, uint32 [1, 8]."""
    return np.array([values], np.uint32)


EIGHT_EQUAL: Final = Probe(
    "one value eight times",
    True,
    "where a value that is looked for eight times at once is found",
    (PROMISES, "- `nc_find_index8` with one value in all eight places"),
    "the argmax, which uses the first of the eight places: it must be the first occurrence of the value",
    searched,
    same_arguments(data_hbm=_DATA, values_hbm=row(*[7] * 8)),
    ("places", "counted"),
    [
        Reading("one after the other, from the first", {"places": places(*_SEVENS)}),
        Reading("each at the first place", {"places": places(*[1] * 8)}),
        Reading("one after the other, from the last", {"places": places(*reversed(_SEVENS))}),
        Reading("each at the last place", {"places": places(*[11] * 8)}),
        Reading("the first at its place, the others nowhere", {"places": places(1, *[_ALL_ONES] * 7)}),
    ],
)

NOT_FOUND: Final = Probe(
    "a value that is not found",
    True,
    "which index a value gets that is not found, such as NaN, and which float32 number that index becomes",
    (INSTRUCTION_READINGS, "`nc_match_replace8`: a value that is not found"),
    "the argmax of rows with a NaN, and of rows whose maximum is in a later part of a chunk",
    searched,
    same_arguments(data_hbm=_DATA, values_hbm=row(*[np.nan] * 4, *[2] * 4)),
    ("places", "counted"),
    [
        Reading("all ones, over 2^31 as float32", {"places": places(*[_ALL_ONES] * 8), "counted": row(*[2.0**32] * 8)}),
        Reading("all ones, -1 as float32", {"places": places(*[_ALL_ONES] * 8), "counted": row(*[-1] * 8)}),
        Reading("0", {"places": places(*[0] * 8), "counted": row(*[0] * 8)}),
        Reading("the number of elements", {"places": places(*[12] * 8), "counted": row(*[12] * 8)}),
    ],
)

PROBES: Final = (EXACT, MASKS, EIGHT_EQUAL, NOT_FOUND)
