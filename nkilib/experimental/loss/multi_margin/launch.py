# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A launch of the multi-class margin loss: its arguments, tiling and checks, and the terms of rows that both kernels
compute.

:class:`Launch` has the arguments, which :func:`validate` checks; :func:`choose_multi_margin_tiling` chooses the tiling.
N is the number of rows, C the number of classes.

The *term* of element j of a row x with target t is relu(x_j - x_t + margin)^p. :func:`hinges` and
:func:`hinges_on_vector` compute terms for p = 1, :func:`square_hinges` for p = 2. The *threshold* of a row is
x_t - margin: a term is positive if x_j is above it (:class:`Thresholds`, :func:`thresholds_of_blocks`). A sum over a
row includes the target's *own term*, relu(margin)^p, which :func:`sum_without` subtracts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from nkilib.core.hardware import div_ceil
from nkilib.core.host.options import is_integer
from nkilib.core.loss_arguments import require_float_tensor, require_reduction
from nkilib.core.rows.batches import Batch
from nkilib.core.rows.checks import require, require_indirect_dma, require_vector
from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.core.rows.sbuf import TileRing, ring_of
from nkilib.core.rows.tiles import FLOAT32_HIGHEST, RowSums, cast, float32_like
from nkilib.experimental.loss.skeletons.indexed import (
    BATCHES_MAX,
    Block,
    ElementFinder,
    PositionBatch,
    Shape,
    TargetElements,
    batches_of_block,
    blocks_of,
)
from nkilib.nki import nisa, nl

# Columns of a chunk at most: more gain nothing, and the engine's accumulator adds up the sum of a chunk.
MOST_COLUMNS = 4096
# Chunks of the input on chip, and of scratch.
BUFFERS, SCRATCH_BUFFERS = 4, 3
# Chunks of a row at most: a partition keeps their sums.
_MOST_CHUNKS = 4096
# Blocks whose elements are gathered before they are needed.
_AHEAD = 3
# Sizes are rounded up to multiples of this number.
_ROUND = 128


class MultiMarginTiling(NamedTuple):
    """The tiling of a launch; pass it as ``kernel[2](..., **tiling._asdict())``.

    Attributes:
        chunk_size: the number of classes that are processed at a time.
    """

    chunk_size: int


def choose_multi_margin_tiling(classes: int) -> MultiMarginTiling:
    """Return the tiling for rows of ``classes`` elements: chunks of nearly equal size.

    The tiling depends only on the number of classes, so that the results of a row are bitwise identical in any launch.
    """
    even = div_ceil(classes, div_ceil(classes, MOST_COLUMNS))
    return MultiMarginTiling(min(MOST_COLUMNS, div_ceil(even, _ROUND) * _ROUND))


@dataclass(frozen=True)
class MultiMarginOptions:
    """The options of the loss, under the names of the kernels' parameters.

    Attributes:
        p: 1 or 2, the exponent.
        margin: the amount by which the score of the target should exceed every other score.
    """

    p: int = 1
    margin: float = 1.0


@dataclass(frozen=True)
class RowBlock:
    """A block: the rows that are processed at a time, one in each partition.

    Attributes:
        batch: the rows as a batch of the input's stream.
        positions: the same rows as a batch of positions, to find their targets.
    """

    batch: Batch
    positions: PositionBatch

    @property
    def number(self) -> int:
        """The number of the block among all blocks of the launch."""
        return self.positions.number


def _row_block(shape: Shape, block: Block) -> RowBlock:
    (positions,) = batches_of_block(shape, block)
    return RowBlock(Batch(block.first, block.rows, 1), positions)


@dataclass(frozen=True)
class Launch:
    """The arguments of a launch of the forward or the backward kernel.

    Attributes:
        function: the name of the kernel in error messages.
        input_hbm: the scores, [N, C].
        targets_hbm: the targets, int32 [N].
        class_weight_hbm: the class weights, float32 [C]; None for weights of 1.
        options: the options of the loss.
        reduction: the reduction of the losses.
        tiling: the tiling of the launch.
    """

    function: str
    input_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor
    class_weight_hbm: nl.NkiTensor | None
    options: MultiMarginOptions
    reduction: str
    tiling: MultiMarginTiling

    @property
    def shape(self) -> Shape:
        """The shape of the input."""
        return Shape.of(tuple(self.input_hbm.shape))

    @property
    def is_each(self) -> bool:
        """Whether ``reduction`` is ``"none"``, so that each loss is stored."""
        return self.reduction == "none"

    @property
    def factor(self) -> float:
        """The factor that turns the weighted sum of a row into its loss: 1 / C, or for a mean 1 / (N C)."""
        shape = self.shape
        return 1.0 / (shape.classes * (shape.rows if self.reduction == "mean" else 1))

    @property
    def number_of_blocks(self) -> int:
        """The number of blocks of all cores."""
        return len(blocks_of(self.shape))

    def blocks(self) -> list[RowBlock]:
        """Return the blocks of this core; their sizes do not depend on the number of cores."""
        own = blocks_of(self.shape)[nl.program_id(0) :: nl.num_programs()]
        return [_row_block(self.shape, block) for block in own]

    def finder(self) -> ElementFinder:
        """Return the object that locates the elements at the targets."""
        targets_hbm = self.targets_hbm.reshape((self.shape.rows, 1))
        return ElementFinder.make(self.shape, targets_hbm, self.class_weight_hbm, None)


def _validate_sizes(launch: Launch) -> None:
    function, shape, chunk_size = launch.function, launch.shape, launch.tiling.chunk_size
    require(
        is_integer(chunk_size) and 0 < chunk_size <= MOST_COLUMNS,
        f"{function}: chunk_size must be an integer from 1 to {MOST_COLUMNS}, got {chunk_size}; leave it out",
    )
    most = min(INDEX_LIMIT, _MOST_CHUNKS * chunk_size)
    require(
        shape.classes <= most,
        f"{function}: a row must have at most {most} classes in chunks of {chunk_size}, got {shape.classes}; "
        f"pass chunk_size={MOST_COLUMNS}, or split the classes",
    )
    blocks = div_ceil(shape.rows, shape.rows_of_block)
    require(
        blocks <= BATCHES_MAX,
        f"{function}: a launch takes at most {BATCHES_MAX} groups of up to 128 rows, got {blocks} of {shape.rows} "
        f"rows; split the rows",
    )


def validate(launch: Launch) -> None:
    """Check the arguments of a launch.

    Raises:
        AssertionError: if an argument is not accepted; the message has function, requirement, value and remedy.
    """
    function, input_hbm = launch.function, launch.input_hbm
    require_indirect_dma(function)
    shape = tuple(input_hbm.shape)
    require(
        len(shape) == 2 and min(shape) > 0,
        f"{function}: input_hbm must have shape (N, C) with N, C > 0, got {shape}; reshape [C] to [1, C]",
    )
    require_float_tensor(function, "input_hbm.dtype", input_hbm.dtype)
    require(
        tuple(launch.targets_hbm.shape) == shape[:1] and launch.targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32 of shape ({shape[0]},), got {launch.targets_hbm.dtype} of shape "
        f"{tuple(launch.targets_hbm.shape)}; cast it to int32",
    )
    if launch.class_weight_hbm is not None:
        require_vector(function, "class_weight_hbm", launch.class_weight_hbm, shape[1], "the classes")
    p, margin = launch.options.p, launch.options.margin
    require(p in (1, 2) and not isinstance(p, bool), f"{function}: p must be 1 or 2, got {p}")
    require(isfinite(margin), f"{function}: margin must be finite, got {margin}; a number near 1 is usual")
    require_reduction(function, launch.reduction)
    _validate_sizes(launch)


def sum_without(parts: RowSums, own_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the sum of each row over all chunks, minus its own term: float32 [rows, 1].

    Args:
        parts: the sum of each row and chunk.
        own_sbuf: the own term of each row, float32 [rows, 1].
    """
    sum_sbuf = float32_like(own_sbuf)
    parts.total(sum_sbuf, parts.parts_sbuf.shape[1])
    nisa.tensor_tensor(dst=sum_sbuf, data1=sum_sbuf, data2=own_sbuf, op=nl.subtract)
    return sum_sbuf


def scratch_of(launch: Launch, dtype: nl.DType) -> TileRing:
    """Allocate a ring buffer of tiles [128, columns of a chunk] of type ``dtype``; chunks use them round-robin."""
    return TileRing(ring_of(SCRATCH_BUFFERS, launch.tiling.chunk_size, dtype))


def hinges(dst: nl.NkiTensor, data: nl.NkiTensor, bias_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor) -> None:
    """Write relu(``data`` + bias) to ``dst``, and its sum over each row to ``sum_sbuf`` [rows, 1], on Scalar."""
    nisa.activation(
        dst=dst,
        op=nl.relu,
        data=data,
        bias=bias_sbuf,
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def hinges_on_vector(
    data: nl.NkiTensor, zeros_sbuf: nl.NkiTensor, bias_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor
) -> None:
    """Compute :func:`hinges` on Vector, in place of ``data``; ``zeros_sbuf`` has zeros and at least the data's size."""
    rows, columns = data.shape
    nisa.scalar_tensor_tensor(
        dst=data,
        data=data,
        op0=nl.add,
        operand0=bias_sbuf,
        op1=nl.maximum,
        operand1=zeros_sbuf[0:rows, 0:columns],
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def square_hinges(
    scratch_sbuf: nl.NkiTensor, data: nl.NkiTensor, bias_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor
) -> None:
    """Write relu(``data`` + bias)^2 to ``scratch_sbuf``, and its sum over each row to ``sum_sbuf`` [rows, 1].

    Vector computes the relu, Scalar the square.
    """
    nisa.tensor_scalar(dst=scratch_sbuf, data=data, op0=nl.add, operand0=bias_sbuf, op1=nl.maximum, operand1=0.0)
    nisa.activation(
        dst=scratch_sbuf,
        op=nl.square,
        data=scratch_sbuf,
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


@dataclass(frozen=True)
class Thresholds:
    """The elements at the targets of a block's rows, and the thresholds of the rows: float32 tiles [rows, 1].

    Attributes:
        elements: the indices of the elements at the targets, and the class weights of the targets.
        value_sbuf: x_t, the element at each row's target.
        bias_sbuf: margin - x_t (the negated threshold), clamped to finite numbers.
    """

    elements: TargetElements
    value_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor

    def least(self) -> nl.NkiTensor:
        """Return the thresholds x_t - margin in a new tile, float32 [rows, 1]."""
        least_sbuf = float32_like(self.bias_sbuf)
        nisa.tensor_scalar(dst=least_sbuf, data=self.bias_sbuf, op0=nl.multiply, operand0=-1.0)
        return least_sbuf


def _gathered(launch: Launch, finder: ElementFinder, block: RowBlock) -> tuple[TargetElements, nl.NkiTensor]:
    (elements,) = finder.find([block.positions])
    return elements, elements.gathered(block.positions.block.of(launch.input_hbm))


def _thresholds(launch: Launch, elements: TargetElements, value_sbuf: nl.NkiTensor) -> Thresholds:
    """Return the thresholds of a block.

    The bias margin - x_t is kept finite, because adding it to an infinite element could otherwise give inf - inf.
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


def thresholds_of_blocks(launch: Launch, blocks: list[RowBlock]) -> Iterator[Thresholds]:
    """Yield the thresholds of each block, in order.

    The elements at the targets are gathered several blocks ahead, because a gather takes the latency of three DMA
    transfers. Thresholds are computed one block ahead, so that they do not wait for Vector's work on the block before.
    """
    finder = launch.finder()
    gathered: list[tuple[TargetElements, nl.NkiTensor]] = []
    computed: list[Thresholds] = []
    for number in range(len(blocks)):
        gathered.extend(_gathered(launch, finder, block) for block in blocks[len(gathered) : number + _AHEAD])
        for elements, value_sbuf in gathered[len(computed) : number + 2]:
            computed.append(_thresholds(launch, elements, cast(value_sbuf, nl.float32)))
        yield computed[number]
