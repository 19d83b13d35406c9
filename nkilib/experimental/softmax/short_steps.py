# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loop over pieces of short columns: a piece advances by one stage in each step.

Engines run their instructions in order. So if a stage waits for another engine, that engine's work was issued a step
before.
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

# The step of a stage, counted from the step in which the piece starts, and its function.
Stage = tuple[int, Callable[[Piece], None]]


@dataclass
class WindowTiles:
    """The windows of a tensor, and the tiles that they use round-robin.

    Attributes:
        tensor_hbm: the tensor, [O, C, I].
        tiles_sbuf: the tiles, [128, elements].
        windows: the windows of the core.
    """

    tensor_hbm: nl.NkiTensor
    tiles_sbuf: list[nl.NkiTensor]
    windows: list[Window]

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, plan: ShortPlan) -> WindowTiles:
        """Allocate tiles for the windows of a tensor."""
        ring = Ring.make(plan.buffers, plan.window, tensor_hbm.dtype)
        return cls(tensor_hbm, ring.tiles, plan.windows)

    def of(self, number: int) -> nl.NkiTensor:
        """Return a window, [partitions, outer_each, C, width]."""
        shape = self.windows[number].shape(self.tensor_hbm.shape[1])
        tile_sbuf = self.tiles_sbuf[number % len(self.tiles_sbuf)]
        return tile_sbuf[0 : shape[0], 0 : prod(shape[1:])].reshape(shape)

    def piece(self, piece: Piece) -> nl.NkiTensor:
        """Return a piece, [partitions, outer_each, C, width]."""
        return piece.of(self.of(piece.window))

    def load(self, number: int) -> None:
        """Issue the transfers that load a window."""
        window_sbuf = self.of(number)
        for first, part_hbm in self.windows[number].runs(self.tensor_hbm):
            nisa.dma_copy(dst=window_sbuf[first : first + part_hbm.shape[0]], src=part_hbm)

    def store(self, number: int) -> None:
        """Issue the transfers that store a window."""
        window_sbuf = self.of(number)
        for first, part_hbm in self.windows[number].runs(self.tensor_hbm):
            nisa.dma_copy(dst=part_hbm, src=window_sbuf[first : first + part_hbm.shape[0]])


@dataclass
class ShortLoop:
    """The loop that issues all steps of a core.

    Attributes:
        plan: the plan of the launch.
        inputs: the tiles of the tensors that are loaded.
        result: the tiles that are stored, which may be those of the first input.
        stages: the stages in the order in which a step issues them; the last stage of a piece computes its result.
        loaded, stored: the number of windows that were loaded and stored.
        under_way: the pieces that started 0, 1, 2, ... steps ago; None where no piece did.
    """

    plan: ShortPlan
    inputs: list[WindowTiles]
    result: WindowTiles
    stages: list[Stage]
    loaded: int = 0
    stored: int = 0
    under_way: list[Piece | None] = field(default_factory=list)

    def run(self) -> None:
        """Issue all loads, stages and stores."""
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
        """Load every window that has a free buffer slot."""
        while self.loaded < min(len(self.plan.windows), self.stored + self.plan.buffers):
            for tiles in self.inputs:
                tiles.load(self.loaded)
            self.loaded += 1


def result_tiles(result_hbm: nl.NkiTensor, plan: ShortPlan, overwritten: WindowTiles) -> WindowTiles:
    """Return the tiles of the result: those of an input of the same type, or tiles of its own."""
    if result_hbm.dtype == overwritten.tensor_hbm.dtype:
        return WindowTiles(result_hbm, overwritten.tiles_sbuf, plan.windows)
    return WindowTiles.make(result_hbm, plan)


def of_columns(values_sbuf: nl.NkiTensor, length: int) -> nl.NkiTensor:
    """Broadcast one value per column, [partitions, outer_each, 1, width], to each element of the column."""
    return values_sbuf.broadcast(2, length)


def on_vector(dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, op: Operator, data2_sbuf: nl.NkiTensor) -> None:
    """Compute ``data1 <op> data2`` with ``scalar_tensor_tensor``: ``tensor_tensor`` of float32 takes Vector twice as
    long.
    """
    nisa.scalar_tensor_tensor(dst=dst_sbuf, data=data1_sbuf, op0=nl.multiply, operand0=1.0, op1=op, operand1=data2_sbuf)


def on_gpsimd(dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, op: Operator, data2_sbuf: nl.NkiTensor) -> None:
    """Compute ``data1 <op> data2`` on GpSimd."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=data1_sbuf, data2=data2_sbuf, op=op, engine=nisa.engine.gpsimd)


def fold(data_sbuf: nl.NkiTensor, dst_sbuf: nl.NkiTensor, op: Operator, issue: Callable[..., None] = on_vector) -> None:
    """Combine the first half of each column's elements with the second half: [partitions, outer_each, C, width] into
    C // 2 elements per column. If C is odd, the last element is combined with the first result.

    ``dst_sbuf`` may be the first half of ``data_sbuf``.
    """
    length = data_sbuf.shape[2]
    half = length // 2
    issue(dst_sbuf, data_sbuf[:, :, 0:half], op, data_sbuf[:, :, half : 2 * half])
    if length % 2:
        issue(dst_sbuf[:, :, 0:1], dst_sbuf[:, :, 0:1], op, data_sbuf[:, :, length - 1 : length])


def folded(half_sbuf: nl.NkiTensor, op: Operator) -> nl.NkiTensor:
    """Fold columns in place until one value per column is left, and return these: [partitions, outer_each, 1, width].

    The order of the operations depends on C only, and rounding errors grow with log C.
    """
    while half_sbuf.shape[2] > 1:
        first_sbuf = half_sbuf[:, :, 0 : half_sbuf.shape[2] // 2]
        fold(half_sbuf, first_sbuf, op)
        half_sbuf = first_sbuf
    return half_sbuf
