# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Inputs of the measurements."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._inputs import BF16, FP32, HARD_EVERY, fill, make_logits, make_targets


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_a_block_of_rows_is_the_same_as_in_the_whole(dtype: np.dtype, mixed: bool) -> None:
    whole = make_logits(40, 11, dtype, seed=5, mixed=mixed)
    block = np.empty((9, 11), dtype)
    fill(block, seed=5, first_row=23, mixed=mixed)
    assert block.tobytes() == whole[23:32].tobytes()
    assert make_logits(40, 11, dtype, seed=6, mixed=mixed).tobytes() != whole.tobytes()


def test_normal_logits_are_normal() -> None:
    logits = make_logits(20, 5000, FP32)
    assert abs(float(logits.mean())) < 0.02
    assert abs(float(logits.std()) - 1.0) < 0.02


def test_hard_rows_come_in_turn() -> None:
    rows = range(HARD_EVERY - 1, 4 * HARD_EVERY, HARD_EVERY)
    far_above, huge, masked, equal = make_logits(4 * HARD_EVERY, 300, FP32, mixed=True)[list(rows)]
    above_all_others = np.sort(far_above)[-1] - np.sort(far_above)[-2]
    assert above_all_others > 20.0
    assert huge.max() == 1e4 and huge.min() == -1e4
    assert 90 <= np.isneginf(masked).sum() <= 100
    assert np.unique(equal).size == 1


@pytest.mark.parametrize("vocabulary", [1, 2, 507])
def test_every_row_has_a_finite_entry(vocabulary: int) -> None:
    logits = make_logits(20 * HARD_EVERY, vocabulary, FP32, mixed=True)
    assert np.isfinite(logits).any(axis=1).all()


def test_targets_are_in_range() -> None:
    targets = make_targets(1000, 7)
    assert targets.dtype == np.int32
    assert set(targets.tolist()) == set(range(7))
