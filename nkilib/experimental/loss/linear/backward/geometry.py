# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory (SBUF, PSUM) and the number of instructions of a backward plan, computed on the host.

N positions, D features, V classes; X [N, D] and W [V, D] or [D, V] are the operands, G is the gradient of the logits;
dX, dW and db are the gradients of X, W and the bias. The backward works on one *block* of G after another: some
positions and some classes. A *stripe* is a range of features of dX and dW that is worked on at a time, and a *piece* of
X is some tiles of 128 positions of one stripe. Tiles of logits are *opened* (:meth:`.TileMaker.open`) before their
gradient is computed.

A block of G is in SBUF twice, as it is and transposed. Larger blocks need fewer transfers: X and dX are transferred
once for every block of classes, W and dW once for every block of positions. The remaining memory holds the operands
that stream. :class:`BackwardGeometry` computes the memory and the instructions of the blocks and buffers
(:class:`BackwardBuffers`) of a launch (:class:`BackwardSizes`). :class:`TileNeeds` states the memory and instructions
of a loss for its tiles of G; :class:`PairSizes` states the sizes of an operand pair without gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Final

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.plan_limits import limited_instructions, limited_weight_tiles
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.linear.launch import STAGED_ELEMENTS, CastBytes, LinearOperands
from nkilib.experimental.loss.linear.logits import CLASSES_OF_TILE

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from 3.11 on


# Tiles of the gradient of the logits in work at a time, in a ring buffer that every loss has: one on Scalar, one on
# Vector, one that is rounded.
GRADIENT_SLOTS: Final = 3
# Float32 numbers of a position for the gradient, as columns [128, tiles]: eight that stay, and those that are needed
# while they are computed.
GRADIENT_COLUMNS: Final = 14
# Instructions of a tile of the gradient.
GRADIENT_INSTRUCTIONS: Final = 7
# Further instructions of a tile that is added to sums before it is rounded.
SUM_INSTRUCTIONS: Final = 2

# Tiles of dW that are accumulated at a time: there are banks for so many.
_WEIGHT_TILES = 6
# Buffers for tiles of X^T: one is read while the next one is loaded. If X^T shares its memory with X and W, these are
# the halves of the memory.
SLOTS_OF_MEMORY = 2
# The fewest buffers for tiles of dX on their way to HBM: one is stored while the next one is filled.
FEWEST_RESULTS = 2
# Tiles of features of a slice, where W^T streams.
TILES_OF_SLICE = 4
# Banks of PSUM for tiles of logits; where X^T and W^T stream, every further tile of a batch spares loads of W^T.
LOGIT_BANKS, STREAMED_LOGIT_BANKS = 5, 7
# Instructions that a program may have, for at most so many positions; twice as many for more.
PROGRAM_INSTRUCTIONS, POSITIONS_OF_PROGRAM = 29000, 4096
# Copies of a block in a program with a loop: one of the loop, and one behind it. With several blocks of positions, a
# program with room for fewer copies than LEAST_ROOM has the loop alone: a copy of 128 classes takes nearly half of a
# copy of 768.
COPIES_OF_PROGRAM, LEAST_ROOM = 2, 1.75
# Instructions of a tile of dX or of a transpose, besides the products.
_INSTRUCTIONS_OF_RESULT = 3
# Instructions of a staged tile of W: a transfer and a cast.
_INSTRUCTIONS_OF_STAGED = 2
# Bytes of small tiles, with room for alignment.
_SMALL_BYTES = 3072


@dataclass(frozen=True)
class TileNeeds:
    """The SBUF and the instructions that a loss needs to compute its tiles of G, besides the products.

    Attributes:
        columns: the number of float32 numbers in each partition, for each tile of 128 positions of the launch.
        rows: the number of float32 rows, in each partition, as long as a block of classes, such as a bias.
        rings: the number of ring buffers of :data:`GRADIENT_SLOTS` float32 tiles.
        tiles: the number of further float32 tiles.
        numbers: the number of further float32 numbers per partition.
        place_bytes: the bytes for each logit of a block of G, such as a table entry of :class:`IdTiles`.
        opened: the number of ring buffers whose float32 tiles are kept between :meth:`TileMaker.open` and the
            computation of a tile, if several tiles are opened first; else 0. ``rings`` counts them too.
        instructions: the number of instructions of a tile.
    """

    columns: int = GRADIENT_COLUMNS
    rows: int = 0
    rings: int = 0
    tiles: int = 0
    numbers: int = 0
    place_bytes: int = 0
    opened: int = 0
    instructions: int = GRADIENT_INSTRUCTIONS

    def option_bytes(self, num_positions: int, class_block: int, classes_of_tile: int) -> int:
        """Return the bytes per partition for ``columns``, ``rows``, ``rings``, ``tiles`` and ``numbers``.

        Ring buffers count with :data:`GRADIENT_SLOTS` tiles.

        Args:
            num_positions: N.
            class_block: the number of classes of a block.
            classes_of_tile: the number of classes of a tile.
        """
        columns = self.columns * div_ceil(num_positions, PARTITIONS)
        rings = (self.rings * GRADIENT_SLOTS + self.tiles) * classes_of_tile
        return (columns + self.rows * class_block + rings + self.numbers) * FLOAT32_BYTES

    def block_bytes(self, position_tiles: int, class_block: int, classes_of_tile: int, opened: int) -> int:
        """Return the bytes per partition of the tiles that depend on the plan.

        Every loss needs a ring buffer of tiles and a row of class numbers. A loss may also need further opened tiles,
        and ``place_bytes`` for each logit.

        Args:
            position_tiles: the number of tiles of positions of a block.
            class_block: the number of classes of a block.
            classes_of_tile: the number of classes of a tile.
            opened: the number of tiles in each ring buffer of opened tiles.
        """
        places = position_tiles * div_ceil(class_block, classes_of_tile) * classes_of_tile
        tiles = GRADIENT_SLOTS + self.opened * (opened - GRADIENT_SLOTS)
        return (tiles * classes_of_tile + class_block) * FLOAT32_BYTES + self.place_bytes * places


# The needs of a loss without options.
NO_NEEDS: Final = TileNeeds()


@dataclass(frozen=True)
class PairSizes:
    """The sizes of a pair of operands (X and W) whose gradients are not wanted, such as those of a teacher.

    Attributes:
        features: D.
        itemsize: the bytes of an element of the products.
        has_classes_first: whether W is [V, D].
        weight_itemsize: the bytes of an element of W in HBM if W is cast while it is loaded; else 0.
        staging_bytes: the bytes per partition to transpose and then cast W; 0 if W is not both transposed and cast.
    """

    features: int
    itemsize: int
    has_classes_first: bool = True
    weight_itemsize: int = 0
    staging_bytes: int = 0

    @classmethod
    def of_operands(cls, operands: LinearOperands) -> PairSizes:
        """Return the sizes of a pair of operands."""
        itemsize, cast_bytes = dtype_bytes(operands.dtype), operands.casts.weight
        return cls.of_weight(operands.num_features, itemsize, operands.has_classes_first, cast_bytes)

    @classmethod
    def of_weight(cls, features: int, itemsize: int, has_classes_first: bool, weight_itemsize: int) -> PairSizes:
        """Return the sizes of a pair, with the staging memory that its W needs.

        W needs none if the DMA transfer itself casts W.
        """
        staging = CastBytes(weight=weight_itemsize).backward_staging(has_classes_first) if has_classes_first else 0
        return cls(features, itemsize, has_classes_first, weight_itemsize, staging)

    @property
    def feature_tiles(self) -> int:
        """The number of tiles of 128 features."""
        return div_ceil(self.features, PARTITIONS)

    @property
    def loaded_itemsize(self) -> int:
        """The bytes of an element of W in HBM."""
        return self.weight_itemsize or self.itemsize

    @property
    def tile_bytes(self) -> int:
        """The bytes per partition of X^T for 128 positions, or of W^T for 128 classes."""
        return self.feature_tiles * PARTITIONS * self.itemsize


def weight_tiles() -> int:
    """Return the number of tiles of dW that are accumulated in PSUM at a time."""
    return limited_weight_tiles(_WEIGHT_TILES)


def _staged_instructions(tiles: int) -> int:
    return _INSTRUCTIONS_OF_STAGED * div_ceil(tiles * PARTITIONS, STAGED_ELEMENTS)


@dataclass(frozen=True)
class BackwardSizes:
    """The sizes and options of a launch from which its plan is computed.

    Attributes:
        num_positions, num_features, vocab_size: N, D and V.
        itemsize: the bytes of an element of X and W.
        has_classes_first: whether W is [V, D].
        needs: the SBUF and the instructions that the loss needs for its tiles of G.
        adds_to_weight: whether dW is added to a float32 sum in HBM, the caller's or one over parts of the positions.
        keeps_logits: whether the logits are loaded from HBM, so that neither X^T nor W^T is needed.
        program_share: the fraction of a program's allowed instructions that the backward may use.
        weight_itemsize: the bytes of an element of W in HBM if W is cast while it is loaded; else 0.
        staging_bytes: the bytes per partition to transpose and then cast W.
        further: further pairs of operands, with logits but without gradients (those of a teacher).
    """

    num_positions: int
    num_features: int
    vocab_size: int
    itemsize: int
    has_classes_first: bool = True
    needs: TileNeeds = NO_NEEDS
    adds_to_weight: bool = False
    keeps_logits: bool = False
    program_share: float = 1.0
    weight_itemsize: int = 0
    staging_bytes: int = 0
    further: tuple[PairSizes, ...] = ()

    @property
    def loaded_itemsize(self) -> int:
        """The bytes of an element of W in HBM, and of dW."""
        return self.weight_itemsize or self.itemsize

    def option_bytes(self, class_block: int, classes_of_tile: int) -> int:
        """Return the bytes per partition for the options of the loss (:meth:`TileNeeds.option_bytes`), for all
        positions.
        """
        return self.needs.option_bytes(self.num_positions, class_block, classes_of_tile)


@dataclass(frozen=True)
class BackwardBuffers:
    """The number of buffers of each kind; the defaults are the fewest possible.

    Attributes:
        tiles_of_piece: the number of tiles of 128 positions in a piece of X; dW is computed from one piece at a time.
        input_tiles: the number of buffers for tiles of X^T.
        pieces: the number of buffers for pieces of X.
        weight_stripes: the number of buffers for stripes of W.
        input_results, weight_results: the number of buffers for tiles of dX, and for groups of tiles of dW, on their
            way to HBM.
        weight_slices: the number of buffers for slices of W^T, if W^T streams; 0 if W^T of a block of classes stays in
            SBUF.
        streams_inputs: 1 if X^T streams together with W^T, with as many buffers for slices; else 0.
        shares_memory: 1 if tiles of X^T, for the logits, share the memory of X and W, for dW and dX; else 0.
        opened: the number of buffers in each ring of opened tiles; without effect if a loss opens no tiles ahead.
    """

    tiles_of_piece: int = 1
    input_tiles: int = 1
    pieces: int = 2
    weight_stripes: int = 1
    input_results: int = FEWEST_RESULTS
    weight_results: int = 1
    weight_slices: int = 0
    streams_inputs: int = 0
    shares_memory: int = 0
    opened: int = GRADIENT_SLOTS


@dataclass(frozen=True)
class BackwardGeometry:
    """The blocks and buffers of a backward launch, with the memory and the instructions that they take.

    Attributes:
        features: D.
        itemsize: the bytes of an element of X and W.
        position_block: the number of positions of a block of G.
        class_block: the largest number of classes of a block of G.
        classes_of_tile: the number of classes of a tile of logits.
        stripe: the number of features of a stripe.
        buffers: the numbers of buffers.
        adds_to_weight: see :class:`BackwardSizes`.
        weight_sums: the number of float32 buffers of the size of a group of tiles of dW: one if ``adds_to_weight``, and
            one if there are several blocks of positions, whose sums are added.
        result_itemsize: the bytes of an element of dW; 4 if ``adds_to_weight``.
        has_classes_first: whether W is [V, D].
        position_blocks: the number of blocks of positions of the launch.
        option_bytes: the bytes per partition for the options of the loss, with the fewest opened tiles.
        needs, keeps_logits, program_share, staging_bytes, further: see :class:`BackwardSizes`.
        available_bytes: the usable bytes of a partition.
    """

    features: int
    itemsize: int
    position_block: int
    class_block: int
    classes_of_tile: int
    stripe: int
    buffers: BackwardBuffers
    adds_to_weight: bool
    weight_sums: int
    result_itemsize: int
    has_classes_first: bool
    position_blocks: int
    option_bytes: int
    needs: TileNeeds
    keeps_logits: bool
    program_share: float
    staging_bytes: int
    available_bytes: int
    further: tuple[PairSizes, ...] = ()

    @property
    def feature_tiles(self) -> int:
        """The number of tiles of 128 features."""
        return div_ceil(self.features, PARTITIONS)

    @property
    def position_tiles(self) -> int:
        """The number of tiles of 128 positions in a block."""
        return div_ceil(self.position_block, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """The number of tiles of 128 classes in a block."""
        return div_ceil(self.class_block, PARTITIONS)

    @property
    def weight_group(self) -> tuple[int, int]:
        """The size of a group of tiles of dW that the banks of PSUM hold: the number of tiles of 128 rows, and the
        number of columns.
        """
        if self.has_classes_first:
            return min(weight_tiles(), self.class_tiles), self.stripe
        of_row = div_ceil(self.class_block, self.classes_of_tile)
        return min(weight_tiles() // of_row, div_ceil(self.stripe, PARTITIONS)), self.class_block

    @property
    def most_classes(self) -> int:
        """The largest number of classes of a block if W is [D, V]: the banks of PSUM must hold 128 rows of dW."""
        return weight_tiles() * CLASSES_OF_TILE

    def instructions(self, num_positions: int, classes: int) -> int:
        """Return an upper estimate of the instructions for a block of ``classes`` classes and all positions."""
        tiles, class_tiles = div_ceil(num_positions, PARTITIONS), div_ceil(classes, PARTITIONS)
        stripes = div_ceil(self.features, self.stripe)
        products = 0 if self.keeps_logits else self.feature_tiles + sum(pair.feature_tiles for pair in self.further)
        of_logits = div_ceil(classes, self.classes_of_tile) * (products + self.needs.instructions)
        of_stripe = 2 * class_tiles + _INSTRUCTIONS_OF_RESULT
        # A tile of dW leaves its bank once for a block of positions, and X is loaded in pieces.
        of_weight = self.position_blocks * stripes * (class_tiles + _INSTRUCTIONS_OF_RESULT) + class_tiles
        of_weight += stripes * div_ceil(tiles, self.buffers.tiles_of_piece)
        if self.staging_bytes > 0:
            # W^T once, or for each batch of tiles that it streams past; W for each block of positions.
            times = self.batches_of_tiles if self.streams_weight else 1
            times = times if self.has_classes_first else self.position_blocks
            of_weight += times * _staged_instructions(class_tiles * self.feature_tiles)
            of_weight += sum(_staged_instructions(class_tiles * pair.feature_tiles) for pair in self.further)
        return tiles * (of_logits + class_tiles + _INSTRUCTIONS_OF_RESULT + stripes * of_stripe) + of_weight

    def program_limit(self, num_positions: int) -> float:
        """Return the largest number of instructions of a program for ``num_positions`` positions.

        The limit doubles above :data:`POSITIONS_OF_PROGRAM` positions.
        """
        limit = PROGRAM_INSTRUCTIONS if num_positions <= POSITIONS_OF_PROGRAM else 2 * PROGRAM_INSTRUCTIONS
        return self.program_share * limited_instructions(limit)

    def blocks_of_program(self, num_positions: int) -> float:
        """Return how many blocks of ``class_block`` classes the limit of instructions allows, a fractional number."""
        return self.program_limit(num_positions) / self.instructions(num_positions, self.class_block)

    @property
    def has_room(self) -> bool:
        """Whether the limit of instructions allows as many copies of a block of classes as the program needs.

        The program needs two copies, or one if a device loop is the whole program.
        """
        room = self.blocks_of_program(self.position_blocks * self.position_block)
        return room >= COPIES_OF_PROGRAM or (self.position_blocks > 1 and 1.0 <= room < LEAST_ROOM)

    def shorter(self) -> Self:
        """Return the geometry whose blocks have one tile of classes less."""
        classes = (self.class_tiles - 1) * PARTITIONS
        return replace(
            self,
            class_block=classes,
            classes_of_tile=div_ceil(classes, div_ceil(classes, self.classes_of_tile)),
        )

    @property
    def pieces_size(self) -> int:
        """The elements per partition of all buffers for pieces of X."""
        return self.buffers.pieces * self.buffers.tiles_of_piece * self.stripe

    @property
    def stripes_size(self) -> int:
        """The elements per partition of all buffers for stripes of W."""
        return self.buffers.weight_stripes * self.class_tiles * self.stripe

    @property
    def input_bytes(self) -> int:
        """The bytes per partition of one tile of X^T, summed over the pairs of operands."""
        own = self.feature_tiles * PARTITIONS * self.itemsize
        return own + sum(pair.tile_bytes for pair in self.further)

    @property
    def half_size(self) -> int:
        """The elements per partition of one half of the memory that X^T, X and W share.

        A half holds one tile of X^T, or all pieces of X, or all stripes of W.
        """
        return max(div_ceil(self.input_bytes, self.itemsize), self.pieces_size, self.stripes_size)

    @property
    def keeps_inputs(self) -> bool:
        """Whether X^T of all positions stays in SBUF.

        This requires one block of positions, logits that are computed, and separate buffers for all tiles of X^T.
        """
        keeps = self.position_blocks == 1 and not self.keeps_logits and not self.buffers.shares_memory
        return keeps and self.buffers.input_tiles >= self.position_tiles

    @property
    def streams_weight(self) -> bool:
        """Whether W^T streams for the logits."""
        return self.buffers.weight_slices > 0

    @property
    def streams_inputs(self) -> bool:
        """Whether X^T streams together with W^T."""
        return self.buffers.streams_inputs > 0

    @property
    def batches_of_tiles(self) -> int:
        """The number of batches into which the tiles of positions of a block are split if W^T streams.

        The tiles of logits of a batch are accumulated at the same time, one in each bank of PSUM.
        """
        return div_ceil(self.position_tiles, STREAMED_LOGIT_BANKS if self.streams_inputs else LOGIT_BANKS)

    @property
    def tiles_of_batch(self) -> int:
        """The number of tiles of positions of a batch; the batches of a block are as equal as possible."""
        return div_ceil(self.position_tiles, self.batches_of_tiles)

    @property
    def weight_bytes(self) -> int:
        """The bytes per partition of the buffers of W^T, and of X^T if both stream."""
        if self.streams_weight:
            features = min(TILES_OF_SLICE, self.feature_tiles)
            columns = self.classes_of_tile + (self.tiles_of_batch * PARTITIONS if self.streams_inputs else 0)
            return self.buffers.weight_slices * features * columns * self.itemsize
        return 0 if self.keeps_logits else self.class_tiles * self.input_bytes

    @property
    def pieces_of_stripe(self) -> int:
        """The number of pieces of X in one stripe of features and one block of positions."""
        return div_ceil(self.position_tiles, self.buffers.tiles_of_piece)

    @property
    def keeps_pieces(self) -> bool:
        """Whether all pieces of X stay in SBUF: one block of positions, and a separate buffer for each piece."""
        pieces = self.pieces_of_stripe * div_ceil(self.features, self.stripe)
        return self.position_blocks == 1 and not self.buffers.shares_memory and self.buffers.pieces >= pieces

    @property
    def sbuf_bytes(self) -> int:
        """The bytes per partition of SBUF that the backward takes."""
        buffers = self.buffers
        streams = (self.pieces_size + self.stripes_size) * self.itemsize
        if self.keeps_logits:
            streams += buffers.input_tiles * self.class_tiles * PARTITIONS * FLOAT32_BYTES
        elif buffers.shares_memory:
            streams = SLOTS_OF_MEMORY * self.half_size * self.itemsize
        else:
            streams += buffers.input_tiles * self.input_bytes
        rings = (
            streams,
            self.weight_bytes,
            buffers.input_results * self.stripe * FLOAT32_BYTES,
            buffers.weight_results * prod(self.weight_group) * self.result_itemsize,
            self.weight_sums * prod(self.weight_group) * FLOAT32_BYTES,
            2 * self.position_tiles * self.class_tiles * PARTITIONS * self.itemsize,
            self.needs.block_bytes(self.position_tiles, self.class_block, self.classes_of_tile, buffers.opened),
        )
        return sum(rings) + self.option_bytes + self.staging_bytes + _SMALL_BYTES

    @property
    def fits(self) -> bool:
        """Whether the buffers fit SBUF, and the banks of PSUM hold 128 rows of dW."""
        return self.sbuf_bytes <= self.available_bytes and self.weight_group[0] > 0
