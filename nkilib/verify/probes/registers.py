# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of the registers in which Scalar and Vector add up the elements that they write, over several instructions."""

from __future__ import annotations

from typing import Final

from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.arithmetic import READINGS, row
from nkilib.verify.probes.probe import Probe, Reading, loaded, same_arguments, stored, tile

_PIECE: Final = 4
_PIECES: Final = 3


@nki.jit
def sums_of_pieces(values_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Sum values that go through PSUM in three pieces, on Scalar and on Vector, like the terms of the entropy."""
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
        (READINGS, page_row),
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

PROBES: Final = (OF_SCALAR, OF_VECTOR)
