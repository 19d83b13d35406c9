# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions read their operands before they write: operands that share memory with `dst` in every way.

Each instruction runs twice: with some of its operands in the storage of `dst`, where they overlap at random,
and on copies that do not overlap. Both leave the same values in `dst`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl

from ..kernels import load, normal, store

PARTITIONS, COLUMNS, WIDTH = 4, 24, 6
COMMAND = nisa.reduce_cmd


def backwards(width: int) -> Any:
    """Make the indices of a gather that turns each partition round, in a kernel."""
    made = nl.ndarray((PARTITIONS, width), nl.uint32)
    nisa.iota(made, [[-1, width]], offset=width - 1)
    return made


# (dst, data, other tile, column, other column, predicate, reduce_res); the columns are float32.
Instruction = Callable[[Any, Any, Any, Any, Any, Any, Any], Any]
INSTRUCTIONS: dict[str, Instruction] = {
    "tensor_copy": lambda dst, a, b, v, w, p, r: nisa.tensor_copy(dst, a),
    "reciprocal": lambda dst, a, b, v, w, p, r: nisa.reciprocal(dst, a),
    "tensor_tensor": lambda dst, a, b, v, w, p, r: nisa.tensor_tensor(dst, a, b, nl.subtract),
    "tensor_scalar": lambda dst, a, b, v, w, p, r: nisa.tensor_scalar(dst, a, nl.subtract, v, True, nl.multiply, w),
    "scalar_tensor_tensor": lambda dst, a, b, v, w, p, r: nisa.scalar_tensor_tensor(
        dst, a, nl.multiply, v, nl.subtract, b
    ),
    "tensor_scalar_reduce": lambda dst, a, b, v, w, p, r: nisa.tensor_scalar_reduce(
        dst, a, nl.multiply, v, nl.add, r, reduce_cmd=COMMAND.load_reduce, reduce_init=w
    ),
    "select_reduce": lambda dst, a, b, v, w, p, r: nisa.select_reduce(dst, p, a, v, r, COMMAND.reset_reduce),
    "exponential": lambda dst, a, b, v, w, p, r: nisa.exponential(dst, a, v, r, COMMAND.load_reduce, w),
    "activation": lambda dst, a, b, v, w, p, r: nisa.activation(
        dst, nl.square, a, w, v, nl.add, r, COMMAND.reset_reduce
    ),
    "activation without scale": lambda dst, a, b, v, w, p, r: nisa.activation(dst, nl.abs, a, bias=w),
    "activation without bias": lambda dst, a, b, v, w, p, r: nisa.activation(dst, nl.copy, a, scale=v),
    "gelu": lambda dst, a, b, v, w, p, r: nisa.activation(dst, nl.gelu, a, bias=w),
    "activate2": lambda dst, a, b, v, w, p, r: nisa.activate2(
        dst, nl.prelu, a, v, w, nl.multiply, nl.subtract, v, True, True, nl.abs_max, r, COMMAND.reset_reduce
    ),
    "bn_stats": lambda dst, a, b, v, w, p, r: nisa.bn_stats(dst, a),
    "bn_aggr": lambda dst, a, b, v, w, p, r: nisa.bn_aggr(dst[:, 0:2], a),
    "nc_stream_shuffle": lambda dst, a, b, v, w, p, r: nisa.nc_stream_shuffle(
        dst.view(nl.int16)[:, 0:WIDTH], a.view(nl.int16)[:, 0:WIDTH], [3, 0, 255, *[1] * 29]
    ),
    "nc_n_gather": lambda dst, a, b, v, w, p, r: nisa.nc_n_gather(
        dst.view(nl.int16)[:, 0:WIDTH], a.view(nl.int16)[:, 0:WIDTH], backwards(WIDTH)
    ),
    "tensor_reduce": lambda dst, a, b, v, w, p, r: nisa.tensor_reduce(
        dst[:, 0:2], nl.add, a.reshape((PARTITIONS, 2, 3)), 2
    ),
    "tensor_tensor_scan": lambda dst, a, b, v, w, p, r: nisa.tensor_tensor_scan(dst, a, b, v, nl.multiply, nl.add),
    "tensor_scalar_cumulative": lambda dst, a, b, v, w, p, r: nisa.tensor_scalar_cumulative(
        dst, a, nl.multiply, nl.add, v, w, COMMAND.load_reduce
    ),
    "tensor_partition_reduce": lambda dst, a, b, v, w, p, r: nisa.tensor_partition_reduce(dst[0:1], nl.add, a),
    "tensor_copy_predicated": lambda dst, a, b, v, w, p, r: nisa.tensor_copy_predicated(
        dst.view(nl.bfloat16)[:, 0:WIDTH], a.view(nl.bfloat16)[:, 0:WIDTH], p.view(nl.uint8)
    ),
    "affine_select": lambda dst, a, b, v, w, p, r: nisa.affine_select(dst, [[1, WIDTH]], -1, a, 7.0, nl.less_equal),
    "range_select": lambda dst, a, b, v, w, p, r: nisa.range_select(
        dst, a, nl.greater_equal, nl.greater, v, w, reduce_res=r
    ),
    "bits": lambda dst, a, b, v, w, p, r: nisa.tensor_scalar(
        dst.view(nl.int16)[:, 0:WIDTH],
        a.view(nl.int16)[:, 0:WIDTH],
        nl.bitwise_xor,
        0x1234,
        op1=nl.left_shift,
        operand1=1,
    ),
}


def separate(view: Any) -> Any:
    """Make a tile of its own with the bits of `view`, in a kernel."""
    made = nl.ndarray(view.shape, view.dtype, nl.sbuf)
    nisa.tensor_copy(made, view)
    return made


@pytest.mark.parametrize("name", INSTRUCTIONS)
@pytest.mark.parametrize("seed", range(20))
def test_operands_that_overlap_dst(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    types = [nl.float32, nl.bfloat16]
    dst_type, data_type, other_type = (types[number] for number in rng.integers(0, 2, 3))
    starts = [int(start) for start in rng.integers(0, COLUMNS // 2 - WIDTH, 6)]
    is_in_dst = [True, *(bool(choice) for choice in rng.random(5) < 0.6)]

    def kernel(values: Any, is_apart: bool) -> Any:
        storage = load(values)
        whole = {nl.float32: storage, nl.bfloat16: storage.view(nl.bfloat16), nl.int8: storage.view(nl.int8)}

        def part(dtype: Any, number: int, width: int) -> Any:
            view = whole[dtype][:, starts[number] : starts[number] + width]
            return view if is_in_dst[number] and not is_apart else separate(view)

        dst = part(dst_type, 0, WIDTH)
        inputs = [part(data_type, 1, WIDTH), part(other_type, 2, WIDTH)]
        columns = [part(nl.float32, number, 1) for number in (3, 4)]
        reduced = nl.zeros((PARTITIONS, 1), nl.float32, nl.sbuf)
        INSTRUCTIONS[name](dst, *inputs, *columns, part(nl.int8, 5, WIDTH), reduced)
        return store(dst), store(reduced)

    array = normal(PARTITIONS, COLUMNS, seed=seed)
    with nkilib.simulator.using(target="trn3"):
        overlapping = nki.jit(kernel)(array.copy(), False)
        apart = nki.jit(kernel)(array.copy(), True)
    for got, expected in zip(overlapping, apart, strict=True):
        assert np.array_equal(got.astype(np.float32), expected.astype(np.float32), equal_nan=True)
