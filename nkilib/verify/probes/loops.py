# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of loops whose iteration count is read at run time, and of further requirements of recomputed rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.arithmetic import PROMISES, READINGS
from nkilib.verify.probes.dma import column, indices
from nkilib.verify.probes.integers import integer_row
from nkilib.verify.probes.probe import OUT_OF_RANGE, Probe, Reading, loaded, same_arguments, stored, tile

_MARK: Final = -5.0


def _counted(trips: nisa.VirtualRegister) -> nl.NkiTensor:
    """Return the number of times that the body of a loop ran; the body adds 1 to a number."""
    count_sbuf = tile((1, 1))
    nisa.memset(dst=count_sbuf, value=0.0)

    def body(_: nisa.VirtualRegister) -> None:
        nisa.tensor_scalar(dst=count_sbuf, data=count_sbuf, op0=nl.add, operand0=1.0)

    nl.fori_loop(0, trips, body)
    return stored(count_sbuf)


@nki.jit
def counted_loops(trips_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Run two loops as often as two registers state."""
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
    (READINGS, "bounds in registers"),
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
    """Sum the rows that the iterations of a loop select: iteration i selects row i."""
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
    (READINGS, "`t[register]`, `nl.ds(register, size)`"),
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
def skipped_scatter(values_hbm: nl.NkiTensor, index_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Scatter elements over marks, including elements out of range that the DMA engine is told to skip."""
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
    (READINGS, "`oob_mode=skip` with a scalar offset that moves"),
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


@nki.jit
def exchanged(numbers_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Exchange each core's number with the other core, and store the larger one from each core."""
    core = nl.program_id(0)
    own_sbuf, others_sbuf = loaded(numbers_hbm[:, core : core + 1]), tile((1, 1), nl.int32)
    nisa.sendrecv(src=own_sbuf, dst=others_sbuf, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=others_sbuf, op=nl.maximum, engine=nisa.engine.gpsimd)
    results = []
    for writer in range(2):
        result_hbm = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        if core == writer:
            nisa.dma_copy(dst=result_hbm, src=own_sbuf)
        results.append(result_hbm)
    return results[0], results[1]


EXCHANGED: Final = Probe(
    "an exchange of counts between the cores",
    False,
    "whether both cores have the other's number after `sendrecv`",
    (READINGS, "`sendrecv` and HBM"),
    "the iteration count of the loop that recomputes rows, on which both cores must agree",
    exchanged,
    same_arguments(numbers_hbm=integer_row(3, 7)),
    ("of_core_0", "of_core_1"),
    [
        Reading("both have the larger one", {"of_core_0": integer_row(7), "of_core_1": integer_row(7)}),
        Reading("each has its own", {"of_core_0": integer_row(3), "of_core_1": integer_row(7)}),
    ],
    num_cores=2,
)


@nki.jit
def product_over(left_hbm: nl.NkiTensor, right_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Compute left.T @ right in a bank of PSUM filled with other numbers."""
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
    (READINGS, "`nc_matmul(accumulate=None)`"),
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
    """Compute 2 and 4 times left.T @ right, and left.T: three groups of products in turn in one bank of PSUM."""
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
    """Return the expected result if the sums of the first two groups have these numbers of products."""
    product = _LEFT.T @ _RIGHT
    return {"sums": np.concatenate([first * product, second * product, _LEFT.T], axis=1)}


BESIDE: Final = Probe(
    "finished sums beside each other",
    False,
    "whether sums of products stay as they are when another one starts in their bank of PSUM",
    (READINGS, "several accumulation groups in one PSUM bank"),
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


@nki.jit
def rows_recomputed(
    rows_hbm: nl.NkiTensor, slots_hbm: nl.NkiTensor, trips_hbm: nl.NkiTensor
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Sum rows that a loop finds in a list on chip, scatter the sums over stored results, count the iterations.

    Args:
        rows_hbm: the rows, [N, columns].
        slots_hbm: indices of rows, int32 [slots, 2]: one column per iteration, out of range in a slot without a row.
        trips_hbm: the number of iterations, int32 [1, 1].
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

PROBES: Final = (TRIPS, ROW_OF_TRIP, SKIPPED, EXCHANGED, PRODUCT, BESIDE, ANEW)
