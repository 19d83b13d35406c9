# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels' use of HBM equals numbers worked out by hand, and no choice uses more than it may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.experimental.loss.linear.host.memory import backward_bytes
from nkilib.experimental.loss.linear_cross_entropy.host.memory import (
    SCRATCH_BYTES,
    LogitsBlocks,
    form_bytes,
    logits_blocks,
    one_launch_bytes,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("sizes", "blocks", "mebibytes"),
    [
        ((2048, 2048, 65536), LogitsBlocks(2048, 1), 32 + 512),
        ((4096, 4096, 131072), LogitsBlocks(4096, 1), 128 + 2048),
        ((8192, 4096, 131072), LogitsBlocks(1024, 8), 256 + 512 + 2048),
        ((4096, 512, 131072), LogitsBlocks(1024, 4), 16 + 512 + 256),
    ],
)
def test_one_launch_by_hand(sizes: tuple[int, int, int], blocks: LogitsBlocks, mebibytes: int) -> None:
    assert logits_blocks(*sizes) == blocks
    assert one_launch_bytes(*sizes) == mebibytes * MIB


def test_the_backward_keeps_sums_of_a_class_block_where_positions_take_several_blocks() -> None:
    assert backward_bytes(4096, 2048, 4096, 768) == 8 * 4096 * 2048
    assert backward_bytes(4097, 2048, 4096, 768) == 8 * 4097 * 2048 + 2 * 8 * 768 * 2048
    assert backward_bytes(4096, 2048, 4096, 768, cores=1) == 4 * 4096 * 2048


def test_one_launch_is_smaller_only_for_few_logits() -> None:
    for sizes, is_smaller in (((2048, 2048, 65536, 4096, 768), False), ((4096, 4096, 100, 2048, 768), True)):
        result = form_bytes(*sizes)
        assert (result.one_launch <= result.two_launches) == is_smaller


@given(
    positions=st.integers(1, 65536),
    features=st.integers(16, 16384),
    classes=st.integers(1, 262144),
    more=st.integers(0, SCRATCH_BYTES),
)
def test_a_scratch_is_never_exceeded(positions: int, features: int, classes: int, more: int) -> None:
    scratch = 128 * 4 * classes + more
    blocks = logits_blocks(positions, features, classes, scratch)
    assert (blocks.number - 1) * blocks.positions < positions <= blocks.number * blocks.positions
    beyond = one_launch_bytes(positions, features, classes, scratch) - 8 * positions * features
    assert beyond <= scratch + 4 * classes * features
    if blocks.number > 1:
        assert blocks.positions % 128 == 0 and 4 * blocks.positions * classes <= scratch
        assert 4 * positions * classes > scratch + 4 * classes * features
