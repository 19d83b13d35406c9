# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of sums over several instructions.

Scalar and Vector have registers in which they add up the elements that they write; Tensor adds up products in PSUM.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.probe import INSTRUCTION_READINGS, Probe, Reading, loaded, row, same_arguments, stored, tile

_MARK: Final = -5.0
_PIECE: Final = 4
_PIECES: Final = 3


@nki.jit
def sums_of_pieces(values_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return the sum of a row of values, from Scalar and from Vector, each [1, 1].

    Each engine adds up three pieces of the row in its register, as kernels sum the terms of an entropy.
    """
    values_sbuf = loaded(values_hbm)
    of_scalar_sbuf, of_vector_sbuf = tile((1, 1)), tile((1, 1))
    tiles_psum = [nl.ndarray((1, _PIECE), dtype=nl.float32, buffer=nl.psum) for _ in range(2)]
    for number in range(_PIECES):
        piece_sbuf = values_sbuf[:, number * _PIECE : (number + 1) * _PIECE]
        command = nisa.reduce_cmd.reset_reduce if number == 0 else nisa.reduce_cmd.reduce
        is_last = number == _PIECES - 1
        tile_psum = tiles_psum[number % len(tiles_psum)]
        nisa.activation(
            dst=tile_psum,
            op=nl.copy,
            data=piece_sbuf,
            reduce_op=nl.add,
            reduce_res=of_scalar_sbuf if is_last else None,
            reduce_cmd=command,
        )
        nisa.scalar_tensor_tensor(
            dst=tile_psum,
            data=piece_sbuf,
            op0=nl.multiply,
            operand0=0.0,
            op1=nl.add,
            operand1=tile_psum,
            reduce_op=nl.add,
            reduce_res=of_vector_sbuf if is_last else None,
            reduce_cmd=command,
        )
    return stored(of_scalar_sbuf), stored(of_vector_sbuf)


# Sums of the pieces: 10, 200 and 3000.
_VALUES: Final = row(1, 2, 3, 4, 20, 30, 50, 100, 500, 700, 800, 1000)
_RESULTS: Final = ("scalar", "vector")


def _probe(name: str, engine: str, page_row: str, rests_on_it: str) -> Probe:
    return Probe(
        name,
        False,
        f"what `reduce` adds to the registers of {engine.capitalize()} after `reset_reduce`",
        (INSTRUCTION_READINGS, page_row),
        rests_on_it,
        sums_of_pieces,
        same_arguments(values_hbm=_VALUES),
        _RESULTS,
        [
            Reading("the new sum", {engine: row(3210)}),
            Reading("the new sum, and the present sum once more", {engine: row(3440)}),
            Reading("the new sum replaces the present one", {engine: row(3000)}),
            Reading("nothing: the first sum stays", {engine: row(10)}),
        ],
    )


OF_SCALAR: Final = _probe(
    "sums by pieces on Scalar",
    "scalar",
    "`reduce_cmd=reduce` of `activation`",
    "sums of exponentials beside an entropy",
)
OF_VECTOR: Final = _probe(
    "sums by pieces on Vector",
    "vector",
    "operators and commands of the reduction of `scalar_tensor_tensor`",
    "the entropy, which this reduction of NKI 0.7 adds up",
)


@nki.jit
def product_over(left_hbm: nl.NkiTensor, right_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return left.T @ right, computed in a bank of PSUM that is filled with other numbers."""
    product_psum = nl.ndarray((left_hbm.shape[1], right_hbm.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=product_psum, value=_MARK)
    nisa.nc_matmul(dst=product_psum, stationary=loaded(left_hbm), moving=loaded(right_hbm))
    product_sbuf = tile(product_psum.shape)
    nisa.tensor_copy(dst=product_sbuf, src=product_psum)
    return stored(product_sbuf)


_LEFT: Final = np.array([[1, 2], [3, 4]], np.float32)
_RIGHT: Final = np.array([[5, 6, 7], [8, 9, 10]], np.float32)
PRODUCT: Final = Probe(
    "a product over other numbers",
    False,
    "whether the first product in PSUM overwrites values that no product has written",
    (INSTRUCTION_READINGS, "`nc_matmul(accumulate=None)`"),
    "recomputed rows: their slots are prefix sums that Tensor computes",
    product_over,
    same_arguments(left_hbm=_LEFT, right_hbm=_RIGHT),
    ("product",),
    [
        Reading("it overwrites", {"product": _LEFT.T @ _RIGHT}),
        Reading("it adds", {"product": _LEFT.T @ _RIGHT + np.float32(_MARK)}),
        Reading("nothing is written", {"product": np.full((2, 3), _MARK, np.float32)}),
    ],
)


@nki.jit
def sums_beside_each_other(left_hbm: nl.NkiTensor, right_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return three results that are computed one after the other in one bank of PSUM: 2 left.T @ right, 4 left.T @
    right, and left.T.
    """
    left_sbuf, right_sbuf = loaded(left_hbm), loaded(right_hbm)
    (terms, rows), columns = left_hbm.shape, right_hbm.shape[1]
    bank_psum = nl.ndarray((rows, 2 * columns + terms), dtype=nl.float32, buffer=nl.psum)
    for group, count in enumerate((2, 4)):
        sum_psum = bank_psum[:, group * columns : (group + 1) * columns]
        for number in range(count):
            nisa.nc_matmul(dst=sum_psum, stationary=left_sbuf, moving=right_sbuf, accumulate=number > 0)
    nisa.nc_transpose(dst=bank_psum[:, 2 * columns :], data=left_sbuf, engine=nisa.engine.tensor)
    sums_sbuf = tile(bank_psum.shape)
    nisa.tensor_copy(dst=sums_sbuf, src=bank_psum)
    return stored(sums_sbuf)


def _beside(first: int, second: int) -> dict[str, np.ndarray]:
    """Return the expected result if ``first`` products are left in the first sum and ``second`` in the second sum."""
    product = _LEFT.T @ _RIGHT
    return {"sums": np.concatenate([first * product, second * product, _LEFT.T], axis=1)}


BESIDE: Final = Probe(
    "finished sums beside each other",
    False,
    "whether sums of products stay as they are when another one starts in their bank of PSUM",
    (INSTRUCTION_READINGS, "several accumulation groups in one PSUM bank"),
    "transposes and products of several tiles in a bank: gradients of the linear losses, softmax along short axes, CTC",
    sums_beside_each_other,
    same_arguments(left_hbm=_LEFT, right_hbm=_RIGHT),
    ("sums",),
    [
        Reading("each stays", _beside(2, 4)),
        Reading("a start clears the others", _beside(0, 0)),
        Reading("a transpose clears the one before it", _beside(2, 0)),
        Reading("the first one is cleared", _beside(0, 4)),
        Reading("only the last product of each stays", _beside(1, 1)),
    ],
)

PROBES: Final = (OF_SCALAR, OF_VECTOR, PRODUCT, BESIDE)
