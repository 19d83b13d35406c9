# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Live ranges of on-chip tensors against SBUF and PSUM, on kernels and on hand-made lives.

The certain use of lives while they grow is checked against a count of every instruction.

trn1 has 180,224 usable bytes in a partition of SBUF, trn2 212,984; PSUM has 8 banks of 2,048 bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator.hardware.generations import TRN2
from nkilib.simulator.memory.capacity import CertainUse, LiveRange, certain_uses, check_capacity
from nkilib.simulator.terms.dtypes import as_dtype
from nkilib.simulator.terms.enums import MemoryRegion
from nkilib.simulator.terms.errors import CapacityError

from ..kernels import execute, tile

SBUF_BYTES = 212_984  # trn2
BANK = 2048
KIB = 1024


def peaks(body: Callable[[], Any], target: str = "trn2", cores: int = 1) -> tuple[int, int]:
    """The peak bytes of a partition of SBUF and of PSUM that a kernel needs."""
    with nkilib.simulator.recording() as record:
        execute(body, target, cores)
    return record.sbuf_peak_bytes, record.psum_peak_bytes


def overflow(body: Callable[[], Any], target: str = "trn2") -> str:
    """The message with which a kernel is refused that does not fit."""
    with pytest.raises(CapacityError) as caught:
        execute(body, target)
    return str(caught.value)


def written(partitions: int, nbytes: int, buffer: Any = nl.sbuf, **where: Any) -> Any:
    """Make a uint8 tile of `nbytes` in each partition, in use since a memset of its first column, in a kernel."""
    made = nl.ndarray((partitions, nbytes), nl.uint8, buffer, **where)
    nisa.memset(made[:, 0:1], 1)
    return made


def read(*tiles: Any) -> None:
    """Run an instruction on the first column of every tile, in a kernel."""
    for made in tiles:
        nisa.tensor_copy(made[:, 0:1], made[:, 0:1])


def test_tiles_that_are_live_together_add_up() -> None:
    def kernel() -> None:
        read(*[written(128, 1000) for _ in range(3)])

    assert peaks(kernel) == (3000, 0)


def test_a_tile_gives_its_room_back_after_its_last_use() -> None:
    """A hundred tiles of 100 KiB, one after the other: never more than one at a time."""

    def kernel() -> None:
        for _ in range(100):
            read(written(128, 100 * KIB))

    assert peaks(kernel) == (100 * KIB, 0)


def test_a_tile_that_is_made_but_never_used_takes_no_room() -> None:
    def kernel() -> None:
        unused = [nl.ndarray((128, 200 * KIB), nl.uint8) for _ in range(5)]
        read(written(128, 1000))
        assert len(unused) == 5

    assert peaks(kernel) == (1000, 0)


def test_a_tile_lives_from_its_first_use_not_from_its_making() -> None:
    def kernel() -> None:
        late = nl.ndarray((128, 150 * KIB), nl.uint8)
        read(written(128, 150 * KIB))
        nisa.memset(late[:, 0:1], 1)

    assert peaks(kernel) == (150 * KIB, 0)


def test_a_tile_that_is_made_full_of_zeros_lives_from_its_making() -> None:
    def kernel() -> None:
        zeros = nl.zeros((128, 1000), nl.uint8)
        read(written(128, 500))
        read(zeros)

    assert peaks(kernel) == (1500, 0)


def test_two_tiles_of_one_instruction_are_live_together() -> None:
    """The first is read for the last time where the second is written."""

    def kernel() -> None:
        first = written(128, 1000)
        nisa.tensor_copy(nl.ndarray((128, 1000), nl.uint8)[:, 0:1], first[:, 0:1])

    assert peaks(kernel) == (2000, 0)


def test_an_index_is_live_until_the_access_that_reads_it() -> None:
    def kernel(table: Any) -> None:
        rows = nl.ndarray((16, 100), nl.int32)
        nisa.iota(rows, [[1, 100]], channel_multiplier=1)
        read(written(16, 1000))
        gathered = nl.ndarray((16, 4), nl.float32)
        nisa.dma_copy(gathered, table.vector_select(0, rows[:, 0:1]))

    with nkilib.simulator.recording() as record:
        nki.jit(kernel)(np.zeros((200, 4), np.float32))
    # 400 bytes of indices beside the 1,000, in two of the four quarters; alone the larger would take 1,000.
    assert record.sbuf_peak_bytes == 1000
    assert record.psum_peak_bytes == 0


def test_an_index_is_live_until_the_access_that_reads_it_where_nothing_fits_beside_it() -> None:
    def kernel(table: Any) -> None:
        rows = nl.ndarray((128, 100), nl.int32)
        nisa.iota(rows, [[1, 100]], channel_multiplier=1)
        read(written(128, 1000))
        nisa.dma_copy(nl.ndarray((128, 4), nl.float32), table.vector_select(0, rows[:, 0:1]))

    with nkilib.simulator.recording() as record:
        nki.jit(kernel)(np.zeros((300, 4), np.float32))
    assert record.sbuf_peak_bytes == 1400


def test_the_size_is_that_of_the_device_type_where_low_precision_is_kept_in_float32() -> None:
    def kernel() -> None:
        nisa.memset(nl.ndarray((128, 1000), nl.bfloat16), 0)

    with nkilib.simulator.using(precise_fp=False):
        assert peaks(kernel) == (2000, 0)


@pytest.mark.parametrize(("target", "usable"), [("trn1", 180_224), ("trn2", 212_984), ("trn3", 245_752)])
def test_what_fills_a_partition_to_the_last_byte_fits_and_one_byte_more_does_not(target: str, usable: int) -> None:
    def kernel(nbytes: int) -> Callable[[], None]:
        def body() -> None:
            read(written(128, 100_000), written(128, nbytes))

        return body

    assert peaks(kernel(usable - 100_000), target) == (usable, 0)
    assert f"sbuf overflows: the 2 tensors that are live at the same time do not fit the {usable} bytes" in overflow(
        kernel(usable - 100_000 + 1), target
    )


def test_the_error_lists_the_live_tensors_at_the_peak_largest_first_with_their_lines() -> None:
    def kernel() -> None:
        gone = written(128, 50_000, name="gone")
        read(gone)
        small = written(64, 2_000, name="small")
        logits = written(128, 200_000, name="logits")
        more = written(128, 20_000, name="more")
        read(small, logits, more)

    message = overflow(kernel)
    assert message.startswith(f"{__file__}:")
    lines = message.split("\n")
    assert lines[0].endswith(
        "the 3 tensors that are live at the same time do not fit the 212984 bytes of a partition; use smaller tiles, "
        "or end the use of one before the next begins. Live then, in program order (a compiler may reorder; "
        "using(capacity='ignore') or NKILIB_CAPACITY=ignore runs the kernel):"
    )
    first = f"made at {__file__}:"
    assert lines[1].startswith(
        f"   200000 bytes in 128 partitions: tensor 'logits' [128, 200000] uint8 in sbuf, {first}"
    )
    assert lines[2].startswith(f"    20000 bytes in 128 partitions: tensor 'more' [128, 20000] uint8 in sbuf, {first}")
    assert lines[3].startswith(f"     2000 bytes in  64 partitions: tensor 'small' [64, 2000] uint8 in sbuf, {first}")
    assert len(lines) == 4
    assert "gone" not in message


def test_a_kernel_ends_at_the_instruction_after_which_it_can_not_fit_any_more() -> None:
    """Writing more than there is says nothing: what is not read again was not needed."""
    done: list[str] = []

    def kernel() -> None:
        first, second = written(128, 150_000), written(128, 150_000)
        done.append("written")
        nisa.tensor_copy(second[:, 0:1], second[:, 0:1])
        done.append("read the second")
        nisa.tensor_copy(second[:, 0:1], first[:, 0:1])
        done.append("read the first")

    message = overflow(kernel)
    assert done == ["written", "read the second"]
    line = kernel.__code__.co_firstlineno + 5
    assert message.startswith(f"{__file__}:{line}: sbuf overflows: the 2 tensors")


def test_on_the_second_core_it_says_which() -> None:
    def kernel() -> None:
        read(written(128, 100_000), *[written(128, 100_000)] * (2 * nl.program_id(0)), written(128, 50_000))
        nisa.core_barrier(nl.ndarray((1, 1), nl.float32, nl.shared_hbm), (0, 1))

    with pytest.raises(CapacityError, match=r"test_capacity.py:\d+: core 1: sbuf overflows: the 3 tensors"):
        execute(kernel, "trn2", 2)


def test_gaps_that_tiles_leave_are_found_at_the_end() -> None:
    done: list[str] = []

    def kernel() -> None:
        read(*[written(128, 1536, nl.psum) for _ in range(9)])
        done.append("all")

    assert "psum overflows: the 9 tensors" in overflow(kernel)
    assert done == ["all"]


def test_a_long_list_is_cut_and_summed_up() -> None:
    def kernel() -> None:
        read(*[written(128, 11_000) for _ in range(20)])

    lines = overflow(kernel).split("\n")
    assert len(lines) == 1 + 12 + 1
    assert lines[-1] == "  and 8 more with 88000 bytes together"


def test_capacity_ignore_lets_the_kernel_run() -> None:
    def kernel() -> None:
        read(written(128, 200_000), written(128, 200_000))

    overflow(kernel)
    with nkilib.simulator.using(capacity="ignore"):
        assert peaks(kernel) == (0, 0)


def test_each_core_has_its_own_sbuf() -> None:
    def kernel() -> None:
        read(written(128, 150_000 + 1000 * nl.program_id(0)))

    assert peaks(kernel, cores=2) == (151_000, 0)


def test_tiles_of_32_partitions_lie_beside_each_other() -> None:
    """Four tiles of 32 partitions, or two of 64, or one of each: no more bytes of a partition than one of them."""
    assert peaks(lambda: read(*[written(32, 1000) for _ in range(4)])) == (1000, 0)
    assert peaks(lambda: read(*[written(1, 1000) for _ in range(4)])) == (1000, 0)
    assert peaks(lambda: read(*[written(33, 1000) for _ in range(2)])) == (1000, 0)
    assert peaks(lambda: read(written(64, 1000), written(32, 1000), written(17, 1000))) == (1000, 0)


def test_a_fifth_tile_of_32_partitions_a_third_of_64_and_a_second_of_65_need_more() -> None:
    assert peaks(lambda: read(*[written(32, 1000) for _ in range(5)])) == (2000, 0)
    assert peaks(lambda: read(*[written(64, 1000) for _ in range(3)])) == (2000, 0)
    assert peaks(lambda: read(*[written(65, 1000) for _ in range(2)])) == (2000, 0)


def test_psum_holds_eight_banks() -> None:
    assert peaks(lambda: read(*[written(128, BANK, nl.psum) for _ in range(8)])) == (0, 8 * BANK)
    assert "psum overflows: the 9 tensors" in overflow(lambda: read(*[written(128, BANK, nl.psum) for _ in range(9)]))


def test_two_small_tiles_share_a_bank_but_none_crosses_into_the_next() -> None:
    """Sixteen halves of a bank fit; nine tiles of three quarters of a bank would each need one of their own."""
    assert peaks(lambda: read(*[written(128, BANK // 2, nl.psum) for _ in range(16)])) == (0, 8 * BANK)
    assert "psum overflows" in overflow(lambda: read(*[written(128, 1536, nl.psum) for _ in range(9)]))
    assert peaks(lambda: read(*[written(128, 1536, nl.psum) for _ in range(8)])) == (0, 7 * BANK + 1536)


def test_a_tile_larger_than_a_bank_takes_whole_banks() -> None:
    def kernel() -> None:
        read(written(128, 3 * BANK + 4, nl.psum), written(128, 4 * BANK, nl.psum))

    assert peaks(kernel) == (0, 8 * BANK)

    def too_much() -> None:
        read(written(128, 3 * BANK + 4, nl.psum), written(128, 4 * BANK, nl.psum), written(128, 4, nl.psum))

    assert "psum overflows: the 3 tensors" in overflow(too_much)


def test_a_placed_tile_reaches_from_its_address() -> None:
    assert peaks(lambda: read(written(128, 1000, address=(0, 5000)))) == (6000, 0)


def test_other_tiles_lie_around_a_placed_one() -> None:
    """5,000 bytes are free below it: the tile of 4,000 goes there, the one of 6,000 above."""

    def kernel() -> None:
        read(written(128, 1000, address=(0, 5000)), written(128, 4000), written(128, 6000))

    assert peaks(kernel) == (12_000, 0)


def test_placed_tiles_may_not_overlap_while_both_are_needed() -> None:
    def kernel() -> None:
        first = written(128, 1000, name="first", address=(0, 0))
        second = written(128, 1000, name="second", address=(0, 999))
        read(first, second)

    message = overflow(kernel)
    assert "tensor 'second' [128, 1000] uint8 in sbuf, made at " in message
    assert "at address (0, 999) of sbuf overlaps tensor 'first' [128, 1000] uint8 in sbuf, made at " in message
    assert message.endswith("which is used later: place them apart, or use one of them after the other")


def test_placed_tiles_may_overlap_one_after_the_other_and_lie_in_unlike_partitions() -> None:
    def one_after_the_other() -> None:
        read(written(128, 1000, address=(0, 0)))
        read(written(128, 1000, address=(0, 500)))

    def side_by_side() -> None:
        read(written(64, 1000, address=(0, 0)), written(64, 1000, address=(64, 0)))

    def above_each_other() -> None:
        read(written(128, 1000, address=(0, 0)), written(128, 1000, address=(0, 1000)))

    assert peaks(one_after_the_other) == (1500, 0)
    assert peaks(side_by_side) == (1000, 0)
    assert peaks(above_each_other) == (2000, 0)


def test_a_placed_tile_that_is_overwritten_as_a_whole_was_not_needed_in_between() -> None:
    """Two buffers at one address are used alternately: what the first held is gone when it is filled again."""

    def alternately() -> None:
        first = nl.ndarray((128, 8), nl.float32, address=(0, 0))
        second = nl.ndarray((128, 8), nl.float32, address=(0, 0))
        for _ in range(3):
            for buffer in (first, second):
                nisa.memset(buffer, 0)
                read(buffer)

    assert peaks(alternately) == (32, 0)

    def partly() -> None:
        first = nl.ndarray((128, 8), nl.float32, address=(0, 0))
        second = nl.ndarray((128, 8), nl.float32, address=(0, 0))
        nisa.memset(first, 0)
        nisa.memset(second, 0)
        nisa.memset(first[:, 0:4], 0)  # the other four columns of the first are still to be what they were
        read(first)

    assert "overlaps" in overflow(partly)


def test_a_placed_tile_may_be_overwritten_by_what_is_computed_from_it() -> None:
    def kernel() -> None:
        placed = nl.ndarray((32, 2), nl.float32, address=(0, 0))
        nisa.memset(placed, 1)
        nisa.activation(placed, nl.copy, placed)
        nisa.tensor_scalar(placed, placed, nl.add, 1.0)

    assert peaks(kernel) == (8, 0)


def test_a_placed_tile_that_is_read_where_it_is_overwritten_was_needed_until_then() -> None:
    def kernel() -> None:
        first = written(128, 1, address=(0, 0))
        written(128, 1, address=(0, 0))
        nisa.tensor_scalar(first, first, nl.add, 1.0)

    assert "overlaps" in overflow(kernel)


def test_a_placed_tile_that_keeps_some_of_its_elements_was_needed_until_then() -> None:
    """A predicated copy leaves what it does not choose, other instructions some partitions; a memset would not."""

    def kernel(fills: Callable[[Any, Any], Any]) -> Callable[[], Any]:
        def body() -> None:
            predicate, first = written(128, 1), written(128, 1, address=(0, 1000))
            written(128, 1, address=(0, 1000))
            fills(first, predicate)

        return body

    assert "overlaps" in overflow(kernel(lambda dst, predicate: nisa.tensor_copy_predicated(dst, 7, predicate)))
    execute(kernel(lambda dst, predicate: nisa.memset(dst, 7)))

    def partly(shape: tuple[int, ...], dtype: Any, fills: Callable[[Any], Any]) -> Callable[[], Any]:
        def body() -> None:
            first, second = (nl.ndarray(shape, dtype, address=(0, 1000)) for _ in range(2))
            nisa.memset(first, 1)
            nisa.memset(second, 1)
            fills(first)

        return body

    bfloat16, uint32, uint8, packed = nl.bfloat16, nl.uint32, nl.uint8, nl.float8_e5m2_x4
    kernels = (
        partly((32, 9), nl.int32, lambda dst: nisa.nonzero_with_count(dst, tile(32, 8))),
        partly(
            (16, 8), bfloat16, lambda dst: nisa.topk(dst, tile(16, 8, dtype=uint32), tile(16, 1, dtype=bfloat16), 8)
        ),
        partly(
            (16, 8), uint32, lambda dst: nisa.topk(tile(16, 8, dtype=bfloat16), dst, tile(16, 1, dtype=bfloat16), 8)
        ),
        partly(
            (32, 1), uint8, lambda dst: nisa.quantize_mx(tile(32, 1, dtype=packed), tile(32, 4, dtype=bfloat16), dst)
        ),
    )
    for kernel_of_one in kernels:
        assert "overlaps" in overflow(kernel_of_one, "trn3")


@pytest.mark.parametrize(
    ("address", "arguments", "message"),
    [
        (3, {}, "address must be (first partition, first byte in a partition), got 3"),
        ((0, 0, 0), {}, "address must be (first partition, first byte in a partition), got (0, 0, 0)"),
        ((0, 1.5), {}, "address must be (first partition, first byte in a partition), got (0, 1.5)"),
        ((32, 0), {}, "address: a tensor of 128 partitions starts at partition 0, got 32"),
        ((0, SBUF_BYTES - 511), {}, "address: bytes 212473 to 212985 are not inside the 212984 bytes of a partition"),
        ((0, -1), {}, "address: bytes -1 to 511 are not inside the 212984 bytes of a partition of sbuf"),
        ((0, 1024), {"buffer": nl.psum}, "a multiple of 2048 bytes; got 1024"),
        ((0, 8 * BANK), {"buffer": nl.psum}, "are not inside the 16384 bytes of a partition of psum"),
        ((0, 0), {"buffer": nl.shared_hbm}, "address of a tensor in HBM must be (first byte,), got (0, 0)"),
    ],
)
def test_an_address_that_cannot_be(address: Any, arguments: dict[str, Any], message: str) -> None:
    def kernel() -> None:
        nl.ndarray((128, 128), nl.float32, address=address, **arguments)

    with pytest.raises(nisa.NkiValidationError) as caught:
        execute(kernel)
    assert message in str(caught.value)


def test_the_addresses_at_the_limits() -> None:
    def kernel() -> None:
        nisa.memset(nl.ndarray((128, 128), nl.float32, address=(0, SBUF_BYTES - 512)), 0)
        nisa.memset(nl.ndarray((128, 128), nl.float32, nl.psum, address=(0, 7 * BANK)), 0)
        nisa.memset(nl.ndarray((32, 128), nl.float32, address=[96, 0]), 0)
        nisa.memset(nl.ndarray((64, 128), nl.float32, address=(64, 0)), 0)

    assert peaks(kernel) == (SBUF_BYTES, 7 * BANK + 512)


def life(partitions: int, nbytes: int, first: int, last: int, region: MemoryRegion = MemoryRegion.sbuf) -> LiveRange:
    made = LiveRange(region, (partitions, nbytes), nl.uint8)
    made.touch(first)
    made.touch(last)
    return made


@given(st.lists(st.tuples(st.integers(65, 128), st.integers(1, 90_000), st.integers(1, 12), st.integers(0, 8))))
def test_the_peak_of_tall_tiles_is_the_largest_sum_at_any_instruction(
    tiles: list[tuple[int, int, int, int]],
) -> None:
    """Tiles of more than 64 partitions lie above each other, so that their peak is simple arithmetic."""
    sums = [sum(n for _, n, first, length in tiles if first <= now <= first + length) for now in range(1, 21)]
    lives = [life(partitions, n, first, first + length) for partitions, n, first, length in tiles]
    if max(sums) > SBUF_BYTES:
        with pytest.raises(CapacityError):
            check_capacity(lives, TRN2, finds_peaks=False)
    else:
        assert check_capacity(lives, TRN2, finds_peaks=True)[MemoryRegion.sbuf].nbytes == max(sums)


def least_height(tiles: Iterable[tuple[int, int]]) -> int:
    """The lowest height of tiles (quarters, bytes) in four quarters, by trying every choice of quarters.

    Tiles of four quarters go to the bottom, then those of two; each side by side with what it shares nothing with.
    """
    ordered = sorted(tiles, reverse=True)

    def best(index: int, heights: tuple[int, ...]) -> int:
        if index == len(ordered):
            return max(heights)
        quarters, nbytes = ordered[index]
        choices = []
        for first in range(0, 4, quarters):
            top = max(heights[first : first + quarters]) + nbytes
            choices.append(best(index + 1, (*heights[:first], *[top] * quarters, *heights[first + quarters :])))
        return min(choices)

    return best(0, (0, 0, 0, 0))


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 60)), max_size=6))
def test_the_height_of_mixed_tiles_is_close_to_the_best_one(tiles: list[tuple[int, int]]) -> None:
    """Largest first is within 4/3 of the best arrangement (Graham, 1969, for tiles of one quarter), never below it."""
    lives = [life({1: 32, 2: 64, 4: 128}[quarters], nbytes, 1, 2) for quarters, nbytes in tiles]
    best = least_height(tiles)
    assert best <= check_capacity(lives, TRN2, finds_peaks=True)[MemoryRegion.sbuf].nbytes <= best * 4 / 3


TENSORS = 6
# What an instruction does to tensors: it touches one, or overwrites it as a whole. In between some are not touched.
INSTRUCTIONS = st.lists(
    st.dictionaries(st.integers(0, TENSORS - 1), st.booleans(), max_size=4), min_size=1, max_size=40
)


def lives() -> list[LiveRange]:
    """Tensors of 1 to 6 bytes in one, two or four quarters of the partitions."""
    shapes = [((32, 64, 128)[number % 3], 1 + number) for number in range(TENSORS)]
    return [LiveRange(MemoryRegion.sbuf, shape, as_dtype(nl.uint8)) for shape in shapes]


class Counted:
    """The memory that tensors certainly take at each instruction, by counting."""

    def __init__(self) -> None:
        self.taken: Counter[int] = Counter()
        self._last: dict[int, int] = {}

    def touch(self, tensor: int, area: int, number: int, *, is_new: bool) -> None:
        last = self._last.get(tensor)
        if last is None or (is_new and last != number):
            last = number - 1
        for moment in range(last + 1, number + 1):
            self.taken[moment] += area
        self._last[tensor] = number

    @property
    def most(self) -> int:
        return max(self.taken.values(), default=0)


@given(INSTRUCTIONS, st.integers(10, 60))
def test_it_no_longer_fits_from_the_very_instruction_on_that_makes_it_certain(
    instructions: list[dict[int, bool]], room: int
) -> None:
    use, counted, tensors = CertainUse(room), Counted(), lives()
    for number, touched in enumerate(instructions, 1):
        for tensor, overwrites in touched.items():
            life = tensors[tensor]
            counted.touch(tensor, life.area, number, is_new=overwrites)
            if overwrites:
                fits = use.restart(life, number)
            elif life.window == use.window:  # as its caller does: nothing is to be found out
                life.last, fits = number, True
            else:
                fits = use.touch(life, number)
            assert fits == (counted.most <= room)
            if not fits:
                assert counted.taken[use.moment] == counted.most
                return


@given(INSTRUCTIONS)
def test_a_tensor_that_is_read_and_overwritten_by_one_instruction_counts_once(
    instructions: list[dict[int, bool]],
) -> None:
    """Every instruction touches its tensors before it overwrites them; room for all tensors is enough."""
    tensors = lives()
    use = CertainUse(sum(life.area for life in tensors))
    for number, touched in enumerate(instructions, 1):
        for tensor, overwrites in touched.items():
            life = tensors[tensor]
            if life.window == use.window:
                life.last = number
            else:
                assert use.touch(life, number)
            if overwrites:
                assert use.restart(life, number)


def test_area_is_bytes_times_the_quarters_of_the_partitions() -> None:
    def area(partitions: int) -> int:
        return LiveRange(MemoryRegion.sbuf, (partitions, 3, 5), as_dtype(nl.float32)).area

    assert [area(partitions) for partitions in (1, 32, 33, 64, 65, 128)] == [60, 60, 120, 120, 240, 240]


@given(st.sampled_from([MemoryRegion.sbuf, MemoryRegion.psum]), INSTRUCTIONS)
def test_what_it_refuses_is_refused_at_the_end_as_well(
    region: MemoryRegion, instructions: list[dict[int, bool]]
) -> None:
    """Tensors of which between two and four fill the region."""
    room = TRN2.sbuf_usable_bytes if region is MemoryRegion.sbuf else 16_384
    shapes = [((32, 64, 128)[number % 3], room // (2 + number % 3)) for number in range(TENSORS)]
    tensors = [LiveRange(region, shape, as_dtype(nl.uint8)) for shape in shapes]
    use = certain_uses(TRN2)[region]
    has_fitted = True
    for number, touched in enumerate(instructions, 1):
        for tensor in touched:
            life = tensors[tensor]
            if life.window == use.window:
                life.last = number
            else:
                has_fitted &= use.touch(life, number)
    if not has_fitted:
        with pytest.raises(CapacityError, match=f"{region} overflows"):
            check_capacity(tensors, TRN2, finds_peaks=True)
