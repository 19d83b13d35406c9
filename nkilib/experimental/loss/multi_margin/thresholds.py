# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The thresholds that the elements of a row are compared with: the element at the row's target minus the
margin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nkilib.core.rows.tiles import FLOAT32_HIGHEST, cast, float32_like
from nkilib.experimental.loss.multi_margin.launch import Launch, RowBlock
from nkilib.experimental.loss.skeletons.indexed.elements import ElementFinder, TargetElements
from nkilib.nki import nisa, nl

# Blocks whose elements are gathered before they are needed.
_AHEAD = 3


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of the rows of a block: float32 tiles [rows, 1].

    Attributes:
        elements: the indices of the elements at the targets, and the weights of the rows.
        value_sbuf: the element at the target, x_t.
        bias_sbuf: margin - x_t, finite.
    """

    elements: TargetElements
    value_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor

    def least(self) -> nl.NkiTensor:
        """Return x_t - margin, the threshold itself: the terms of elements above it are positive."""
        least_sbuf = float32_like(self.bias_sbuf)
        nisa.tensor_scalar(dst=least_sbuf, data=self.bias_sbuf, op0=nl.multiply, operand0=-1.0)
        return least_sbuf


def thresholds_of_blocks(launch: Launch, blocks: list[RowBlock]) -> Iterator[Thresholds]:
    """Yield the thresholds of each block.

    The elements at the targets are gathered several blocks ahead, because a gather has the latency of three
    DMAs. The thresholds are computed from them one block ahead: Vector works in order, and would otherwise
    compute them only when the previous block is finished.
    """
    finder = launch.finder()
    gathered: list[tuple[TargetElements, nl.NkiTensor]] = []
    computed: list[Thresholds] = []
    for number in range(len(blocks)):
        gathered.extend(_gathered(launch, finder, block) for block in blocks[len(gathered) : number + _AHEAD])
        for elements, value_sbuf in gathered[len(computed) : number + 2]:
            computed.append(_thresholds(launch, elements, cast(value_sbuf, nl.float32)))
        yield computed[number]


def _gathered(launch: Launch, finder: ElementFinder, block: RowBlock) -> tuple[TargetElements, nl.NkiTensor]:
    (elements,) = finder.find([block.positions])
    return elements, elements.gathered(block.positions.block.of(launch.input_hbm))


def _thresholds(launch: Launch, elements: TargetElements, value_sbuf: nl.NkiTensor) -> Thresholds:
    """Compute the thresholds of a block from the elements at its targets.

    The bias is kept finite, because its sum with an infinite element could be inf - inf.
    """
    bias_sbuf = float32_like(value_sbuf)
    nisa.tensor_scalar(
        dst=bias_sbuf,
        data=value_sbuf,
        op0=nl.multiply,
        operand0=-1.0,
        op1=nl.add,
        operand1=launch.options.margin,
    )
    nisa.tensor_scalar(
        dst=bias_sbuf,
        data=bias_sbuf,
        op0=nl.minimum,
        operand0=FLOAT32_HIGHEST,
        op1=nl.maximum,
        operand1=-FLOAT32_HIGHEST,
    )
    return Thresholds(elements, value_sbuf, bias_sbuf)
