# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of the two cores of a launch: the number of programs, writes to neighbouring bytes, and an exchange of
numbers.
"""

from __future__ import annotations

from typing import Final

import ml_dtypes
import numpy as np

from nkilib.core.cores import positions_of_core, strided_rows
from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.probe import (
    CORE_READINGS,
    PROMISES,
    Probe,
    Reading,
    column,
    integer_row,
    loaded,
    no_arguments,
    same_arguments,
    tile,
)
from nkilib.verify.step import Array


@nki.jit
def programs() -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return the count of programs, stored by the first program, and the index of the last program, stored by it."""
    count, number = nl.num_programs(), nl.program_id(0)
    results = []
    for is_writer, value in ((number == 0, count), (number == count - 1, number)):
        result_hbm = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        if is_writer:
            value_sbuf = tile((1, 1))
            nisa.memset(dst=value_sbuf, value=float(value))
            nisa.dma_copy(dst=result_hbm, src=value_sbuf)
        results.append(result_hbm)
    return results[0], results[1]


PROGRAMS: Final = Probe(
    "programs of a launch on two cores",
    True,
    "how many programs a kernel on two cores sees, launched with the variable or with a grid",
    (CORE_READINGS, "`nl.program_ndim()` of `kernel(...)` on two cores"),
    "the division of positions: with one program both cores would do all of the work",
    programs,
    no_arguments,
    ("count", "last"),
    [
        Reading("two", {"count": column(2), "last": column(1)}),
        Reading("one", {"count": column(1), "last": column(0)}),
    ],
    num_cores=2,
)

_POSITIONS: Final = 128 * 16


@nki.jit
def interleaved(values_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return a copy of bfloat16 numbers, of which each core copies every second one.

    Two neighbouring numbers share four bytes, which different cores write.
    """
    positions = values_hbm.shape[0]
    result_hbm = nl.ndarray((positions,), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    cores, core = nl.num_programs(), nl.program_id(0)
    own = positions_of_core(positions, cores, core)
    for start in range(0, own, 128):
        rows = min(128, own - start)
        first = core + start * cores
        values_sbuf = tile((rows, 1), nl.bfloat16)
        nisa.dma_copy(dst=values_sbuf, src=strided_rows(values_hbm, first, rows, cores))
        nisa.dma_copy(dst=strided_rows(result_hbm, first, rows, cores), src=values_sbuf)
    return result_hbm


_VALUES: Final = (1.0 + np.arange(_POSITIONS) % 128).astype(ml_dtypes.bfloat16)


def _without(core: int) -> Array:
    """Return the expected result if the numbers that one core wrote are lost: zeros in their places."""
    values = _VALUES.copy()
    values[core::2] = 0
    return values


NEIGHBOURS: Final = Probe(
    "neighbouring 2-byte results of two cores",
    True,
    "whether both cores can write 2 bytes each of the same 4 bytes of HBM",
    (PROMISES, "- Neighbouring 2-byte results written by different cores"),
    "bfloat16 losses and log-sum-exps on two cores",
    interleaved,
    same_arguments(values_hbm=_VALUES),
    ("copied",),
    [
        Reading("yes", {"copied": _VALUES}),
        Reading("no: core 1 writes zeros over what core 0 wrote", {"copied": _without(0)}),
        Reading("no: core 0 writes zeros over what core 1 wrote", {"copied": _without(1)}),
    ],
    num_cores=2,
)


@nki.jit
def exchanged(numbers_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Exchange the numbers of the two cores; each core returns the larger of its own and the received number."""
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
    (CORE_READINGS, "`sendrecv` and HBM"),
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

PROBES: Final = (PROGRAMS, NEIGHBOURS, EXCHANGED)
