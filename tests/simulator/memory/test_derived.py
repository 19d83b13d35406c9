# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`Derived`: copies of views of a tile, kept until it changes and as long as there is room."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkilib.simulator.memory.derived import Derived
from nkilib.simulator.terms.dtypes import bfloat16, float32
from nkilib.simulator.terms.layout import Layout


class Maker:
    """Makes copies of so many elements, and counts them."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.made = 0

    def __call__(self) -> Any:
        self.made += 1
        return np.zeros((1, self.elements), np.float32)


def view(offset: int) -> Layout:
    return Layout((1, 4), (4, 1), offset)


def test_a_view_is_copied_once() -> None:
    derived, maker = Derived(nbytes=64), Maker(4)
    first = derived.copy_of(view(0), bfloat16, maker)
    assert derived.copy_of(view(0), bfloat16, maker) is first
    assert maker.made == 1
    assert derived.copy_of(view(4), bfloat16, maker) is not first
    assert derived.copy_of(view(0), float32, maker) is not first


def test_copies_take_four_times_the_bytes_of_their_tile_at_most() -> None:
    derived, maker = Derived(nbytes=8), Maker(4)
    derived.copy_of(view(0), bfloat16, maker)
    derived.copy_of(view(1), bfloat16, maker)
    derived.copy_of(view(2), bfloat16, maker)  # 48 bytes of 32: the others are forgotten
    derived.copy_of(view(2), bfloat16, maker)
    assert maker.made == 3
    derived.copy_of(view(0), bfloat16, maker)
    assert maker.made == 4
