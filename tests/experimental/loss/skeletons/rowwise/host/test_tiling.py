# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiling that is chosen fits, and its modelled times hold."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest

from nkilib.base.work import stated_work
from nkilib.experimental.loss import choose_rowwise_tiling, triplet_margin_loss_backward, triplet_margin_loss_forward
from nkilib.experimental.loss.triplet_margin.host.pairs import backward_tiles
from nkilib.simulator import profile, spec


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(7, 1), (5000, 3), (100, 511), (100, 513), (300, 8193), (3, 20000)])
def test_what_is_chosen_is_accepted(shape: tuple[int, int], dtype: str, swap: bool) -> None:
    """A launch that did not fit would be refused."""
    x, numbers = spec(shape, dtype), spec((3 if swap else 2, shape[0]), "float32")
    assert profile(triplet_margin_loss_forward[2], x, x, x, swap=swap).time_us > 0.0
    one = spec((1,), "float32")
    assert profile(triplet_margin_loss_backward[2], x, x, x, numbers, one, swap=swap).time_us > 0.0


def test_short_rows_are_taken_together() -> None:
    assert choose_rowwise_tiling(1_000_000, 64, 6, 2).each > 30
    assert choose_rowwise_tiling(200, 64, 6, 2).each == 1
    long = choose_rowwise_tiling(4096, 32128, 6, 2)
    assert long.each == 1 and long.columns % 512 == 0 and 32128 / long.columns > 5
    assert choose_rowwise_tiling(4096, 32128, 24, backward_tiles(True)).columns >= 512


@pytest.mark.parametrize(("reduction", "stored"), [("none", 2), ("sum", 0)])
def test_the_work_of_a_forward_is_stated(reduction: str, stored: int) -> None:
    """Three matrices cross HBM, and a loss of each row where it is stored."""
    work = stated_work(inspect.unwrap(cast(Any, triplet_margin_loss_forward).func))
    assert work is not None
    x = spec((40, 1000), "bfloat16")
    arguments = dict.fromkeys(("anchor_hbm", "positive_hbm", "negative_hbm"), x)
    result = work(**arguments, dtype=None, reduction=reduction, p=2.0, swap=False)
    assert result.hbm_bytes == 3 * 40 * 1000 * 2 + 40 * stored
