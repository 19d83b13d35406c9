# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.core.hardware``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nkilib.core.hardware import div_ceil


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_div_ceil_is_the_smallest_number_of_tiles_that_cover(numerator: int, denominator: int) -> None:
    tiles = div_ceil(numerator, denominator)
    assert (tiles - 1) * denominator < numerator <= tiles * denominator
