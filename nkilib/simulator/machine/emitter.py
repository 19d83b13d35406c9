# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Emitter``: who is told what an instruction would do, instead of its being done; see replay/."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..tensors.view import View


class Emitter(Protocol):
    """Takes down the work of instructions, one after the other.

    The function of an instruction checks its operands and then describes its work by calls of these methods, by way of
    the functions of ``engines/`` that otherwise do the work at once. One that reads the elements of a tensor in another
    way meets ``DataNeeded``: the emitter then takes down the instruction as a whole.
    """

    def elementwise(
        self, dst: View, tiles: Sequence[View], apply: Callable[..., object], reduction: Any, columns: Sequence[Any]
    ) -> None:
        """See engines/results.py, ``compute``."""

    def reduce_rows(self, dst: View, tile: View, reduce: Callable[..., object], reads_bfloat16: bool) -> None:
        """See engines/reduced.py, ``reduce_rows``."""

    def act(
        self,
        function: Callable[..., object],
        writes: Sequence[View],
        reads: Sequence[View],
        updates: Sequence[View],
        may_refuse: bool,
    ) -> None:
        """See engines/actions.py, ``act``."""

    def move(self, target: View, source: View) -> None:
        """See engines/dma/rows.py, ``move``."""

    def multiply(self, dst: View, stationary: View, moving: View, is_added: bool) -> None:
        """A product of matrices, in the place of what ``dst`` holds or added to it; see engines/tensor/sums.py."""
