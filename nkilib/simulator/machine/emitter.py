# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Emitter``: the interface by which instructions describe their work instead of doing it; see replay/."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..tensors.view import View


class Emitter(Protocol):
    """A recorder of the work of instructions, one after the other.

    The function of an instruction checks its operands and then describes its work by calls of these methods, through
    the functions of ``engines/`` that otherwise do the work at once. A function that reads the elements of a tensor in
    another way raises ``DataNeeded``: the emitter then records the instruction as a whole.
    """

    def elementwise(
        self, dst: View, tiles: Sequence[View], apply: Callable[..., object], reduction: Any, columns: Sequence[Any]
    ) -> None:
        """Record an elementwise operation; see engines/results.py, ``compute``."""

    def reduce_rows(self, dst: View, tile: View, reduce: Callable[..., object], reads_bfloat16: bool) -> None:
        """Record a reduction of rows; see engines/reduced.py, ``reduce_rows``."""

    def act(
        self,
        function: Callable[..., object],
        writes: Sequence[View],
        reads: Sequence[View],
        updates: Sequence[View],
        chosen: Sequence[View],
        may_refuse: bool,
    ) -> None:
        """Record an action; see engines/actions.py, ``act``."""

    def move(self, target: View, source: View) -> None:
        """Record a transfer; see engines/dma/rows.py, ``move``."""

    def multiply(self, dst: View, stationary: View, moving: View, is_added: bool) -> None:
        """Record a matrix product that overwrites ``dst`` or is added to it; see engines/tensor/sums.py."""
