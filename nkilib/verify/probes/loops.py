# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of loops whose iteration count is read at run time, and of the rows that such a loop selects."""

from __future__ import annotations

from typing import Final

import numpy as np

from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.probe import (
    CORE_READINGS,
    OUT_OF_RANGE,
    PROMISES,
    TENSOR_READINGS,
    Probe,
    Reading,
    column,
    integer_row,
    loaded,
    same_arguments,
    stored,
    tile,
)

_MARK: Final = -5.0


def _counted(trips: nisa.VirtualRegister) -> nl.NkiTensor:
    """Run a loop whose iteration count is in the register ``trips``. Its body counts the iterations; return their
    number.
    """
    count_sbuf = tile((1, 1))
    nisa.memset(dst=count_sbuf, value=0.0)

    def body(_: nisa.VirtualRegister) -> None:
        nisa.tensor_scalar(dst=count_sbuf, data=count_sbuf, op0=nl.add, operand0=1.0)

    nl.fori_loop(0, trips, body)
    return stored(count_sbuf)


@nki.jit
def counted_loops(trips_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Run two loops whose iteration counts are in registers, and return the number of iterations of each."""
    trips_sbuf = loaded(trips_hbm)
    results = []
    for place in range(2):
        trips = nisa.register_alloc()
        nisa.register_load(trips, trips_sbuf[:, place : place + 1])
        results.append(_counted(trips))
    return results[0], results[1]


TRIPS: Final = Probe(
    "loops of the device",
    True,
    "how often a loop runs whose bound is a register, including 0",
    (CORE_READINGS, "bounds in registers"),
    "rows that are recomputed in a device loop: usually none",
    counted_loops,
    same_arguments(trips_hbm=integer_row(0, 3)),
    ("none", "three"),
    [
        Reading("as often as the register says, not at all for 0", {"none": column(0), "three": column(3)}),
        Reading("once more often", {"none": column(1), "three": column(4)}),
        Reading("at least once", {"none": column(1), "three": column(3)}),
        Reading("once, whatever the register says", {"none": column(1), "three": column(1)}),
    ],
)


@nki.jit
def rows_of_loop(rows_hbm: nl.NkiTensor, trips_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return the sum of the rows that a loop selects: iteration i selects row i."""
    sum_sbuf, row_sbuf = tile((1, rows_hbm.shape[2])), tile((1, rows_hbm.shape[2]))
    nisa.memset(dst=sum_sbuf, value=0.0)
    trips = nisa.register_alloc()
    nisa.register_load(trips, loaded(trips_hbm))

    def body(iteration: nisa.VirtualRegister) -> None:
        nisa.dma_copy(dst=row_sbuf, src=rows_hbm.select(0, iteration))
        nisa.tensor_tensor(dst=sum_sbuf, data1=sum_sbuf, data2=row_sbuf, op=nl.add)

    nl.fori_loop(0, trips, body)
    return stored(sum_sbuf)


_ROWS: Final = np.array([[1, 2], [10, 20], [100, 200], [1000, 2000]], np.float32)
ROW_OF_TRIP: Final = Probe(
    "a row that a loop names",
    False,
    "which row of HBM the body of a loop reads if it selects the row by the iteration number",
    (TENSOR_READINGS, "`t[register]`, `nl.ds(register, size)`"),
    "recomputed rows: the iteration number selects their indices",
    rows_of_loop,
    same_arguments(rows_hbm=_ROWS[:, np.newaxis], trips_hbm=integer_row(3)),
    ("sum",),
    [
        Reading("each iteration its own", {"sum": _ROWS[:3].sum(axis=0, keepdims=True)}),
        Reading("the first one in every iteration", {"sum": 3 * _ROWS[:1]}),
        Reading("each iteration that of the next one", {"sum": _ROWS[1:].sum(axis=0, keepdims=True)}),
        Reading("the sum of one iteration only: nothing is carried over", {"sum": _ROWS[2:3]}),
    ],
)


@nki.jit
def rows_recomputed(
    rows_hbm: nl.NkiTensor, slots_hbm: nl.NkiTensor, trips_hbm: nl.NkiTensor
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Sum rows whose indices a loop reads from a list on chip, and scatter the sums over stored results.

    Args:
        rows_hbm: the rows, [N, columns].
        slots_hbm: indices of rows, int32 [slots, 2]: one column per iteration, out of range in a slot without a row.
        trips_hbm: the number of iterations, int32 [1, 1].

    Returns:
        The stored results, [N, 1], and the number of iterations that the loop had, [1, 1].
    """
    sums_hbm = nl.ndarray((rows_hbm.shape[0], 1), dtype=nl.float32, buffer=nl.shared_hbm)
    mark_sbuf, count_sbuf = tile(sums_hbm.shape), tile((1, 1))
    nisa.memset(dst=mark_sbuf, value=_MARK)
    nisa.memset(dst=count_sbuf, value=0.0)
    marked = nisa.dma_copy(dst=sums_hbm, src=mark_sbuf)
    slots_sbuf = loaded(slots_hbm)
    trips = nisa.register_alloc()
    nisa.register_load(trips, loaded(trips_hbm))

    def body(iteration: nisa.VirtualRegister) -> None:
        number_sbuf, readable_sbuf = (tile((slots_hbm.shape[0], 1), nl.int32) for _ in range(2))
        row_sbuf, sum_sbuf = tile((slots_hbm.shape[0], rows_hbm.shape[1])), tile((slots_hbm.shape[0], 1))
        nisa.tensor_copy(dst=number_sbuf, src=slots_sbuf[:, nl.ds(iteration, 1)])
        nisa.tensor_scalar(dst=readable_sbuf, data=number_sbuf, op0=nl.minimum, operand0=rows_hbm.shape[0] - 1)
        nisa.dma_copy(dst=row_sbuf, src=rows_hbm.vector_select(0, readable_sbuf))
        nisa.tensor_reduce(dst=sum_sbuf, op=nl.add, data=row_sbuf, axis=1)
        scatter = nisa.dma_copy(dst=sums_hbm.vector_select(0, number_sbuf), src=sum_sbuf, oob_mode=nisa.oob_mode.skip)
        scatter.depends_on(marked, kind=nisa.dependency.runtime)
        nisa.tensor_scalar(dst=count_sbuf, data=count_sbuf, op0=nl.add, operand0=1.0)

    nl.fori_loop(0, trips, body)
    return sums_hbm, stored(count_sbuf)


# Sums 3, 30, 300 and 3000. Slots of the first iteration: row 2, and none; of the second: row 0, and row 3.
_SLOTS: Final = np.array([[2, 0], [2**24, 3]], np.int32)
ANEW: Final = Probe(
    "rows that a loop recomputes",
    True,
    "whether a loop finds rows in a list by its iteration number, gathers whole rows, and scatters over stored results",
    (PROMISES, "- The loop over recomputed rows"),
    "the forward without the exact maximum: the rows for which the shift is not exact enough",
    rows_recomputed,
    same_arguments(rows_hbm=_ROWS, slots_hbm=_SLOTS, trips_hbm=integer_row(2)),
    ("sums", "trips"),
    [
        Reading("every row that the list names", {"sums": column(3, _MARK, 300, 3000), "trips": column(2)}),
        Reading(
            "the rows of the first iteration in each iteration",
            {"sums": column(_MARK, _MARK, 300, _MARK), "trips": column(2)},
        ),
        Reading("the rows of one iteration only", {"sums": column(_MARK, _MARK, 300, _MARK), "trips": column(1)}),
        Reading("earlier stores come later", {"sums": column(*[_MARK] * 4), "trips": column(2)}),
        Reading("reported as out of range", {}, refused=OUT_OF_RANGE),
    ],
)

PROBES: Final = (TRIPS, ROW_OF_TRIP, ANEW)
