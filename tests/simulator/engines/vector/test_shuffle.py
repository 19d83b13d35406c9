# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nc_stream_shuffle`: which partition each partition receives, what stays as it is, and that bits move unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Result, Tile, engine_of, execute, normal, refusal, run, store, tile
from ...made import Hbm, Sbuf, lazily
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import LOAD_FIRST, must, same_elements

UNINITIALIZED = nkilib.simulator.UninitializedReadError
OUT_OF_RANGE = nkilib.simulator.OutOfRangeError
SAME = list(range(32))
KEEP = 255
# Every partition receives that before it; the first one of a quadrant the last one of it.
ROTATE = [(i - 1) % 32 for i in range(32)]


def rows(partitions: int, columns: int = 2) -> Any:
    """Rows (p, p + 1000, ...) that tell from which partition they come."""
    return np.arange(partitions, dtype=np.float32)[:, np.newaxis] + 1000 * np.arange(columns, dtype=np.float32)


def shuffled(dst: Any, src: Any, mask: list[int]) -> Any:
    """One partition at a time: partition q * 32 + i receives q * 32 + mask[i]."""
    result = dst.copy()
    for partition in range(dst.shape[0]):
        if mask[partition % 32] != KEEP:
            result[partition] = src[partition // 32 * 32 + mask[partition % 32]]
    return result


# -- which partition goes where --------------------------------------------------------------------------------------


def test_a_partition_receives_the_one_that_the_mask_names() -> None:
    """The mask lists sources by destination, not the other way round."""
    result = run(lambda dst, src: nisa.nc_stream_shuffle(dst, src, ROTATE), [rows(32)], Result((32, 2)))
    assert result[:, 0].tolist() == [31, *range(31)]
    assert result[:, 1].tolist() == [1031, *range(1000, 1031)]


def test_one_partition_is_broadcast_to_a_quadrant() -> None:
    """`src` needs only the partitions that are received."""
    result = run(lambda dst, src: nisa.nc_stream_shuffle(dst, src, [0] * 32), [rows(1, 5) + 7], Result((32, 5)))
    assert result.tolist() == [[7, 1007, 2007, 3007, 4007]] * 32


@pytest.mark.parametrize("partitions", [64, 96, 128])
def test_every_quadrant_is_shuffled_on_its_own_with_the_same_mask(partitions: int) -> None:
    inputs = rows(partitions)
    result = run(lambda dst, src: nisa.nc_stream_shuffle(dst, src, ROTATE), [inputs], Result((partitions, 2)))
    assert np.array_equal(result, shuffled(inputs, inputs, ROTATE))
    assert result[32, 0] == 63


@pytest.mark.parametrize("partitions", [1, 5, 31, 33, 100])
def test_the_result_may_end_inside_a_quadrant(partitions: int) -> None:
    """Mask elements of partitions that `dst` does not have do nothing, and name nothing that `src` must have."""
    inputs = rows(128)
    result = run(lambda dst, src: nisa.nc_stream_shuffle(dst, src, SAME[::-1]), [inputs], Result((partitions, 2)))
    assert np.array_equal(result, shuffled(inputs[:partitions], inputs, SAME[::-1]))
    few = run(lambda dst, src: nisa.nc_stream_shuffle(dst, src, [1, 0, *SAME[2:]]), [rows(2)], Result((2, 2)))
    assert few[:, 0].tolist() == [1, 0]


def test_255_leaves_a_partition_as_it_is() -> None:
    mask = [KEEP] * 32
    mask[3], mask[4], mask[31] = 16, 0, 3

    def body(dst: Any, src: Any) -> None:
        nisa.memset(dst, -1)
        nisa.nc_stream_shuffle(dst, src, mask)

    result = run(body, [rows(64)], Result((64, 2)))
    expected = [[-1.0, -1.0] for _ in range(64)]
    for partition, source in ((3, 16), (4, 0), (31, 3), (35, 48), (36, 32), (63, 35)):
        expected[partition] = [source, 1000 + source]
    assert result.tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_mask(data: Any) -> None:
    src_rows = data.draw(st.integers(1, 128))
    dst_rows = data.draw(st.integers(1, -(-src_rows // 32) * 32))
    # Partitions of src in the last quadrant that dst has.
    limit = min(32, src_rows - (dst_rows - 1) // 32 * 32)
    mask = data.draw(st.lists(st.one_of(st.just(KEEP), st.integers(0, limit - 1)), min_size=32, max_size=32))
    before, given_rows = -rows(dst_rows) - 1, rows(src_rows)
    result = run(
        lambda dst, src, old: (nisa.tensor_copy(dst, old), nisa.nc_stream_shuffle(dst, src, mask)),
        [given_rows, before],
        Result((dst_rows, 2)),
    )
    assert np.array_equal(result, shuffled(before, given_rows, mask))


def test_the_mask_may_hold_numpy_integers() -> None:
    mask = list(np.array(ROTATE, np.uint8))
    result = run(lambda dst, src: nisa.nc_stream_shuffle(dst, src, tuple(mask)), [rows(32)], Result((32, 2)))
    assert result[:, 0].tolist() == [31, *range(31)]


# -- quadrants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [0, 32, 64, 96])
@pytest.mark.parametrize("target", [0, 32, 64, 96])
def test_source_and_result_may_be_in_different_quadrants(source: int, target: int) -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.memset(dst, -1)
        nisa.nc_stream_shuffle(dst[target : target + 32], src[source : source + 32], ROTATE)

    result = run(body, [rows(128)], Result((128, 2)))
    expected = np.full((128, 2), -1, np.float32)
    expected[target : target + 32] = np.roll(rows(128)[source : source + 32], 1, axis=0)
    assert np.array_equal(result, expected)


def test_two_quadrants_from_the_upper_half_to_the_lower() -> None:
    result = run(lambda dst, src: nisa.nc_stream_shuffle(dst, src[64:128], ROTATE), [rows(128)], Result((64, 2)))
    assert result[:, 0].tolist() == [95, *range(64, 95), 127, *range(96, 127)]


# -- memory, types and views -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("target", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("generation", ["trn1", "trn2", "trn3"])
def test_it_reads_and_writes_both_on_chip_memories(source: Any, target: Any, generation: str) -> None:
    result = run(
        lambda dst, src: nisa.nc_stream_shuffle(dst, src, ROTATE),
        [Tile(rows(32), buffer=source)],
        Result((32, 2), nl.float32, target),
        target=generation,
    )
    assert result[:, 0].tolist() == [31, *range(31)]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_it_runs_on_the_vector_engine(target: str) -> None:
    assert engine_of(lambda: nisa.nc_stream_shuffle(tile(32, 2), tile(32, 2), SAME), target) == "vector"


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (nl.float32, 0xFF800001),
        (nl.int32, 0x81000001),
        (nl.bfloat16, 0xFF81),
        (nl.float16, 0xFC01),
        (nl.float8_e5m2, 0x7D),
        (nl.uint8, 0xFF),
        (nl.float4_e2m1fn_x4, 0xFF81),
    ],
)
def test_bits_move_unchanged(dtype: Any, bits: int) -> None:
    """NaNs with a payload, and integers that no float32 holds."""
    values = np.zeros((32, 2), f"u{dtype.itemsize}")
    values[5] = bits, 0x80 << 8 * (dtype.itemsize - 1)
    result = run(
        lambda dst, src: nisa.nc_stream_shuffle(dst.view(dtype), src.view(dtype), [5] * 32),
        [values],
        Result((32, 2), f"uint{8 * dtype.itemsize}"),
    )
    assert result.tolist() == [values[5].tolist()] * 32


def test_source_and_result_may_be_the_same_tile() -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.tensor_copy(dst, src)
        nisa.nc_stream_shuffle(dst, dst, [1, 0, KEEP, *SAME[3:31], 3])

    result = run(body, [rows(32)], Result((32, 2)))
    assert result[:, 0].tolist() == [1, 0, *range(2, 31), 3]


def test_the_source_may_be_a_part_of_the_result() -> None:
    """The broadcast of a row over its own tile, quadrant by quadrant."""

    def body(dst: Any, src: Any) -> None:
        nisa.tensor_copy(dst[0:1], src)
        for start in range(0, 128, 32):
            nisa.nc_stream_shuffle(dst[start : start + 32], dst[0:1], [0] * 32)

    result = run(body, [normal(1, 9)], Result((128, 9)))
    assert np.array_equal(result, np.tile(normal(1, 9), (128, 1)))


def test_columns_that_overlap_are_read_before_they_are_written() -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.tensor_copy(dst, src)
        nisa.nc_stream_shuffle(dst[:, 1:4], dst[:, 0:3], ROTATE)

    inputs = rows(32, 4)
    result = run(body, [inputs], Result((32, 4)))
    assert np.array_equal(result[:, 0], inputs[:, 0])
    assert np.array_equal(result[:, 1:], np.roll(inputs[:, :3], 1, axis=0))


def test_free_shapes_may_differ_and_be_strided() -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.memset(dst, -1)
        nisa.nc_stream_shuffle(dst[:, :, 1], src[:, 0:8:2], ROTATE)

    inputs = rows(32, 8)
    result = run(body, [inputs], Result((32, 4, 2)))
    assert (result[:, :, 0] == -1).all()
    assert np.array_equal(result[:, :, 1], np.roll(inputs[:, ::2], 1, axis=0))
    split = run(lambda dst, src: nisa.nc_stream_shuffle(dst, src, ROTATE), [inputs], Result((32, 2, 2, 2)))
    assert np.array_equal(split.reshape(32, 8), np.roll(inputs, 1, axis=0))


# -- what is read and written ----------------------------------------------------------------------------------------


def test_only_the_partitions_that_are_received_must_have_been_written() -> None:
    def body(dst: Any) -> None:
        src = nl.ndarray((32, 2), nl.float32)
        nisa.memset(src[0:1], 3)
        nisa.nc_stream_shuffle(dst, src, [0] * 32)

    assert (run(body, [], Result((32, 2))) == 3).all()


def receive_unwritten() -> Any:
    src, dst = nl.ndarray((64, 2), nl.float32), nl.ndarray((64, 2), nl.float32)
    nisa.memset(src[0:32], 3)
    nisa.memset(src[32:33], 4)
    nisa.nc_stream_shuffle(dst, src, [1, *[0] * 31])
    return store(dst)


def test_receiving_what_was_never_written() -> None:
    """Partition 33 is not: an error, or NaN where the options ask for it."""
    message = (
        "nisa.nc_stream_shuffle: operand 'src': 2 of the 128 elements of tensor [64, 2] float32 in sbuf were never "
        "written"
    )
    assert refusal(receive_unwritten, error=UNINITIALIZED) == message
    with nkilib.simulator.using(uninitialized="nan"):
        result = execute(receive_unwritten)
    assert np.isnan(result[32]).all()
    assert (result[:32] == 3).all() and (result[33:] == 4).all()


def test_a_partition_that_is_left_stays_unwritten() -> None:
    def shuffle(mask: list[int], first: int, last: int) -> Any:
        dst = nl.ndarray((32, 2), nl.float32)
        nisa.nc_stream_shuffle(dst, tile(32, 2, value=3), mask)
        stored = nl.ndarray((32, 2), nl.float32, nl.shared_hbm)
        nisa.dma_copy(stored[first:last], dst[first:last])

    mask = [KEEP, 0, 1, KEEP, *SAME[4:31], KEEP]
    execute(lambda: shuffle(mask, 1, 3))
    execute(lambda: shuffle(mask, 4, 31))
    execute(lambda: shuffle(SAME, 0, 32))
    for partition in (0, 3, 31):
        with pytest.raises(UNINITIALIZED):
            execute(lambda partition=partition: shuffle(mask, partition, partition + 1))


def test_tiles_that_the_kernel_places_on_each_other_may_be_filled_alternately() -> None:
    """Unless the mask leaves a partition as it is, which is then needed until the shuffle."""

    def kernel(mask: list[int]) -> Any:
        def body() -> None:
            src = tile(32, 2)
            first, second = (nl.ndarray((32, 2), nl.float32, address=(0, 4096)) for _ in range(2))
            nisa.memset(first, 1)
            nisa.memset(second, 2)
            nisa.nc_stream_shuffle(first, src, mask)

        return body

    execute(kernel(ROTATE))
    with pytest.raises(nkilib.simulator.CapacityError):
        execute(kernel([*ROTATE[:31], KEEP]))


def test_a_mask_that_leaves_everything_reads_and_writes_nothing() -> None:
    def body(dst: Any) -> None:
        nisa.memset(dst, 5)
        nisa.nc_stream_shuffle(dst, nl.ndarray((32, 2), nl.float32), [KEEP] * 32)

    assert (run(body, [], Result((32, 2))) == 5).all()


def test_what_is_written_into_psum_is_no_longer_a_matmul_result() -> None:
    """A matmul with accumulate=None adds to matmul results only: partition 0 was shuffled over, the others were not."""

    def body(total: Any, ones: Any) -> None:
        bank = nl.ndarray((32, 2), nl.float32, nl.psum)
        nisa.nc_matmul(bank, ones, ones[:, 0:2])
        nisa.nc_stream_shuffle(bank, tile(32, 2, value=100), [0, *[KEEP] * 31])
        nisa.nc_matmul(bank, ones, ones[:, 0:2])
        nisa.tensor_copy(total, bank)

    result = run(body, [np.ones((4, 32), np.float32)], Result((32, 2)))
    assert result.tolist() == [[4, 4]] + [[8, 8]] * 31


# -- refusals --------------------------------------------------------------------------------------------------------


def placed(partition: int) -> Any:
    """Make a quadrant of zeros that starts at a partition of the kernel's choice, in a kernel."""
    made = nl.ndarray((32, 2), nl.float32, nl.sbuf, address=(partition, 0))
    nisa.memset(made, 0)
    return made


START = (
    "operand 'src': 64 partitions are active, and an access to as many must start at partition 0 or 64, got a start at "
    "32 of tensor [32, 2] float32 in sbuf"
)


@rules(
    legal(nisa.nc_stream_shuffle, dst=Sbuf(32, 2), src=Sbuf(32, 2), shuffle_mask=SAME),
    broken("type", dst=Sbuf(32, 2, dtype=nl.bfloat16)).says(
        "operand 'dst' must have the type of 'src': nothing is cast; got {dst} and {src}"
    ),
    broken("type of the same width", dst=Sbuf(32, 2, dtype=nl.int32))
    .says("operand 'dst' must have the type of 'src': nothing is cast; got {dst} and {src}")
    .fixed(dst=Sbuf(32, 2, dtype=nl.int32).view(nl.float32)),
    broken("elements per partition", src=Sbuf(32, 3)).says(same_elements("dst", "src")).fixed(dst=Sbuf(32, 3)),
    legal(nisa.nc_stream_shuffle, dst=Sbuf(4, 2), src=Sbuf(4, 2), shuffle_mask=[0] * 32),
    broken("length of the mask", shuffle_mask=[0, 1, 2, 3])
    .says("shuffle_mask must be a list of 32 integers, got [0, 1, 2, 3]")
    .fixed(shuffle_mask=[0, 1, 2, 3] * 8),
    broken("integers in the mask", shuffle_mask=[0.0] * 32).says(
        f"shuffle_mask must be a list of 32 integers, got {[0.0] * 32}"
    ),
    broken("no mask", shuffle_mask=None).says("shuffle_mask must be a list of 32 integers, got None"),
    broken("partition of another quadrant", dst=Sbuf(64, 2), src=Sbuf(64, 2), shuffle_mask=[0, 32, *[0] * 30])
    .says("shuffle_mask[1] must be a partition of the quadrant, 0 to 31, or 255 to leave partition 1 as it is, got 32")
    .fixed(shuffle_mask=[0, 31, *[0] * 30]),
    broken("negative partition", dst=Sbuf(2, 2), src=Sbuf(2, 2), shuffle_mask=[0] * 31 + [-1])
    .says(
        "shuffle_mask[31] must be a partition of the quadrant, 0 to 31, or 255 to leave partition 31 as it is, got -1"
    )
    .fixed(shuffle_mask=[0] * 31 + [255]),
    broken("partition that the source lacks", error=OUT_OF_RANGE, dst=Sbuf(32, 2), shuffle_mask=[0] * 31 + [4])
    .says("shuffle_mask[31] is 4: partition 31 of 'dst' would receive partition 4 of {src}")
    .fixed(shuffle_mask=[0] * 31 + [3]),
    broken("quadrant that the source lacks", error=OUT_OF_RANGE, dst=Sbuf(64, 2), src=Sbuf(1, 2))
    .says("shuffle_mask[0] is 0: partition 32 of 'dst' would receive partition 32 of {src}")
    .fixed(dst=Sbuf(64, 2)[32:64]),
    legal(nisa.nc_stream_shuffle, dst=Sbuf(32, 2), src=Sbuf(32, 2), shuffle_mask=SAME),
    broken("start of a source with fewer partitions than are active", dst=Sbuf(64, 2), src=Sbuf(128, 2)[32:64])
    .says(START)
    .fixed(dst=Sbuf(64, 2)[0:32]),
    broken("start of a result with fewer partitions than are active", dst=Sbuf(128, 2)[64:128], src=Sbuf(65, 2))
    .says(
        "operand 'dst': 96 partitions are active, and an access to as many must start at partition 0, got a "
        "start at 64 of {dst}"
    )
    .fixed(src=Sbuf(64, 2)),
    broken("start of a source that the kernel places", dst=Sbuf(64, 2), src=lazily(placed, 32))
    .says(START)
    .fixed(dst=Sbuf(64, 2)[0:32]),
    broken("start inside a quadrant", src=Sbuf(64, 2)[16:17], shuffle_mask=[0] * 32)
    .says(
        "operand 'src': an access to 1 partitions must start at partition 0 or 32 or 64 or 96, got a start at 16 "
        "of {src}"
    )
    .fixed(src=Sbuf(64, 2)[0:32], shuffle_mask=[16] * 32),
    broken("HBM", src=Hbm(32, 2)).says(must("src", "be in psum or sbuf", LOAD_FIRST)),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)
