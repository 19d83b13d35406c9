# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""When instructions start and end on the timeline of trn2, with the constants of target/trn2.py worked out by hand.

Vector runs at 0.96 GHz, Scalar at 1.2; results are ready 150 and 300 ns after the last cycle, another engine notices 60
ns later, and 100 cycles lie between two instructions of an engine. A transfer takes 1,000 ns and its rows, each at
least 58 ns or its bytes at 23 a ns, and is noticed after 300 ns more.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, profile, spec
from nkilib.simulator.timing.event import Event

VECTOR, SCALAR = 0.96, 1.2
N = 960


def events(body: Any, *arrays: Any, cores: int = 1, **assumptions: Any) -> list[Event]:
    """The instructions of a kernel that runs without data, in which tiles hold something from the start."""

    def kernel(_: Any, *inputs: Any) -> None:
        body(*inputs)

    arguments = [spec(array.shape, array.dtype) for array in arrays]
    parameters = replace(AS_ISSUED, **assumptions)
    return list(profile(nki.jit(kernel)[cores], spec((1,), nl.int32), *arguments, parameters=parameters).instructions)


def tiles(count: int, columns: int = N, partitions: int = 128, dtype: Any = nl.float32) -> list[Any]:
    """Make new tiles in a kernel."""
    return [nl.ndarray((partitions, columns), dtype) for _ in range(count)]


def nanoseconds(event: Event) -> tuple[float, float]:
    return event.start_us * 1000, event.end_us * 1000


def test_instructions_of_an_engine_follow_each_other() -> None:
    """1,000 ns of work (960 cycles), then 100 cycles, then the next, though they share nothing."""

    def body() -> None:
        a, b, c, d = tiles(4)
        nisa.tensor_copy(b, a)
        nisa.tensor_copy(d, c)

    first, second = events(body)
    assert nanoseconds(first) == pytest.approx((0.0, 1000.0))
    assert nanoseconds(second) == pytest.approx((1000 + 100 / VECTOR, 2000 + 100 / VECTOR))


def test_engines_run_side_by_side() -> None:
    def body() -> None:
        a, b, c, d = tiles(4)
        nisa.tensor_copy(b, a)
        nisa.activation(d, nl.exp, c)

    first, second = events(body)
    assert nanoseconds(first) == pytest.approx((0.0, 1000.0))
    assert second.start_us * 1000 == pytest.approx(1280)  # the first activation table
    assert second.end_us * 1000 == pytest.approx(1280 + N / SCALAR)


def test_a_reader_waits_for_the_result_and_a_writer_for_the_last_read() -> None:
    def body() -> None:
        a, b, c, d = tiles(4)
        nisa.activation(d, nl.exp, a)  # loads the table
        nisa.tensor_copy(b, a)
        nisa.activation(c, nl.exp, b)
        nisa.tensor_copy(b, a)

    _, copy, activation, again = events(body)
    assert activation.start_us * 1000 == pytest.approx(max(1280 + N / SCALAR + 100 / SCALAR, 1000 + 150 + 60))
    assert again.start_us * 1000 == pytest.approx(activation.end_us * 1000 + 60)
    assert copy.start_us == 0.0


def test_other_columns_and_other_partitions_are_no_reason_to_wait() -> None:
    def body() -> None:
        (a, b) = tiles(2)
        nisa.tensor_copy(a[:, 0:480], b[:, 0:480])
        nisa.activation(a[:, 480:960], nl.exp, b[:, 480:960])
        nisa.activation(a[0:64, 0:480], nl.exp, b[0:64, 0:480])

    copy, beside, within = events(body)
    assert beside.start_us * 1000 == pytest.approx(1280)
    assert within.start_us * 1000 == pytest.approx(beside.end_us * 1000 + 100 / SCALAR)
    assert copy.end_us * 1000 == pytest.approx(500)


def test_the_activation_table_is_loaded_where_the_function_changes() -> None:
    def body() -> None:
        a, b = tiles(2)
        for function in (nl.exp, nl.exp, nl.log, nl.exp):
            nisa.activation(b, function, a)

    results = events(body)
    gaps = [results[0].start_us, *(after.start_us - before.end_us for before, after in itertools.pairwise(results))]
    issue = 100 / SCALAR / 1000
    assert gaps == pytest.approx([1.28, issue, issue + 1.28, issue + 1.28])


@pytest.mark.parametrize(
    ("shape", "rows", "published"),
    [((4, 4096), 4 * 8192 / 23, 1416), ((128, 128), 8 * 58, 468)],
)
def test_a_transfer_takes_what_the_published_profiles_show(shape: tuple[int, int], rows: float, published: int) -> None:
    """Four rows of 8 KiB on one engine, and eight rows of 256 bytes on each of sixteen."""

    def body(x: Any) -> None:
        nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x)

    (load,) = events(body, np.zeros(shape, ml_dtypes.bfloat16))
    assert nanoseconds(load) == pytest.approx((0.0, 1000 + rows))
    assert rows == pytest.approx(published, rel=0.01)


def test_what_computes_on_a_load_waits_for_it_and_the_store_waits_for_that() -> None:
    def body(x: Any) -> None:
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(tile, tile)
        nisa.dma_copy(x, tile)

    load, copy, store = events(body, np.zeros((128, N), np.float32))
    rows = 8 * N * 4 / 23
    assert nanoseconds(load) == pytest.approx((0.0, 1000 + rows))
    assert copy.start_us * 1000 == pytest.approx(1000 + rows + 300)
    assert store.start_us * 1000 == pytest.approx(copy.end_us * 1000 + 150 + 60)


def test_triggers_of_a_queue_are_apart_and_the_engines_are_shared() -> None:
    def body(x: Any, y: Any) -> None:
        nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x)
        nisa.dma_copy(nl.ndarray(y.shape, y.dtype), y)

    rows = 8 * N * 4 / 23
    first, second = events(body, np.zeros((128, N), np.float32), np.zeros((128, N), np.float32))
    assert nanoseconds(first) == pytest.approx((0.0, 1000 + rows))
    assert nanoseconds(second) == pytest.approx((600.0, 1000 + 2 * rows))


def test_names_places_and_operands_are_reported() -> None:
    def body() -> None:
        a, b = tiles(2, columns=8, partitions=4)
        nisa.tensor_copy(b, a, name="here")

    (event,) = events(body)
    line = body.__code__.co_firstlineno + 2
    assert (event.core, event.engine, event.name, event.label) == (0, "vector", "tensor_copy", "here")
    assert event.place == f"{__file__}:{line}"
    assert event.operands == {"dst": ((4, 8), "float32"), "src": ((4, 8), "float32")}
    assert event.cycles == 64


def test_each_core_has_its_own_engines() -> None:
    def body() -> None:
        a, b = tiles(2)
        nisa.tensor_copy(b, a)

    results = events(body, cores=2)
    assert [event.core for event in results] == [0, 1]
    assert [nanoseconds(event) for event in results] == [pytest.approx((0.0, 1000.0))] * 2


def test_functions_that_share_a_table_load_it_once() -> None:
    """The functions that do are not published: they are a parameter. A copy needs no table."""

    def body() -> None:
        a, b = tiles(2)
        for function in (nl.exp, nl.copy, nl.log, nl.exp):
            nisa.activation(b, function, a)

    assert _table_loads(events(body)) == 3
    assert _table_loads(events(body, shared_tables=(frozenset({"exp", "log"}),))) == 1
    assert _table_loads(events(body, functions_without_table=frozenset())) == 4


def _table_loads(results: list[Event]) -> int:
    """How many table loads of 1.28 us fit what lies between the instructions beyond the 100 cycles of each."""
    between = results[-1].end_us - sum(event.end_us - event.start_us for event in results)
    return round((between - (len(results) - 1) * 100 / SCALAR / 1000) / 1.28)
