# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Views without elements, as kernels make where a core has no rows: nothing happens, and sums are those of nothing."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ..kernels import Body, Result, execute, run, tile

COMMAND = nisa.reduce_cmd


def flat(*shape: int, dtype: Any = nl.float32) -> Any:
    """Make a view with the partitions of a tile and none of its columns, in a kernel."""
    made = tile(*shape, dtype=dtype)
    return made[:, 0:0]


def none(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
    """Make a view with the columns of a tile and none of its partitions, in a kernel."""
    return tile(*shape, dtype=dtype, buffer=buffer)[0:0]


U8, U16, U32, I32, BF16 = nl.uint8, nl.uint16, nl.uint32, nl.int32, nl.bfloat16

WITHOUT_COLUMNS: dict[str, Body] = {
    "tensor_copy": lambda: nisa.tensor_copy(flat(2, 2), flat(2, 2)),
    "memset": lambda: nisa.memset(flat(2, 2), 1),
    "reciprocal": lambda: nisa.reciprocal(flat(2, 2), flat(2, 2)),
    "tensor_tensor": lambda: nisa.tensor_tensor(flat(2, 2), flat(2, 2), flat(2, 2), nl.add),
    "tensor_scalar": lambda: nisa.tensor_scalar(flat(2, 2), flat(2, 2), nl.add, tile(2, 1)),
    "scalar_tensor_tensor": lambda: nisa.scalar_tensor_tensor(flat(2, 2), flat(2, 2), nl.add, 1.0, nl.add, flat(2, 2)),
    "tensor_tensor_scan": lambda: nisa.tensor_tensor_scan(
        flat(2, 2), flat(2, 2), flat(2, 2), tile(2, 1), nl.add, nl.add
    ),
    "tensor_copy_predicated": lambda: nisa.tensor_copy_predicated(flat(2, 2), flat(2, 2), flat(2, 2, dtype=U8)),
    "nc_n_gather": lambda: nisa.nc_n_gather(flat(2, 2), tile(2, 2), flat(2, 2, dtype=U32)),
    "nc_stream_shuffle": lambda: nisa.nc_stream_shuffle(flat(32, 2), flat(32, 2), [0] * 32),
    "nonzero_with_count": lambda: nisa.nonzero_with_count(tile(16, 1, dtype=I32), flat(16, 2)),
    "rng": lambda: nisa.rng(flat(2, 2, dtype=U32)),
    "rand2": lambda: nisa.rand2(flat(2, 2), 0.0, 1.0),
    "dropout": lambda: nisa.dropout(flat(2, 2), flat(2, 2), tile(2, 1)),
    "quantize_mx": lambda: nisa.quantize_mx(
        flat(32, 1, dtype=nl.float8_e5m2_x4), flat(32, 4, dtype=BF16), flat(32, 1, dtype=U8)
    ),
    "dma_copy": lambda: nisa.dma_copy(flat(2, 2), flat(2, 2)),
    "dma_compute": lambda: nisa.dma_compute(flat(2, 2), [flat(2, 2), flat(2, 2)], nl.add),
}

WITHOUT_PARTITIONS: dict[str, Body] = {
    "tensor_copy": lambda: nisa.tensor_copy(none(2, 2), none(2, 2)),
    "memset": lambda: nisa.memset(none(2, 2), 1),
    "reciprocal": lambda: nisa.reciprocal(none(2, 2), none(2, 2)),
    "tensor_tensor": lambda: nisa.tensor_tensor(none(2, 2), none(2, 2), none(2, 2), nl.add),
    "tensor_scalar": lambda: nisa.tensor_scalar(none(2, 2), none(2, 2), nl.add, none(2, 1)),
    "tensor_reduce": lambda: nisa.tensor_reduce(none(2, 1), nl.max, none(2, 2), 1),
    "scalar_tensor_tensor": lambda: nisa.scalar_tensor_tensor(none(2, 2), none(2, 2), nl.add, 1.0, nl.add, none(2, 2)),
    "tensor_scalar_reduce": lambda: nisa.tensor_scalar_reduce(
        none(2, 2), none(2, 2), nl.add, none(2, 1), nl.max, none(2, 1)
    ),
    "select_reduce": lambda: nisa.select_reduce(
        none(2, 2), none(2, 2, dtype=U8), none(2, 2), none(2, 1), none(2, 1), COMMAND.reset_reduce
    ),
    "exponential": lambda: nisa.exponential(none(2, 2), none(2, 2), none(2, 1), none(2, 1), COMMAND.reset_reduce),
    "range_select": lambda: nisa.range_select(
        none(2, 2), none(2, 2), nl.less, nl.less, none(2, 1), none(2, 1), COMMAND.reset_reduce, none(2, 1)
    ),
    "affine_select": lambda: nisa.affine_select(none(2, 2), [[1, 2]], 1, none(2, 2), 0.0),
    "tensor_tensor_scan": lambda: nisa.tensor_tensor_scan(
        none(2, 2), none(2, 2), none(2, 2), none(2, 1), nl.add, nl.add
    ),
    "tensor_copy_predicated": lambda: nisa.tensor_copy_predicated(none(2, 2), none(2, 2), none(2, 2, dtype=U8)),
    "local_gather": lambda: nisa.local_gather(none(16, 32), none(16, 2), none(16, 2, dtype=U16)),
    "nc_n_gather": lambda: nisa.nc_n_gather(none(2, 2), none(2, 2), none(2, 2, dtype=U32)),
    "nc_stream_shuffle": lambda: nisa.nc_stream_shuffle(none(32, 2), none(32, 2), [0] * 32),
    "bn_stats": lambda: nisa.bn_stats(none(2, 6), none(2, 8)),
    "bn_aggr": lambda: nisa.bn_aggr(none(2, 2), none(2, 6)),
    "max8": lambda: nisa.max8(none(2, 8), none(2, 8)),
    "nc_find_index8": lambda: nisa.nc_find_index8(none(2, 8, dtype=U32), none(2, 8), none(2, 8)),
    "nc_match_replace8": lambda: nisa.nc_match_replace8(none(2, 8), none(2, 8), none(2, 8), 0.0, none(2, 8, dtype=U32)),
    "topk": lambda: nisa.topk(none(16, 8, dtype=BF16), none(16, 8, dtype=U32), none(16, 1, dtype=BF16), 8),
    "nonzero_with_count": lambda: nisa.nonzero_with_count(none(16, 3, dtype=I32), none(16, 2)),
    "rng": lambda: nisa.rng(none(2, 2, dtype=U32)),
    "rand2": lambda: nisa.rand2(none(2, 2), none(2, 1), none(2, 1)),
    "dropout": lambda: nisa.dropout(none(2, 2), none(2, 2), none(2, 1)),
    "dma_copy": lambda: nisa.dma_copy(none(2, 2), none(2, 2)),
    "dma_compute": lambda: nisa.dma_compute(none(2, 2), [none(2, 2), none(2, 2)], nl.add),
}


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tiles that the kernels of a test have made, each with one memset."""
    made: list[Any] = []
    make = tile

    def remembered(*shape: int, **options: Any) -> Any:
        made.append(make(*shape, **options))
        return made[-1]

    monkeypatch.setitem(globals(), "tile", remembered)
    return made


@pytest.mark.parametrize("name", WITHOUT_COLUMNS)
def test_without_columns(name: str, tiles: list[Any]) -> None:
    with nkilib.simulator.recording() as record:
        execute(WITHOUT_COLUMNS[name], "trn3")
    assert record.instruction_counts - Counter(memset=len(tiles)) == {name: 1}
    assert not any(made.array.any() for made in tiles)


@pytest.mark.parametrize("name", WITHOUT_PARTITIONS)
def test_without_partitions(name: str, tiles: list[Any]) -> None:
    with nkilib.simulator.recording() as record:
        execute(WITHOUT_PARTITIONS[name], "trn3")
    assert record.instruction_counts - Counter(memset=len(tiles)) == {name: 1}
    assert not any(made.array.any() for made in tiles)


@pytest.mark.parametrize(
    ("name", "identity"), [("add", 0), ("multiply", 1), ("max", -math.inf), ("min", math.inf)], ids=str
)
def test_a_reduction_of_nothing_is_the_identity(name: str, identity: float) -> None:
    op = getattr(nl, name)

    def body(beside: Any, alone: Any, kept: Any) -> None:
        nisa.tensor_scalar_reduce(flat(2, 2), flat(2, 2), nl.add, 1.0, op, beside)
        nisa.tensor_reduce(alone, op, flat(2, 2), 1)
        nisa.tensor_reduce(kept, op, tile(2, 3, 2)[:, :, 0:0], 2)

    results = run(body, [], Result((2, 1)), Result((2, 1)), Result((2, 3)))
    assert [result.tolist() for result in results] == [[[identity]] * 2, [[identity]] * 2, [[identity] * 3] * 2]


def test_the_maximum_of_a_selection_from_nothing() -> None:
    def body(selected: Any, in_range: Any, total: Any) -> None:
        nisa.select_reduce(flat(2, 2), flat(2, 2, dtype=U8), flat(2, 2), 0.0, selected, COMMAND.reset_reduce)
        nisa.range_select(
            flat(2, 2), flat(2, 2), nl.less, nl.less, tile(2, 1), tile(2, 1), COMMAND.reset_reduce, in_range
        )
        nisa.exponential(flat(2, 2), flat(2, 2), 0.0, total, COMMAND.load_reduce, 3.0)

    results = run(body, [], *[Result((2, 1))] * 3, target="trn3")
    assert [result.tolist() for result in results] == [[[-math.inf]] * 2, [[-math.inf]] * 2, [[3]] * 2]


def test_a_count_of_nothing_is_0() -> None:
    result = run(lambda dst: nisa.nonzero_with_count(dst, flat(1, 2)), [], Result((1, 1), I32))
    assert result.tolist() == [[0]]
