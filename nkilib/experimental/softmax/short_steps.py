# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loop over pieces of short columns: a piece goes one stage further in each step.

Engines run what they are given in order, so what a stage waits for was issued a step before, if another engine does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from nkilib.experimental.softmax.row_tiles import Ring
from nkilib.experimental.softmax.short_plan import Piece, ShortPlan, Window
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# What a stage does with a piece, and in which step after the one in which the piece comes.
Stage = tuple[int, Callable[[Piece], None]]


@dataclass
class WindowTiles:
    """Windows of a tensor, in tiles that they take in turn.

    Attributes:
        tensor_hbm: [O, C, I].
        tiles_sbuf: [128, elements].
        windows: of the core.
    """

    tensor_hbm: nl.NkiTensor
    tiles_sbuf: list[nl.NkiTensor]
    windows: list[Window]

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, plan: ShortPlan) -> WindowTiles:
        """With tiles of its own."""
        ring = Ring.make(plan.buffers, plan.window, tensor_hbm.dtype)
        return cls(tensor_hbm, ring.tiles, plan.windows)

    def of(self, number: int) -> nl.NkiTensor:
        """A window, [partitions, each, C, width]."""
        shape = self.windows[number].shape(self.tensor_hbm.shape[1])
        tile_sbuf = self.tiles_sbuf[number % len(self.tiles_sbuf)]
        return tile_sbuf[0 : shape[0], 0 : prod(shape[1:])].reshape(shape)

    def piece(self, piece: Piece) -> nl.NkiTensor:
        """A piece, [partitions, each, C, width]."""
        return piece.of(self.of(piece.window))

    def load(self, number: int) -> None:
        """Issue the transfers of a window."""
        window_sbuf = self.of(number)
        for first, part_hbm in self.windows[number].runs(self.tensor_hbm):
            nisa.dma_copy(dst=window_sbuf[first : first + part_hbm.shape[0]], src=part_hbm)

    def store(self, number: int) -> None:
        """The other way."""
        window_sbuf = self.of(number)
        for first, part_hbm in self.windows[number].runs(self.tensor_hbm):
            nisa.dma_copy(dst=part_hbm, src=window_sbuf[first : first + part_hbm.shape[0]])


@dataclass
class ShortLoop:
    """All steps of a core.

    Attributes:
        plan: of the launch.
        inputs: what is loaded.
        result: what is stored; its tiles may be those of the first input.
        stages: in the order in which a step issues them; the last step of a piece makes its result.
        loaded, stored: windows so far.
    """

    plan: ShortPlan
    inputs: list[WindowTiles]
    result: WindowTiles
    stages: list[Stage]
    loaded: int = 0
    stored: int = 0
    under_way: list[Piece | None] = field(default_factory=list)

    def run(self) -> None:
        """Issue everything."""
        waiting = [piece for window in self.plan.windows for piece in window.pieces(self.plan.columns)]
        depth = 1 + max(step for step, _ in self.stages)
        self.under_way = [None] * depth
        while waiting or any(self.under_way):
            self._load()
            comes = bool(waiting) and waiting[0].window < self.loaded
            self.under_way = [waiting.pop(0) if comes else None, *self.under_way[:-1]]
            for step, do in self.stages:
                piece = self.under_way[step]
                if piece is not None:
                    do(piece)
            ended = self.under_way[-1]
            if ended is not None and ended.ends:
                self.result.store(ended.window)
                self.stored += 1

    def _load(self) -> None:
        """Whatever has a place."""
        while self.loaded < min(len(self.plan.windows), self.stored + self.plan.buffers):
            for tiles in self.inputs:
                tiles.load(self.loaded)
            self.loaded += 1


def result_tiles(result_hbm: nl.NkiTensor, plan: ShortPlan, overwritten: WindowTiles) -> WindowTiles:
    """In the tiles of an input of the same type, or in their own."""
    if result_hbm.dtype == overwritten.tensor_hbm.dtype:
        return WindowTiles(result_hbm, overwritten.tiles_sbuf, plan.windows)
    return WindowTiles.make(result_hbm, plan)


def of_columns(values_sbuf: nl.NkiTensor, length: int) -> nl.NkiTensor:
    """A number a column, [partitions, each, 1, width], for each of its elements."""
    return values_sbuf.broadcast(2, length)


def on_vector(dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, op: Operator, data2_sbuf: nl.NkiTensor) -> None:
    """``data1 <op> data2``: Vector takes twice as long for ``tensor_tensor`` of float32."""
    nisa.scalar_tensor_tensor(dst=dst_sbuf, data=data1_sbuf, op0=nl.multiply, operand0=1.0, op1=op, operand1=data2_sbuf)


def on_gpsimd(dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, op: Operator, data2_sbuf: nl.NkiTensor) -> None:
    """``data1 <op> data2``."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=data1_sbuf, data2=data2_sbuf, op=op, engine=nisa.engine.gpsimd)


def fold(data_sbuf: nl.NkiTensor, dst_sbuf: nl.NkiTensor, op: Operator, issue: Callable[..., None] = on_vector) -> None:
    """Half of the elements of columns onto the other half: [partitions, each, C, width] into C // 2.

    ``dst_sbuf`` may be the first half of ``data_sbuf``.
    """
    length = data_sbuf.shape[2]
    half = length // 2
    issue(dst_sbuf, data_sbuf[:, :, 0:half], op, data_sbuf[:, :, half : 2 * half])
    if length % 2:
        issue(dst_sbuf[:, :, 0:1], dst_sbuf[:, :, 0:1], op, data_sbuf[:, :, length - 1 : length])


def folded(half_sbuf: nl.NkiTensor, op: Operator) -> nl.NkiTensor:
    """What is left when all elements of columns are folded, in their place: [partitions, each, 1, width].

    Its order depends on C alone, and rounding errors grow with log C.
    """
    while half_sbuf.shape[2] > 1:
        first_sbuf = half_sbuf[:, :, 0 : half_sbuf.shape[2] // 2]
        fold(half_sbuf, first_sbuf, op)
        half_sbuf = first_sbuf
    return half_sbuf
