# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Races of two cores on shared HBM: which accesses meet, and what orders them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator.machine.races import SharedAccesses, check_all_races
from nkilib.simulator.memory.storage import Storage
from nkilib.simulator.tensors.tensor import NkiTensor
from nkilib.simulator.terms.errors import RaceError
from nkilib.simulator.terms.layout import Layout

from ..kernels import tile

CORES = (0, 1)


def on_two_cores(body: Callable[..., Any], rows: int = 8, columns: int = 6, **options: Any) -> Any:
    """Run ``body(shared, core)`` on both cores, on an array of zeros in shared HBM."""

    def kernel(shared: Any) -> Any:
        body(shared, nl.program_id(0))
        return shared

    with nkilib.simulator.using(**options):
        return nki.jit(kernel)[2](np.zeros((rows, columns), np.float32))


def race(body: Callable[..., Any]) -> str:
    """The message of the race in ``body``."""
    with pytest.raises(RaceError) as caught:
        on_two_cores(body)
    return str(caught.value)


def write(view: Any) -> None:
    """Run a DMA into ``view`` in a kernel, of ones by core 0 and twos by core 1."""
    nisa.dma_copy(view, tile(*view.shape, value=1 + nl.program_id(0)))


def read(view: Any) -> None:
    """Run a DMA from ``view``, in a kernel."""
    nisa.dma_copy(tile(*view.shape), view)


# -- What is a race ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(write, write), (write, read), (read, write)])
def test_the_same_element_written_by_one_core_and_touched_by_the_other(first: Any, second: Any) -> None:
    """Rows 0 to 4 and rows 4 to 7 share row 4, from column 0 on."""

    def kernel(shared: Any, core: int) -> None:
        if core == 0:
            first(shared[0:5, :])
        else:
            second(shared[4:8, :])

    message = race(kernel)
    verbs = {write: "writes", read: "reads"}
    assert message.startswith(
        f"race on tensor 'shared' [8, 6] float32 in shared_hbm: core 0 {verbs[first]} element [4, 0] at {__file__}:"
    )
    assert f" and core 1 {verbs[second]} it at {__file__}:" in message
    assert message.endswith(
        "; let the cores use different elements, or put nisa.core_barrier on this tensor between the two; if it does "
        "no harm, using(races='ignore') or NKILIB_RACES=ignore lets it run"
    )


def test_both_may_read() -> None:
    with nkilib.simulator.recording() as record:
        on_two_cores(lambda shared, core: read(shared))
    assert record.hbm_read_bytes == 2 * 8 * 6 * 4


def test_a_core_may_access_again_what_it_wrote() -> None:
    def kernel(shared: Any, core: int) -> None:
        for _ in range(2):
            write(shared[4 * core : 4 * core + 4, :])
            read(shared[4 * core : 4 * core + 4, :])

    assert on_two_cores(kernel)[:, 0].tolist() == [1] * 4 + [2] * 4


def test_interleaved_rows_do_not_overlap() -> None:
    """A bounding box would call it a race: both cores reach from the first rows to the last."""

    def kernel(shared: Any, core: int) -> None:
        read(shared[core::2, :])
        write(shared[core::2, :])

    assert on_two_cores(kernel)[:, 5].tolist() == [1, 2] * 4


def test_interleaved_columns_do_not_overlap_but_every_second_and_every_third_do() -> None:
    assert on_two_cores(lambda shared, core: write(shared[:, core::2]))[7].tolist() == [1, 2] * 3

    def kernel(shared: Any, core: int) -> None:
        write(shared[:, 0::2] if core == 0 else shared[:, 1::3])  # 0, 2, 4 and 1, 4

    assert "core 0 writes element [0, 4]" in race(kernel)


def test_neighbouring_elements_of_two_bytes_do_not_overlap() -> None:
    def kernel(shared: Any) -> Any:
        core = nl.program_id(0)
        nisa.dma_copy(shared[:, core::2], tile(4, 3, dtype=nl.bfloat16, value=1 + core))
        return shared

    assert nki.jit(kernel)[2](np.zeros((4, 6), nl.bfloat16.numpy))[3].tolist() == [1, 2] * 3


def test_views_of_another_type_overlap_where_their_bytes_do() -> None:
    """The low halves of float32 elements are no race with the high halves, the whole elements are one with either."""

    def halves(shared: Any, core: int) -> None:
        nisa.dma_copy(shared.view(nl.uint16)[:, core::2], tile(8, 6, dtype=nl.uint16))

    on_two_cores(halves)

    def whole(shared: Any, core: int) -> None:
        if core == 0:
            nisa.dma_copy(shared.view(nl.uint16)[:, 1::2], tile(8, 6, dtype=nl.uint16))
        else:
            write(shared)

    assert "core 0 writes element [0, 0]" in race(whole)


def test_a_gather_reads_the_rows_that_its_indices_name() -> None:
    """Core 1 gathers rows 5 and 2: core 0 may write row 3, not row 5."""

    def kernel(written: int) -> Callable[..., None]:
        def body(shared: Any, core: int) -> None:
            if core == 0:
                write(shared[written : written + 1, :])
                return
            index = nl.ndarray((2, 1), nl.int32)
            nisa.iota(index, [[1, 1]], offset=5, channel_multiplier=-3)
            nisa.dma_copy(tile(2, 6), shared.vector_select(0, index))

        return body

    on_two_cores(kernel(3))
    assert "core 0 writes element [5, 0]" in race(kernel(5))
    assert "core 0 writes element [2, 0]" in race(kernel(2))


def test_a_scatter_writes_the_rows_that_its_indices_name() -> None:
    def kernel(shared: Any, core: int) -> None:
        index = nl.ndarray((2, 1), nl.int32)
        nisa.iota(index, [[1, 1]], offset=3 * core, channel_multiplier=3)  # rows 0 and 3, rows 3 and 6
        nisa.dma_copy(shared.vector_select(0, index), tile(2, 6))

    assert "core 0 writes element [3, 0]" in race(kernel)


def test_an_index_out_of_range_that_is_skipped_touches_nothing() -> None:
    def kernel(shared: Any, core: int) -> None:
        index = nl.ndarray((2, 1), nl.int32)
        nisa.iota(index, [[1, 1]], offset=core, channel_multiplier=100)
        nisa.dma_copy(shared.vector_select(0, index), tile(2, 6, value=1 + core), oob_mode=nisa.oob_mode.skip)

    assert on_two_cores(kernel)[:, 0].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]


def write_the_same(view: Any, value: Any = 7) -> None:
    """Run a DMA into ``view`` in a kernel, of values that do not depend on the core."""
    nisa.dma_copy(view, tile(*view.shape, value=value))


def test_both_may_write_the_same_values_to_the_same_place_and_read_them() -> None:
    def kernel(shared: Any, core: int) -> None:
        write_the_same(shared[2:5, :])
        write_the_same(shared[2:5, :], 8)
        read(shared[2:5, :])

    result = on_two_cores(kernel)
    assert (result[2:5] == 8).all() and (result[:2] == 0).all()


def test_the_same_values_in_another_order_or_to_overlapping_places_are_a_race() -> None:
    def order(shared: Any, core: int) -> None:
        write_the_same(shared[2:5, :], 7 + core)
        write_the_same(shared[2:5, :], 8 - core)

    def places(shared: Any, core: int) -> None:
        write_the_same(shared[2 + core : 5 + core, :])

    assert "core 0 writes element [2, 0]" in race(order)
    assert "core 0 writes element [3, 0]" in race(places)


def test_the_same_values_are_a_race_with_what_only_one_core_does() -> None:
    def kernel(shared: Any, core: int) -> None:
        write_the_same(shared[2:5, :])
        if core == 1:
            write(shared[4:6, :])

    assert "core 0 writes element [4, 0]" in race(kernel)


def test_large_writes_are_compared_in_pieces() -> None:
    """Writes beyond 1 MiB are compared so; values that differ everywhere differ in the pieces."""

    def same(shared: Any, core: int) -> None:
        write_the_same(shared)

    def other(shared: Any, core: int) -> None:
        write(shared)

    for columns in (4096, 4097, 8192):
        on_two_cores(same, 64, columns)
        with pytest.raises(RaceError):
            on_two_cores(other, 64, columns)


def test_large_writes_whose_rows_are_not_dense_are_compared_in_pieces() -> None:
    """Every other run of elements of the rows; those of 16 are shorter than a piece."""

    def every_other_run(shared: Any, width: int, value: float) -> None:
        view = shared.reshape((8, 16384 // (2 * width), 2 * width))[:, :, 0:width]
        nisa.dma_copy(view, tile(*view.shape, value=value))

    for width in (2048, 16):
        on_two_cores(lambda shared, core, width=width: every_other_run(shared, width, 1.0), 8, 16384)
        with pytest.raises(RaceError):
            on_two_cores(
                lambda shared, core, width=width: every_other_run(shared, width, 1.0 + nl.program_id(0)), 8, 16384
            )


def test_both_may_fill_a_tensor_that_they_make_but_not_while_one_writes_it() -> None:
    def filled(shared: Any, core: int) -> None:
        nl.zeros((512, 4096), nl.float32, nl.shared_hbm)

    def written_beside(shared: Any, core: int) -> None:
        made = nl.zeros((8, 6), nl.float32, nl.shared_hbm)
        write(made[4 * core : 4 * core + 4, :])

    def written_after(shared: Any, core: int) -> None:
        made = nl.zeros((8, 6), nl.float32, nl.shared_hbm)
        nisa.core_barrier(made, CORES)
        write(made[4 * core : 4 * core + 4, :])

    on_two_cores(filled)
    assert "race on tensor [8, 6] float32 in shared_hbm: core 0 writes element [0, 0]" in race(written_beside)
    on_two_cores(written_after)


def test_registers_read_and_write_shared_memory_too() -> None:
    def kernel(shared: Any, core: int) -> None:
        count = nl.ndarray((1,), nl.int32, nl.shared_hbm, name="count")
        if core == 0:
            nisa.register_store(count, nisa.register_alloc(3))
        else:
            register = nisa.register_alloc()
            nisa.dma_copy(count, tile(1, 1, dtype=nl.int32))
            nisa.register_load(register, count)

    assert "race on tensor 'count' [1] int32 in shared_hbm: core 0 writes element [0]" in race(kernel)


def test_private_tensors_are_no_matter() -> None:
    def kernel(shared: Any, core: int) -> None:
        own = nl.ndarray((4, 4), nl.float32, nl.private_hbm)
        write(own)
        read(own)
        nisa.dma_copy(shared[core : core + 1, 0:4], own[0:1, :])

    assert on_two_cores(kernel)[:2, 0].tolist() == [1, 2]


def test_a_shared_tensor_that_the_kernel_makes_is_watched_too() -> None:
    def kernel(shared: Any, core: int) -> None:
        write(nl.ndarray((4, 4), nl.float32, nl.shared_hbm, name="mine"))

    assert "race on tensor 'mine' [4, 4] float32 in shared_hbm: core 0 writes element [0, 0]" in race(kernel)


def test_one_core_has_no_races() -> None:
    def kernel(shared: Any) -> Any:
        write(shared)
        read(shared)
        return shared

    assert (nki.jit(kernel)[1](np.zeros((4, 4), np.float32)) == 1).all()


def test_races_ignore_lets_the_kernel_run() -> None:
    result = on_two_cores(lambda shared, core: write(shared), races="ignore")
    assert np.isin(result, (1, 2)).all()


# -- What orders two accesses ------------------------------------------------------------------------------------------


def test_a_barrier_orders_what_is_before_it_with_what_is_after_it() -> None:
    def kernel(shared: Any, core: int) -> None:
        write(shared[4 * core : 4 * core + 4, :])
        nisa.core_barrier(shared, CORES)
        read(shared)

    assert on_two_cores(kernel)[:, 3].tolist() == [1] * 4 + [2] * 4

    def without(shared: Any, core: int) -> None:
        write(shared[4 * core : 4 * core + 4, :])
        read(shared)

    race(without)


def test_what_both_do_before_a_barrier_or_after_it_stays_a_race() -> None:
    def before(shared: Any, core: int) -> None:
        write(shared)
        nisa.core_barrier(shared, CORES)

    def after(shared: Any, core: int) -> None:
        nisa.core_barrier(shared, CORES)
        write(shared)

    assert "nisa.core_barrier on core 0: race on tensor 'shared'" in race(before)
    assert race(after).startswith("race on tensor 'shared'")


def test_a_barrier_on_one_tensor_orders_no_other() -> None:
    def kernel(shared: Any, core: int) -> None:
        other = nl.ndarray((8, 6), nl.float32, nl.shared_hbm, name="other")
        if core == 0:
            write(other)
        nisa.core_barrier(shared, CORES)
        if core == 1:
            read(other)

    # Whether core 1 finds the elements written is not what is asked here: the barrier makes core 0 come first.
    assert "race on tensor 'other'" in race(kernel)


def test_barriers_on_different_tensors_do_not_match() -> None:
    def kernel(shared: Any, core: int) -> None:
        other = nl.ndarray((8, 6), nl.float32, nl.shared_hbm)
        nisa.core_barrier(other if core else shared, CORES)

    with pytest.raises(nkilib.simulator.BarrierError, match="the cores wait on different tensors"):
        on_two_cores(kernel)


# -- Every layout, against sets of elements ----------------------------------------------------------------------------

SIZE = 48


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout of up to three dimensions inside ``SIZE`` elements, negative and zero strides included."""
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    strides = tuple(draw(st.lists(st.integers(-8, 8), min_size=len(shape), max_size=len(shape))))
    reach = [stride * (size - 1) if size else 0 for size, stride in zip(shape, strides, strict=True)]
    low = -sum(step for step in reach if step < 0)
    high = sum(step for step in reach if step > 0)
    if low + high >= SIZE:
        return Layout((2,), (1,), 0)
    return Layout(shape, strides, draw(st.integers(low, SIZE - 1 - high)))


def elements(layout: Layout, rows: list[int] | None = None) -> set[int]:
    """The elements of a layout, one by one, or of some of its rows."""
    result = set()
    for position in np.ndindex(layout.shape):
        if rows is None or position[0] in rows:
            result.add(layout.offset + sum(i * stride for i, stride in zip(position, layout.strides, strict=True)))
    return result


@given(layouts(), layouts(), st.sampled_from(["rw", "wr", "ww", "rr"]), st.data())
def test_two_accesses_race_if_and_only_if_they_share_an_element(
    first: Layout, second: Layout, kinds: str, data: st.DataObject
) -> None:
    storage = Storage((SIZE,), nl.float32, nl.shared_hbm, "x")
    tensor = NkiTensor((SIZE,), nl.float32, storage, nl.shared_hbm, "x")
    touched = []
    sides = []
    for core, (layout, kind) in enumerate(zip((first, second), kinds, strict=True)):
        rows = None
        if data.draw(st.booleans()) and layout.shape[0]:
            rows = data.draw(st.lists(st.integers(0, layout.shape[0] - 1), max_size=4))
        accesses = SharedAccesses(core)
        accesses.moved(
            tensor.with_layout(layout), kind == "w", None if rows is None else np.array(rows, np.int64), None
        )
        touched.append(elements(layout, rows))
        sides.append(accesses)
    shared = touched[0] & touched[1]
    if shared and kinds != "rr":
        with pytest.raises(RaceError) as caught:
            check_all_races(*sides)
        element = int(str(caught.value).split("element [")[1].split("]")[0])
        assert element in shared
    else:
        check_all_races(*sides)
