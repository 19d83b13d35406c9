# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensor indirection of trn3: `t.indirect(index)` as a gathered input and as a scattered output.

Expected values come from loops over the documented rule: offset i of a group of G partitions is `index[i % G, i // G]`
of that group, and chooses a free element for every partition of it.
"""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator import NkiValidationError, OutOfRangeError, UninitializedReadError, using
from nkilib.simulator.isa.indirection import RULES
from tests.simulator.frame import counted, empty, in_hbm, in_sbuf, indices, refused
from tests.simulator.kernels import Result, Tile, execute, normal, refusal, run, tile
from tests.simulator.made import Made, Psum, Sbuf
from tests.simulator.refused_views import TensorOf, constraints
from tests.simulator.rules import Rule, broken, check_rule, legal, legal_kernel, rules

TRN3 = "trn3"


def offsets(partitions: int, columns: int, limit: int, group: int = 16, seed: int = 0) -> Any:
    """Offsets below `limit`, of which no two of one group are the same where there are enough of them."""
    rng = np.random.default_rng(seed)
    index = np.empty((partitions, columns), np.int32)
    for first in range(0, partitions, group):
        block = index[first : first + group]
        chosen = rng.permutation(limit)[: block.size] if limit >= block.size else rng.integers(0, limit, block.size)
        block[...] = chosen.reshape(block.shape)
    return index


def chosen_elements(index: Any, count: int, group: int = 16) -> Any:
    """The free element of each partition and gathered element, by the documented rule."""
    result = np.empty((len(index), count), np.int64)
    for partition in range(len(index)):
        first = partition // group * group
        for i in range(count):
            result[partition, i] = index[first + i % group, i // group]
    return result


def gathered(array: Any, index: Any, count: int, group: int = 16) -> Any:
    return np.take_along_axis(array, chosen_elements(index, count, group), 1)


def scattered(into: Any, index: Any, values: Any, group: int = 16) -> Any:
    result = into.copy()
    np.put_along_axis(result, chosen_elements(index, values.shape[1], group), values, 1)
    return result


# -- the view --------------------------------------------------------------------------------------------------


def test_the_view_has_a_column_for_each_offset() -> None:
    with using(target=TRN3):
        view = empty(16, 64, buffer=nl.sbuf).indirect(in_sbuf(np.zeros((16, 3), np.int32)))
        assert view.shape == (16, 48) and view.is_indirect() and view.buffer is nl.sbuf
        assert empty(128, 64, buffer=nl.psum).indirect(in_sbuf(np.zeros((128, 3), np.int32)), 40).shape == (128, 40)
        index = in_sbuf(np.zeros((16, 1), np.uint16))
        assert empty(16, 8, 8, buffer=nl.sbuf).indirect(index, num_elem=5).shape == (16, 5)


@pytest.mark.parametrize(
    ("partitions", "columns", "count"), [(16, 3, 48), (32, 3, 40), (128, 2, 17), (40, 2, 8), (1, 1, 1)]
)
def test_a_gather_goes_down_the_partitions_of_a_group_and_then_to_the_next_column(
    partitions: int, columns: int, count: int
) -> None:
    array, index = normal(partitions, 64), offsets(partitions, columns, 64)
    result = run(
        lambda out, data, at: nisa.tensor_copy(out, data.indirect(at, count)),
        [array, index],
        Result((partitions, count)),
        target=TRN3,
    )
    np.testing.assert_array_equal(result, gathered(array, index, count), strict=True)


def test_groups_have_offsets_of_their_own() -> None:
    array = counted(32, 4)
    index = np.repeat(np.array([[3], [0]], np.int32), 16, axis=0)
    result = run(
        lambda out, data, at: nisa.tensor_copy(out, data.indirect(at, 1)), [array, index], Result((32, 1)), target=TRN3
    )
    np.testing.assert_array_equal(result[:, 0], [*array[:16, 3], *array[16:, 0]])


def test_a_scatter_writes_the_chosen_elements_and_no_others() -> None:
    values, index = normal(32, 40), offsets(32, 3, 64)

    def body(out: Any, data: Any, at: Any) -> None:
        nisa.memset(out, -9)
        nisa.tensor_copy(out.indirect(at, 40), data)

    result = run(body, [values, index], Result((32, 64)), target=TRN3)
    np.testing.assert_array_equal(result, scattered(np.full((32, 64), -9, np.float32), index, values), strict=True)


def test_of_several_values_for_one_element_the_last_one_stays() -> None:
    values, index = counted(16, 4), np.full((16, 1), 2, np.int32)

    def body(out: Any, data: Any, at: Any) -> None:
        nisa.memset(out, -1)
        nisa.tensor_copy(out.indirect(at, 4), data)

    result = run(body, [values, index], Result((16, 3)), target=TRN3)
    np.testing.assert_array_equal(result, [[-1, -1, row[3]] for row in values])


def test_gather_and_scatter_in_one_instruction_on_one_tile() -> None:
    array, source, target = normal(16, 64), offsets(16, 1, 64), offsets(16, 1, 64, seed=1)

    def body(out: Any, data: Any, at: Any, to: Any) -> None:
        nisa.tensor_copy(out, data)
        nisa.tensor_copy(out.indirect(to, 16), out.indirect(at, 16))

    result = run(body, [array, source, target], Result((16, 64)), target=TRN3)
    np.testing.assert_array_equal(result, scattered(array, target, gathered(array, source, 16)), strict=True)


def test_offsets_count_the_dense_elements_of_the_view_that_is_indexed() -> None:
    array, index = normal(64, 4, 8), offsets(32, 1, 16)

    def body(out: Any, data: Any, at: Any) -> None:
        nisa.tensor_copy(out, data[32:64, 1:3].indirect(at, 16))

    result = run(body, [array, index], Result((32, 16)), target=TRN3)
    np.testing.assert_array_equal(result, gathered(array[32:, 1:3].reshape(32, 16), index, 16), strict=True)


def test_a_gathered_view_can_be_reshaped() -> None:
    array, index = normal(16, 64), offsets(16, 1, 64)

    def body(out: Any, data: Any, at: Any) -> None:
        view = data.indirect(at, 12).reshape_dim(1, (3, 4)).permute((0, 2, 1)).expand_dim(2).broadcast(2, 2)
        nisa.tensor_copy(out, view[...])

    result = run(body, [array, index], Result((16, 4, 2, 3)), target=TRN3)
    expected = gathered(array, index, 12).reshape(16, 3, 4).transpose(0, 2, 1)[:, :, None]
    np.testing.assert_array_equal(result, np.repeat(expected, 2, 2), strict=True)


def test_a_scatter_through_a_reshaped_view() -> None:
    values, index = normal(16, 4, 3), offsets(16, 1, 64)

    def body(out: Any, data: Any, at: Any) -> None:
        nisa.memset(out, 0)
        nisa.tensor_copy(out.indirect(at, 12).reshape((16, 3, 4)).permute((0, 2, 1)), data)

    result = run(body, [values, index], Result((16, 64)), target=TRN3)
    flat = values.transpose(0, 2, 1).reshape(16, 12)
    np.testing.assert_array_equal(result, scattered(np.zeros((16, 64), np.float32), index, flat), strict=True)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.int32, np.uint8])
def test_every_type_is_gathered_bit_by_bit(dtype: Any) -> None:
    array = np.random.default_rng(0).integers(0, 100, (16, 20)).astype(dtype)
    index = offsets(16, 1, 20)
    out = Result((16, 16), nl.bfloat16 if dtype == ml_dtypes.bfloat16 else np.dtype(dtype).name)
    result = run(lambda out, data, at: nisa.tensor_copy(out, data.indirect(at)), [array, index], out, target=TRN3)
    np.testing.assert_array_equal(result.view(np.uint8), gathered(array, index, 16).view(np.uint8))


def test_a_type_stored_as_float32_is_gathered_and_scattered_too() -> None:
    array = np.arange(32, dtype=np.float32).reshape(16, 2).astype(ml_dtypes.bfloat16)
    index = np.ones((16, 1), np.int32)

    def body(out: Any, data: Any, at: Any) -> None:
        nisa.memset(out, 0)
        nisa.tensor_scalar(out.indirect(at, 1), data.indirect(at, 1), nl.multiply, 1 + 2**-12)

    with using(precise_fp=False):
        result = run(body, [array, index], Result((16, 2), nl.bfloat16), target=TRN3)
    expected = array[:, 1].astype(np.float32) * np.float32(1 + 2**-12)
    np.testing.assert_array_equal(result, np.stack([np.zeros(16, np.float32), expected], 1), strict=True)


# -- the instructions ------------------------------------------------------------------------------------------


def test_the_instructions_that_document_tensor_indirection_have_its_operands() -> None:
    for name, rule in RULES.items():
        parameters = inspect.signature(getattr(nisa, name)).parameters
        if set(parameters) == {"args", "kwargs"}:
            continue  # an instruction that is not there yet
        assert set(rule.operands) <= set(parameters), name
        assert rule.operands[0] == "dst"


def _in_and_out(compute: Any, expected: Any) -> tuple[Any, Any]:
    """Return `compute(dst, data)` of a gathered and a scattered tile, and the wanted result by `expected(array)`."""
    array, index = normal(16, 64), offsets(16, 1, 64)

    def body(out: Any, data: Any, at: Any) -> None:
        nisa.memset(out, -9)
        compute(out.indirect(at, 16), data.indirect(at, 16))

    result = run(body, [array, index], Result((16, 64)), target=TRN3)
    values = expected(gathered(array, index, 16)).astype(np.float32)
    return result, scattered(np.full((16, 64), -9, np.float32), index, values)


def test_elementwise_instructions_take_it() -> None:
    def triple(dst: Any, data: Any) -> None:
        nisa.tensor_tensor(dst, data, tile(16, 16, value=3), nl.multiply)

    result, wanted = _in_and_out(lambda dst, data: nisa.tensor_scalar(dst, data, nl.add, 2.0), lambda x: x + 2)
    np.testing.assert_array_equal(result, wanted, strict=True)
    result, wanted = _in_and_out(triple, lambda x: 3 * x)
    np.testing.assert_array_equal(result, wanted, strict=True)
    # The simulator's exp is numpy's in float32, within 2 units in the last place.
    result, wanted = _in_and_out(lambda dst, data: nisa.activation(dst, nl.exp, data), np.exp)
    np.testing.assert_allclose(result, wanted, rtol=3e-7)


def test_a_reduction_of_gathered_columns() -> None:
    array, index = normal(32, 64), offsets(32, 1, 64)
    result = run(
        lambda out, data, at: nisa.tensor_reduce(out, nl.max, data.indirect(at, 16), axis=1),
        [array, index],
        Result((32, 1)),
        target=TRN3,
    )
    np.testing.assert_array_equal(result[:, 0], gathered(array, index, 16).max(axis=1))


def test_a_predicated_copy_leaves_the_other_scattered_elements_as_they_were() -> None:
    array, index = normal(16, 16), offsets(16, 1, 64)
    predicate = (np.arange(256).reshape(16, 16) % 3 == 0).astype(np.uint8)

    def body(out: Any, data: Any, where: Any, at: Any) -> None:
        nisa.memset(out, -9)
        nisa.tensor_copy_predicated(out.indirect(at, 16), data, where)

    result = run(body, [array, predicate, index], Result((16, 64)), target=TRN3)
    before = np.full((16, 64), -9, np.float32)
    values = np.where(predicate, array, -9).astype(np.float32)
    np.testing.assert_array_equal(result, scattered(before, index, values), strict=True)


BF16 = ml_dtypes.bfloat16


def test_the_tensor_engine_has_groups_of_32_partitions() -> None:
    stationary, moving = (np.round(normal(64, 48, seed=seed)).astype(BF16) for seed in (1, 2))
    left, right = offsets(64, 1, 48, 32, seed=3), offsets(64, 1, 48, 32, seed=4)

    def body(out: Any, *inputs: Any) -> None:
        data, weights, at, to = inputs
        nisa.nc_matmul(out, data.indirect(at, 32), weights.indirect(to, 20))

    result = run(
        body,
        [Tile(stationary), Tile(moving), left, right],
        Result((32, 20), nl.float32, nl.psum),
        target=TRN3,
    )
    x = gathered(stationary.astype(np.float64), left, 32, 32)
    y = gathered(moving.astype(np.float64), right, 20, 32)
    np.testing.assert_array_equal(result, x.T @ y)  # sums of small integers are exact


@pytest.mark.parametrize("accumulate", [None, True, False])
def test_matmuls_add_in_scattered_columns_of_psum(accumulate: bool | None) -> None:
    """A second matmul adds where the first one left a result, unless told to overwrite; and writes elsewhere."""
    stationary, moving = (np.round(normal(32, 32, seed=seed)).astype(BF16) for seed in (1, 2))
    columns = np.stack([np.arange(32), np.arange(31, -1, -1)], 1).astype(np.int32)
    columns[:, 1] += 16 * (accumulate is None)

    def body(out: Any, data: Any, weights: Any, first: Any, second: Any) -> None:
        nisa.nc_matmul(out.indirect(first, 32), data, weights)
        nisa.nc_matmul(out.indirect(second, 32), data, weights, accumulate=accumulate)

    width = 48 if accumulate is None else 32
    inputs = [stationary, moving, columns[:, :1].copy(), columns[:, 1:].copy()]
    result = run(body, inputs, Result((32, width), nl.float32, nl.psum), target=TRN3)
    product = stationary.astype(np.float64).T @ moving.astype(np.float64)
    expected = np.zeros((32, width))
    expected[:, columns[:, 0]] = product
    if accumulate is False:
        expected[:, columns[:, 1]] = product
    else:
        expected[:, columns[:, 1]] += product
    np.testing.assert_array_equal(result, expected)


def _mx_matmul(
    out: Any, words: Any, scales: Any, at: Any, other: Any, indirect: tuple[bool, bool] = (True, True)
) -> None:
    """`nc_matmul_mx` of a matrix with itself, as it is and with 32 of its columns gathered, by two indices."""
    data = words.view(nl.float8_e4m3fn_x4)
    chosen = [
        tile.indirect(index, 32) if is_indirect else tile[:, :32]
        for tile, index, is_indirect in zip((data, scales), (at, other), indirect, strict=True)
    ]
    nisa.nc_matmul_mx(out, chosen[0], data, chosen[1], scales)


def _mx_inputs() -> list[Any]:
    rng = np.random.default_rng(0)
    # 0x30 to 0x47 are the numbers 0.5 to 3.75; a scale of 127 is 1.
    words = rng.integers(0x30, 0x48, (32, 64, 4), dtype=np.uint8).view(np.uint32)[:, :, 0]
    scales = rng.integers(126, 130, (32, 64), dtype=np.uint8)
    index = offsets(32, 1, 64, 32)
    return [words.copy(), scales, index, index.copy()]


def test_an_mx_matmul_gathers_values_and_scales_alike() -> None:
    words, scales, index, _ = _mx_inputs()

    def body(out: Any, data: Any, factors: Any, at: Any) -> None:
        _mx_matmul(out, data, factors, at, at)

    output = Result((32, 64), nl.float32, nl.psum)
    result = run(body, [words, scales, index], output, target=TRN3)
    values = words.view(ml_dtypes.float8_e4m3fn).astype(np.float64).reshape(32, 64, 4)
    factors = np.exp2(scales[:4].astype(np.float64) - 127).repeat(8, axis=0)  # one for 8 partitions and a word's 4
    matrix = (values * factors[:, :, None]).transpose(0, 2, 1).reshape(128, 64)
    expected = matrix[:, index[:, 0]].T @ matrix
    np.testing.assert_allclose(result, expected, rtol=1e-7)  # one rounding to float32


@pytest.mark.parametrize("indirect", [(True, False), (False, True), (True, True)])
def test_values_and_scales_of_an_mx_matmul_have_one_index(indirect: tuple[bool, bool]) -> None:
    """Two tensors with the same offsets are still two indices to the hardware, which takes one address."""

    def body(out: Any, data: Any, factors: Any, at: Any, other: Any) -> None:
        _mx_matmul(out, data, factors, at, other, indirect)

    with pytest.raises(NkiValidationError) as caught:
        run(body, _mx_inputs(), Result((32, 64), nl.float32, nl.psum), target=TRN3)
    assert str(caught.value).endswith(
        "nisa.nc_matmul_mx: operands 'stationary' and 'stationary_scale' must both be views of indirect() with one "
        "index, or neither"
    )


# -- unwritten elements ----------------------------------------------------------------------------------------


def test_only_the_chosen_elements_must_be_written() -> None:
    index = np.arange(16, dtype=np.int32).reshape(16, 1)

    def body(out: Any, at: Any) -> None:
        part = nl.ndarray((16, 32), nl.float32)
        nisa.memset(part[:, :16], 4)
        nisa.tensor_copy(out, part.indirect(at))

    np.testing.assert_array_equal(run(body, [index], Result((16, 16)), target=TRN3), np.full((16, 16), 4))
    with pytest.raises(UninitializedReadError) as caught:
        run(body, [index + 1], Result((16, 16)), target=TRN3)
    assert str(caught.value).endswith(
        "nisa.tensor_copy: operand 'src': 16 of the 256 elements of tensor [16, 16] float32 in sbuf were never "
        "written: the first is [0, 15], the last [15, 15]"
    )


def test_a_scatter_marks_what_it_wrote_and_no_more() -> None:
    index = np.arange(16, dtype=np.int32).reshape(16, 1)

    def body(out: Any, at: Any) -> None:
        part = nl.ndarray((16, 32), nl.float32)
        nisa.tensor_copy(part.indirect(at), tile(16, 16, value=5))
        nisa.tensor_copy(out, part[:, : out.shape[1]])

    np.testing.assert_array_equal(run(body, [index], Result((16, 16)), target=TRN3), np.full((16, 16), 5))
    with pytest.raises(UninitializedReadError) as caught:
        run(body, [index], Result((16, 17)), target=TRN3)
    assert "16 of the 272 elements" in str(caught.value)


def test_the_offsets_must_be_written() -> None:
    def body() -> None:
        nisa.tensor_copy(tile(16, 16), tile(16, 32).indirect(nl.ndarray((16, 1), nl.int32)))

    assert refusal(body, TRN3, error=UninitializedReadError) == (
        "nisa.tensor_copy: index tensor [16, 1] int32 in sbuf is read before it was written"
    )


def test_an_offset_out_of_range_is_named_by_its_partition_and_column() -> None:
    def body() -> None:
        offsets = nl.ndarray((16, 2), nl.int32)
        nisa.memset(offsets, 0)
        nisa.memset(offsets[0:1, 1:2], 99)
        nisa.tensor_copy(tile(16, 32), tile(16, 32).indirect(offsets))

    assert refusal(body, TRN3, error=OutOfRangeError) == (
        "nisa.tensor_copy: operand 'src': index 99 in partition 0, column 1, of tensor [16, 2] int32 in sbuf is out of "
        "range [0, 32) of tensor [16, 32] float32 in sbuf"
    )


# -- what is refused -------------------------------------------------------------------------------------------


def at(partitions: int = 16, columns: int = 1, value: int = 0) -> Made:
    """Offsets that are all the same."""
    return Sbuf(partitions, columns, dtype=nl.int32, value=value)


def _matmul(dtype: Any = nl.bfloat16, **options: Any) -> Any:
    """A kernel that gathers the moving operand of a matmul."""

    def body() -> None:
        stationary, moving = tile(32, 32, dtype=dtype), tile(32, 32, dtype=dtype)
        result = nl.ndarray((32, 8), dtype if options.get("is_transpose") else nl.float32, nl.psum)
        nisa.nc_matmul(result, stationary, moving.indirect(at(32).make(), 8), **options)

    return body


OUTSIDE = (
    "operand {!r}: index {} in partition 0 of tensor [16, 1] int32 in sbuf is out of range [0, 32) of tensor [16, 32] "
    "float32 in sbuf"
)


ITS_OWN = (
    "operand 'src': {{dst}} takes {} offsets of tensor {} int32 in sbuf, of which each group of 16 partitions holds "
    "its own: {} here; pass num_elem={} or less, or an index of more columns"
)
NO_VIEW = "operand {!r} must not be a view of indirect(), got tensor [16, 16] float32 in sbuf; copy it first"
TILE, VIEW = Sbuf(16, 16), Sbuf(16, 32).indirect(at())


@rules(
    legal(nisa.tensor_copy, on="trn3", dst=TILE, src=VIEW),
    broken("offsets lie in a partition", error=OutOfRangeError, src=Sbuf(16, 32).indirect(at(value=32)))
    .says(OUTSIDE.format("src", 32))
    .fixed(src=Sbuf(16, 32).indirect(at(value=31))),
    broken("offsets are not negative", error=OutOfRangeError, dst=Sbuf(16, 32).indirect(at(value=-1)), src=TILE)
    .says(OUTSIDE.format("dst", -1))
    .fixed(dst=VIEW),
    broken("a group of 16 holds the offsets", dst=Sbuf(32, 17), src=Sbuf(32, 32).indirect(at(32), 17))
    .says(ITS_OWN.format(17, "[32, 1]", 16, 16))
    .fixed(src=Sbuf(32, 32).indirect(at(32, 2), 17)),
    broken(
        "a part of a group has offsets of as many partitions", dst=Sbuf(24, 9), src=Sbuf(24, 32).indirect(at(24, 2), 9)
    )
    .says(ITS_OWN.format(9, "[24, 2]", 8, 8))
    .fixed(dst=Sbuf(24, 8), src=Sbuf(24, 32).indirect(at(24, 2), 8)),
    broken("an engine that cannot", engine=nisa.engine.gpsimd)
    .says("a view of indirect() needs nki.isa.engine.scalar or nki.isa.engine.vector, got nki.isa.engine.gpsimd")
    .fixed(engine=nisa.engine.scalar),
    broken("the base obeys the rules of the engine", src=Sbuf(128, 32)[16:32].indirect(at()))
    .says(
        "operand 'src': an access to 16 partitions must start at partition 0 or 32 or 64 or 96, got a start at 16 of "
        "tensor [16, 32] float32 in sbuf"
    )
    .fixed(src=Sbuf(128, 32)[32:48].indirect(at())),
    broken("the index starts on a quadrant", src=Sbuf(16, 32).indirect(at(128)[16:32]))
    .says(
        "operand 'src': the index of a view of indirect() must start on a partition that is a multiple of 32, got a "
        "start at 16 of tensor [16, 1] int32 in sbuf"
    )
    .fixed(src=Sbuf(16, 32).indirect(at(128)[32:48])),
    legal(nisa.tensor_tensor, on="trn3", dst=TILE, data1=VIEW, data2=TILE, op=nl.add),
    broken("an operand that does not document it", data1=TILE, data2=VIEW).says(NO_VIEW.format("data2")),
    legal(nisa.reciprocal, on="trn3", dst=TILE, data=Sbuf(16, 16, value=1)),
    broken("an instruction that does not document it", data=Sbuf(16, 32, value=1).indirect(at())).says(
        NO_VIEW.format("data")
    ),
    legal(nisa.dma_copy, on="trn3", dst=TILE, src=Sbuf(16, 32)[:, :16]),
    broken("DMA", src=VIEW).says(NO_VIEW.format("src")),
    legal(nisa.activation, on="trn3", dst=VIEW, op=nl.copy, data=Psum(16, 16)),
    broken("the Scalar engine does not scatter to PSUM", dst=Psum(16, 32).indirect(at()), data=TILE).says(
        "operand 'dst': the Scalar engine cannot scatter to psum, got tensor [16, 16] float32 in psum"
    ),
    legal_kernel("nisa.nc_matmul", _matmul, on="trn3", tile_position=(0, 0), tile_size=(32, 32)),
    broken("hardware tiling", tile_position=(0, 32)).says(
        "tile_position must be (0, 0) or unset with a view of indirect(), got (0, 32)"
    ),
    legal_kernel("nisa.nc_matmul", _matmul, on="trn3", is_transpose=False),
    broken("a moving tile that is transposed", is_transpose=True).says(
        "operand 'moving' cannot be a view of indirect() with is_transpose=True"
    ),
    legal_kernel("nisa.nc_matmul", _matmul, on="trn3", dtype=nl.float16),
    broken("types of a matmul", dtype=nl.float32).says(
        "operand 'moving': a view of indirect() needs one of the types bfloat16, float16, float8_e4m3, "
        "float8_e4m3fn, float8_e5m2, got tensor [32, 32] float32 in sbuf"
    ),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


def _placed(data_at: int, index_at: int, source_at: int | None = None) -> Any:
    """A kernel with operands that it places itself: a gather, or with `source_at` a scatter."""

    def body() -> None:
        data = nl.ndarray((32, 16), nl.float32, address=(data_at, 0))
        index = nl.ndarray((32, 1), nl.int32, address=(index_at, 1024))
        nisa.memset(data, 0)
        nisa.memset(index, 0)
        if source_at is None:
            nisa.tensor_copy(tile(32, 16), data.indirect(index, 16))
        else:
            source = nl.ndarray((32, 16), nl.float32, address=(source_at, 2048))
            nisa.memset(source, 0)
            nisa.tensor_copy(data.indirect(index, 16), source)

    return body


def _placed_in_psum(source_at: int, index_at: int, *, is_gathered: bool) -> Any:
    """A kernel that scatters from PSUM, where the partition of the source matters only if it is gathered."""

    def body() -> None:
        data = nl.ndarray((32, 16), nl.float32, address=(0, 0))
        to, from_ = (nl.ndarray((32, 1), nl.int32, address=place) for place in ((index_at, 1024), (source_at, 2048)))
        source = nl.ndarray((32, 16), nl.float32, nl.psum, address=(source_at, 0))
        for made in (data, to, from_, source):
            nisa.memset(made, 0)
        nisa.tensor_copy(data.indirect(to, 16), source.indirect(from_, 16) if is_gathered else source)

    return body


ON_THE_PARTITION = (
    "operand 'index of dst' must start on the partition of the index of 'src', which is 64, got partition 32 of tensor "
    "[32, 1] int32 in sbuf"
)


@rules(
    legal_kernel("nisa.tensor_copy", _placed_in_psum, on="trn3", source_at=32, index_at=32, is_gathered=True),
    broken("the index of a scatter starts where that of a gather from PSUM does", source_at=64).says(ON_THE_PARTITION),
    broken("the same, unless PSUM is read without an index", source_at=64)
    .says(ON_THE_PARTITION)
    .fixed(is_gathered=False),
    legal_kernel("nisa.tensor_copy", _placed, on="trn3", data_at=32, index_at=32),
    broken("a gathered operand starts where its index does", data_at=0).says(
        "operand 'src' must start on the partition of the index of 'src', which is 32, got partition 0 of tensor "
        "[32, 16] float32 in sbuf"
    ),
    broken("the index of a scatter starts where the source does", data_at=0, source_at=64)
    .says(
        "operand 'index of dst' must start on the partition of 'src', which is 64, got partition 32 of tensor "
        "[32, 1] int32 in sbuf"
    )
    .fixed(source_at=32),
)
def test_rules_for_operands_that_are_placed_by_hand(rule: Rule) -> None:
    check_rule(rule)


def test_operands_that_the_compiler_places_may_go_with_placed_ones() -> None:
    """It finds partitions for them that keep the rules."""

    def body(from_placed: Any, by_placed: Any, to_placed: Any, data: Any, index: Any) -> None:
        placed = nl.ndarray((32, 16), nl.float32, address=(64, 0))
        placed_index = nl.ndarray((32, 1), nl.int32, address=(64, 1024))
        nisa.dma_copy(placed, data)
        nisa.dma_copy(placed_index, index)
        nisa.tensor_copy(from_placed, placed.indirect(index, 16))
        nisa.tensor_copy(by_placed, data.indirect(placed_index, 16))
        nisa.tensor_copy(to_placed.indirect(placed_index, 16), data)

    array, index = normal(32, 16), offsets(32, 1, 16)
    results = run(body, [array, index], *[Result((32, 16))] * 3, target=TRN3)
    np.testing.assert_array_equal(results[0], gathered(array, index, 16), strict=True)
    np.testing.assert_array_equal(results[1], gathered(array, index, 16), strict=True)
    np.testing.assert_array_equal(results[2], scattered(np.zeros_like(array), index, array), strict=True)


def test_the_scalar_engine_gathers_from_psum() -> None:
    """It is a scatter into PSUM that it cannot do."""
    values, index = normal(16, 32), offsets(16, 1, 32, 16)
    result = run(
        lambda out, data, index: nisa.activation(out, nl.copy, data.indirect(index, 16)),
        [Tile(values, buffer=nl.psum), index],
        Result((16, 16)),
        target=TRN3,
    )
    assert result.tolist() == gathered(values, index, 16).tolist()


def test_a_gathered_stationary_tile_can_be_transposed() -> None:
    values, index = normal(32, 64).astype(BF16), offsets(32, 1, 64, 32)
    result = run(
        lambda out, data, index, unit: nisa.nc_matmul(out, data.indirect(index, 32), unit, is_transpose=True),
        [values, index, np.eye(32, dtype=BF16)],
        Result((32, 32), nl.bfloat16, nl.psum),
        target=TRN3,
    )
    assert result.tolist() == gathered(values, index, 32, 32).T.tolist()


def test_moving_values_and_scales_have_one_index_too() -> None:
    def body(out: Any, words: Any, scales: Any, index: Any, _: Any) -> None:
        data = words.view(nl.float8_e4m3fn_x4)
        nisa.nc_matmul_mx(out, data, data.indirect(index, 32), scales, scales[:, :32])

    with pytest.raises(nisa.NkiValidationError, match="operands 'moving' and 'moving_scale' must both be views"):
        run(body, _mx_inputs(), Result((64, 32), nl.float32, nl.psum), target=TRN3)


SIXTEENS = TensorOf(lambda: in_sbuf(counted(16, 8)))
EIGHTS = TensorOf(lambda: in_sbuf(counted(2, 8)))
INDIRECT = TensorOf(lambda: in_sbuf(counted(2, 8)).indirect(indices(0, 1)))
TWO_ROWS = "tensor [2, 8] float32 in sbuf"


@constraints(
    TensorOf(lambda: in_hbm(counted(16, 8)))
    .indirect(indices(*range(16)))
    .says("needs an on-chip tensor whose free dimensions are dense", on="tensor [16, 8] float32 in private_hbm")
    .instead(lambda: in_sbuf(counted(16, 8)).indirect(indices(*range(16)))),
    SIXTEENS[:, ::2]
    .indirect(indices(*range(16)))
    .says("needs an on-chip tensor whose free dimensions are dense", on="tensor [16, 4] float32 in sbuf")
    .instead(lambda: in_sbuf(counted(16, 8))[:, 2:6].indirect(indices(*range(16)))),
    SIXTEENS.indirect(indices(0))
    .says("the index must have shape (16, K), got tensor [1, 1] int32 in sbuf", on="tensor [16, 8] float32 in sbuf")
    .instead(lambda: in_sbuf(counted(1, 8)).indirect(indices(0))),
    EIGHTS.indirect(indices(0, 1, dtype=np.float32))
    .says(
        "the index must be a static integer tensor in SBUF, got tensor [2, 1] float32 in sbuf",
        on=TWO_ROWS,
    )
    .fixed(indices(0, 1, dtype=np.uint16)),
    EIGHTS.indirect(in_hbm(np.zeros((2, 1), np.int32)))
    .says(
        "the index must be a static integer tensor in SBUF, got tensor [2, 1] int32 in private_hbm",
        on=TWO_ROWS,
    )
    .fixed(in_sbuf(np.zeros((2, 1), np.int32))),
    EIGHTS.indirect([0, 1])
    .says("the index must be a static integer tensor in SBUF, got [0, 1]", on=TWO_ROWS)
    .fixed(indices(0, 1)),
    EIGHTS.indirect(indices(0, 1), 3).says("num_elem must be in [1, 2], got 3", on=TWO_ROWS).fixed(indices(0, 1), 2),
    EIGHTS.indirect(indices(0, 1), 0).says("num_elem must be in [1, 2], got 0", on=TWO_ROWS).fixed(indices(0, 1), 1),
    INDIRECT.indirect(indices(0, 1))
    .says("tensor [2, 2] float32 in sbuf is indirect already; a view has one dynamic index")
    .instead(lambda: in_sbuf(counted(2, 8)).indirect(indices(0, 1))),
    INDIRECT.index(np.s_[:, 0:1])
    .refused_with("tensor [2, 2] float32 in sbuf: dimension 1 is indirect and cannot be indexed")
    .fixed(np.s_[:, 0:2]),
    INDIRECT.slice(0, 0, 1)
    .refused_with("tensor [2, 2] float32 in sbuf: dimension 0 is indirect and cannot be indexed")
    .fixed(0, 0, 2),
)
def test_constraints_of_the_view(broken: Any, message: str, corrected: Any) -> None:
    with using(target=TRN3):
        assert refused(NkiValidationError, broken) == message
        assert corrected().is_indirect()


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_older_generations_do_not_have_it(target: str) -> None:
    with using(target=target):
        message = refused(NkiValidationError, lambda: in_sbuf(counted(2, 8)).indirect(indices(0, 1)))
    assert message == (f"NkiTensor.indirect on tensor [2, 8] float32 in sbuf: needs trn3; the target is {target}")


def test_a_refused_instruction_leaves_no_gathered_operand_behind() -> None:
    """A kernel that catches the error goes on: its next instruction scatters nothing."""

    def body() -> Any:
        out = tile(16, 32, value=1)
        try:
            nisa.tensor_copy(out.indirect(at().make()), tile(16, 15))
        except NkiValidationError:
            nisa.memset(tile(16, 1), 0)
        result = nl.ndarray((16, 32), nl.float32, nl.shared_hbm)
        nisa.dma_copy(result, out)
        return result

    np.testing.assert_array_equal(execute(body, TRN3), np.ones((16, 32)))
