# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A memset is dropped only if nothing can read what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nkilib.nki import nisa, nl

from .running import dropped, events

SWITCH = "drops_dead_stores"
FP32 = nl.float32


def sbuf(columns: int = 512) -> Any:
    return nl.ndarray((128, columns), FP32)


def into_zeros(x: Any) -> None:
    """A product in a tile of zeros, as kernels write it."""
    tile = nl.load(x[0:128, :])
    product = nl.zeros((128, 512), FP32, nl.psum)
    nisa.nc_matmul(product, tile[:, 0:128], tile)
    nisa.tensor_copy(sbuf(), product)


def into_parts(x: Any) -> None:
    """Four products overwrite a fill of four banks."""
    tile = nl.load(x[0:128, :])
    product = nl.zeros((128, 4, 512), FP32, nl.psum)
    for bank in range(4):
        nisa.nc_matmul(product[:, bank, :], tile[:, 0:128], tile)


def into_some_parts(x: Any) -> None:
    tile = nl.load(x[0:128, :])
    product = nl.zeros((128, 4, 512), FP32, nl.psum)
    for bank in range(3):
        nisa.nc_matmul(product[:, bank, :], tile[:, 0:128], tile)


def read_before(_: Any) -> None:
    tile, other = sbuf(), sbuf()
    nisa.memset(tile, 0.0)
    nisa.tensor_copy(other, tile)
    nisa.memset(tile, 1.0)
    nisa.tensor_copy(other, tile)


def read_in_place(x: Any) -> None:
    total = sbuf()
    nisa.memset(total, 0.0)
    nisa.tensor_tensor(total, total, nl.load(x[0:128, :]), nl.add)


def read_elsewhere(_: Any) -> None:
    """One half is overwritten, of the other half a column is read."""
    tile = sbuf()
    nisa.memset(tile, 0.0)
    nisa.memset(tile[:, 0:256], 1.0)
    nisa.tensor_copy(sbuf(1), tile[:, 300:301])


def stored(x: Any) -> None:
    tile = sbuf()
    nisa.memset(tile, 0.0)
    nisa.dma_copy(x[0:128, :], tile)
    nisa.memset(tile, 1.0)
    nisa.dma_copy(x[0:128, :], tile)


def loaded_over(x: Any) -> None:
    tile = sbuf()
    nisa.memset(tile, 0.0)
    nisa.dma_copy(tile, x[0:128, :])


def partly_selected(_: Any) -> None:
    """Elements that a predicate leaves are still the fill."""
    tile, predicate = sbuf(), nl.ndarray((128, 512), nl.uint8)
    nisa.memset(tile, 0.0)
    nisa.tensor_copy_predicated(tile, sbuf(), predicate)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (into_zeros, 1),
        (into_parts, 1),
        (into_some_parts, 0),
        (read_before, 0),
        (read_in_place, 0),
        (read_elsewhere, 0),
        (stored, 0),
        (loaded_over, 1),
        (partly_selected, 0),
    ],
)
def test_what_is_dropped(body: Callable[[Any], None], count: int) -> None:
    assert dropped(body, SWITCH) == ["memset"] * count


@pytest.mark.parametrize(("value", "count"), [(0.0, 1), (1.0, 0)])
def test_on_trn3_a_product_adds_to_what_was_filled_in(value: float, count: int) -> None:
    """There a product adds to all that was written: only zeros make no difference."""

    def body(x: Any) -> None:
        tile = nl.load(x[0:128, :])
        product = nl.full((128, 512), value, FP32, nl.psum)
        nisa.nc_matmul(product, tile[:, 0:128], tile)

    assert len(dropped(body, SWITCH, target="trn3")) == count
    assert len(dropped(body, SWITCH)) == 1


def test_a_dropped_instruction_takes_no_time_and_keeps_its_place() -> None:
    memset = next(event for event in events(into_zeros, SWITCH) if event.name == "memset")
    assert memset.number == 2 and memset.start_us == memset.end_us and memset.cycles == 0.0


def test_beyond_a_barrier_nothing_is_known() -> None:
    def body(x: Any) -> None:
        tile = sbuf()
        nisa.memset(tile, 0.0)
        nisa.core_barrier(x, (0, 1))
        nisa.memset(tile, 1.0)

    assert dropped(body, SWITCH, cores=2) == []


def test_far_behind_nothing_is_known() -> None:
    """The overwriting instruction comes after all that is held back."""

    def body(_: Any) -> None:
        tile, other = sbuf(), sbuf()
        nisa.memset(tile, 0.0)
        for _ in range(1024):
            nisa.tensor_copy(other, other)
        nisa.memset(tile, 1.0)

    assert dropped(body, SWITCH) == []
