# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A broadcast row stays in PSUM if all who read it can read that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nkilib.nki import nisa, nl

from .running import dropped, events

SWITCH = "keeps_broadcasts_in_psum"
FP32 = nl.float32


def new(columns: int = 512) -> Any:
    return nl.ndarray((128, columns), FP32)


def read_by_vector(x: Any) -> None:
    tile, row = nl.load(x[0:128, :]), nl.load(x[0:1, :])
    nisa.tensor_tensor(new(), tile, nl.broadcast_to(row, (128, 512)), nl.add)


def read_by_gpsimd(x: Any) -> None:
    tile, row = nl.load(x[0:128, :]), nl.load(x[0:1, :])
    nisa.tensor_tensor(new(), tile, nl.broadcast_to(row, (128, 512)), nl.add, engine=nisa.engine.gpsimd)


def read_by_a_transfer(x: Any) -> None:
    nl.store(x[0:128, :], nl.broadcast_to(nl.load(x[0:1, :]), (128, 512)))


def read_beside_psum(x: Any) -> None:
    other = nl.ndarray((128, 512), FP32, nl.psum)
    nisa.memset(other, 0.0)
    nisa.tensor_tensor(new(), other, nl.broadcast_to(nl.load(x[0:1, :]), (128, 512)), nl.add)


def wider_than_a_bank(x: Any) -> None:
    row = nl.load(x[0:4, :].reshape((1, 2048)))
    nisa.tensor_scalar(new(2048), nl.broadcast_to(row, (128, 2048)), nl.add, 1.0)


def changed(x: Any) -> None:
    row = nl.broadcast_to(nl.load(x[0:1, :]), (128, 512))
    nisa.tensor_scalar(row, row, nl.add, 1.0)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (read_by_vector, 1),
        (read_by_gpsimd, 0),
        (read_by_a_transfer, 0),
        (read_beside_psum, 0),
        (wider_than_a_bank, 0),
        (changed, 0),
    ],
)
def test_what_is_dropped(body: Callable[[Any], None], count: int) -> None:
    assert dropped(body, SWITCH) == ["tensor_copy"] * count


def test_a_reader_has_the_cost_of_an_input_in_psum_and_waits_for_the_product() -> None:
    product, copy, add = events(read_by_vector, SWITCH)[-3:]
    assert (product.name, copy.name, add.name) == ("nc_matmul", "tensor_copy", "tensor_tensor")
    assert add.cycles == 512 and add.start_us == pytest.approx(product.end_us + 0.17 + 0.06)


def test_a_copy_of_the_kernel_itself_stays() -> None:
    def body(x: Any) -> None:
        tile, copied = nl.load(x[0:128, :]), new()
        product = nl.ndarray((128, 512), FP32, nl.psum)
        nisa.nc_matmul(product, tile[:, 0:128], tile)
        nisa.tensor_copy(copied, product)
        nisa.tensor_scalar(copied, copied, nl.add, 1.0)

    assert dropped(body, SWITCH) == []
