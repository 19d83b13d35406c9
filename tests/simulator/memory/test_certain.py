# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Certain memory of lives while they grow, against a count of every instruction."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from nkilib.nki import nl
from nkilib.simulator.hardware.trn2 import TRN2
from nkilib.simulator.memory.capacity import certain_uses, check_capacity
from nkilib.simulator.memory.certain import CertainUse
from nkilib.simulator.memory.lives import LiveRange
from nkilib.simulator.terms.dtypes import as_dtype
from nkilib.simulator.terms.errors import CapacityError
from nkilib.simulator.terms.regions import MemoryRegion

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
