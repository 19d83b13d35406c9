"""How the backward is cut up, and what of it stands in SBUF: arithmetic, before anything is traced.

A block of the gradient, so many positions and so many classes, stands in SBUF twice, as it is and transposed. The
larger it is, the less crosses HBM: X and dX for every block of classes, W and dW for every block of positions. What it
leaves goes to the operands that stream by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from nkilib.core.plan_limits import (
    limited_instructions,
    limited_piece_tiles,
    limited_resident_features,
    limited_weight_tiles,
    usable_sbuf_bytes,
)
from nkilib.core.rows.sizes import FLOAT32_BYTES, PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.operand_pair import PairSizes
from nkilib.experimental.loss.linear.backward.tile_needs import NO_NEEDS, TURNS, TileNeeds
from nkilib.experimental.loss.linear.shared.logits import CLASSES_OF_TILE
from nkilib.experimental.loss.linear.shared.sizes import STAGED_ELEMENTS

# Tiles of dW whose sums grow at a time: there are banks for so many.
_WEIGHT_TILES = 6
# Tiles of X^T beside each other: one is read while the next one is loaded.
_TURNS_OF_MEMORY = 2
# Tiles of positions that are loaded at a time.
_TILES_OF_PIECE = 4
_FEWEST_RESULTS = 2
# Tiles of X^T that run ahead where there is room: those of few features are done with before the next one is there.
_INPUT_TILES_MOST = 4
# Where W^T streams by: tiles of features of a slice, and how many slices there are beside each other.
TILES_OF_SLICE, _FEWEST_SLICES, _SLICES_MOST = 4, 4, 8
# Where X^T streams too. Slices of both move 1 / classes of a tile + 1 / positions of a batch bytes for a column of
# Tensor, in units in which at 1 / 240 the DMA engines take as long as Tensor.
_SLICES_OF_BOTH_MOST, _STREAMED_SIZE = 6, 240.0
# Of more features a program has no room for blocks of classes that are long enough.
_FEATURES_OF_BOTH_MOST = 8192
# Widths of a tile of logits to try where W^T streams, the widest first. [D, V] takes the widest alone: there tiles of
# dW are as wide as those of logits.
_STREAMED_CLASSES = (CLASSES_OF_TILE, 384, 256)
# Where W^T streams, every batch of tiles of positions reads it again. Two batches are modelled to take 0.79 to 1.03 of
# the time of a W^T that stays; more were not modelled.
_BATCHES_MOST = 2
# W^T streams if there are more features than that, in 16 bits: W^T of a block of classes leaves room for little else.
# Tensor takes four times as long for float32, where transfers do not matter.
_FEATURES_OF_RESIDENT_WEIGHT = 6144
# Banks of PSUM for tiles of logits; where X^T and W^T stream, every further tile of a batch spares loads of W^T.
LOGIT_BANKS, STREAMED_LOGIT_BANKS = 5, 7
# Opened tiles beside each other, at most, where there is room: Scalar loads a table of functions to open tiles and one
# to make them for all but one of them. Of more than there are banks it would wait for the products: two operand pairs
# have no more than the fewest.
_OPENED_MOST = LOGIT_BANKS + 1
# Steps of :meth:`BackwardPlan._grown` that give buffers to what is not kept.
_STEPS_OF_STREAMS = 9
# What a program may have, for so many positions; twice that for more.
PROGRAM_INSTRUCTIONS, POSITIONS_OF_PROGRAM = 29000, 4096
# Copies of a block in a program with a loop: of the loop, and behind it. With several blocks of positions it takes room
# for fewer to have the loop alone: a copy of 128 classes takes nearly half of one of 768.
COPIES_OF_PROGRAM, LEAST_ROOM = 2, 1.75
# Beside the products: of a tile of dX or of a transpose.
_INSTRUCTIONS_OF_RESULT = 3
# Of a staged tile of W: a transfer and a cast.
_INSTRUCTIONS_OF_STAGED = 2
# Of a tile of logits that no product has to fit a bank of PSUM for.
_CLASSES_OF_KEPT_TILE = 1024
# What else is small, with room for alignment.
_SMALL_BYTES = 3072
# Features of a stripe for [D, V], so many that sums of dW for 768 classes fit the banks of PSUM.
_STRIPE_OF_FEATURES = 384


def weight_tiles() -> int:
    """Tiles of dW whose sums grow at a time."""
    return limited_weight_tiles(_WEIGHT_TILES)


def _tiles_of_piece() -> int:
    return limited_piece_tiles(_TILES_OF_PIECE)


def _more_slices() -> list[dict[str, int]]:
    return [{"weight_slices": slices} for slices in range(_FEWEST_SLICES + 1, _SLICES_OF_BOTH_MOST + 1)]


def _staged_instructions(tiles: int) -> int:
    """For so many tiles of W^T, or of W."""
    return _INSTRUCTIONS_OF_STAGED * div_ceil(tiles * PARTITIONS, STAGED_ELEMENTS)


@dataclass(frozen=True)
class BackwardSizes:
    """What the plan of a launch depends on.

    Attributes:
        num_positions, num_features, vocab_size: N, D and V.
        itemsize: bytes of an element of X and W.
        has_classes_first: W is [V, D].
        needs: what the tiles of the gradient take.
        adds_to_weight: dW is added to a float32 sum.
        keeps_logits: they come from HBM, and neither X^T nor W^T is needed.
        program_share: of the instructions that a program may have, for the backward.
        weight_itemsize: bytes of an element of W in HBM where it is cast on its way; else 0.
        staging_bytes: of a partition, for weights that are transposed and then cast.
        further: operand pairs that there are logits of too, but no gradients.
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
        """Bytes of an element of W in HBM, and of dW."""
        return self.weight_itemsize or self.itemsize

    def option_bytes(self, class_block: int, classes_of_tile: int) -> int:
        """Columns of positions, rows of classes, and what tiles of logits and of their gradient need."""
        return self.needs.option_bytes(self.num_positions, class_block, classes_of_tile)


@dataclass(frozen=True)
class BackwardBuffers:
    """How many there are of what; the fewest by default.

    Attributes:
        tiles_of_piece: tiles of 128 positions of X that are loaded at a time for dW.
        input_tiles: tiles of X^T.
        pieces: of X.
        weight_stripes: of W.
        input_results, weight_results: tiles of dX, and groups of tiles of dW, on their way to HBM.
        weight_slices: of W^T, which streams by X^T of all positions; 0: W^T of a block of classes stays for its logits.
        streams_inputs: X^T streams beside W^T, in as many slices; else X^T of all positions stays.
        takes_turns: tiles of X^T, for the logits, take the memory of what dX and dW need of X and W.
        opened: tiles of each kind that an opened tile keeps, which are no buffers where none are opened ahead.
    """

    tiles_of_piece: int = 1
    input_tiles: int = 1
    pieces: int = 2
    weight_stripes: int = 1
    input_results: int = _FEWEST_RESULTS
    weight_results: int = 1
    weight_slices: int = 0
    streams_inputs: int = 0
    takes_turns: int = 0
    opened: int = TURNS


@dataclass(frozen=True)
class BackwardPlan:
    """Sizes of a launch of the backward.

    Attributes:
        features: D.
        itemsize: bytes of an element of X and W.
        position_block: positions of a block of the gradient.
        class_block: classes of it, at most.
        classes_of_tile: of a tile of logits.
        stripe: features that are worked on at a time in dX and dW.
        buffers: of what streams.
        adds_to_weight: as in :class:`BackwardSizes`.
        weight_sums: buffers for float32 groups that dW is added to; 0 where it is not.
        result_itemsize: bytes of an element of dW, which is float32 where it is a sum.
        has_classes_first: W is [V, D].
        position_blocks: of the launch.
        option_bytes: that the options of the loss take of a partition, with the fewest opened tiles.
        needs, keeps_logits, program_share, staging_bytes, further: as in :class:`BackwardSizes`.
        available_bytes: of a partition.
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
        """Tiles of 128 features."""
        return div_ceil(self.features, PARTITIONS)

    @property
    def position_tiles(self) -> int:
        """Tiles of 128 positions of a block."""
        return div_ceil(self.position_block, PARTITIONS)

    @property
    def class_tiles(self) -> int:
        """Tiles of 128 classes of a block."""
        return div_ceil(self.class_block, PARTITIONS)

    @property
    def weight_group(self) -> tuple[int, int]:
        """Tiles of 128 rows and columns of a group of tiles of dW, for which there are banks of PSUM."""
        if self.has_classes_first:
            return min(weight_tiles(), self.class_tiles), self.stripe
        of_row = div_ceil(self.class_block, self.classes_of_tile)
        return min(weight_tiles() // of_row, div_ceil(self.stripe, PARTITIONS)), self.class_block

    @property
    def most_classes(self) -> int:
        """The most classes of a block in [D, V]: the banks of PSUM must hold a row of its tiles of dW."""
        return weight_tiles() * CLASSES_OF_TILE

    def instructions(self, num_positions: int, classes: int) -> int:
        """About how many instructions a block of so many classes is, for all positions; rather too many."""
        tiles, class_tiles = div_ceil(num_positions, PARTITIONS), div_ceil(classes, PARTITIONS)
        stripes = div_ceil(self.features, self.stripe)
        products = 0 if self.keeps_logits else self.feature_tiles + sum(pair.feature_tiles for pair in self.further)
        of_logits = div_ceil(classes, self.classes_of_tile) * (products + self.needs.instructions)
        of_stripe = 2 * class_tiles + _INSTRUCTIONS_OF_RESULT
        # A tile of dW leaves its bank once for a block of positions, and X is loaded in pieces.
        of_weight = self.position_blocks * stripes * (class_tiles + _INSTRUCTIONS_OF_RESULT) + class_tiles
        of_weight += stripes * div_ceil(tiles, self.buffers.tiles_of_piece)
        if self.staging_bytes > 0:
            # W^T once, or for each batch of tiles that it streams by; W for each block of positions.
            times = self.batches_of_tiles if self.streams_weight else 1
            times = times if self.has_classes_first else self.position_blocks
            of_weight += times * _staged_instructions(class_tiles * self.feature_tiles)
            of_weight += sum(_staged_instructions(class_tiles * pair.feature_tiles) for pair in self.further)
        return tiles * (of_logits + class_tiles + _INSTRUCTIONS_OF_RESULT + stripes * of_stripe) + of_weight

    def program_limit(self, num_positions: int) -> float:
        """How many instructions the program may have for the backward."""
        limit = PROGRAM_INSTRUCTIONS if num_positions <= POSITIONS_OF_PROGRAM else 2 * PROGRAM_INSTRUCTIONS
        return self.program_share * limited_instructions(limit)

    def blocks_of_program(self, num_positions: int) -> float:
        """How many of the largest blocks the program may have."""
        return self.program_limit(num_positions) / self.instructions(num_positions, self.class_block)

    @property
    def has_room(self) -> bool:
        """Whether the program has room for the blocks that it needs: two copies, or one as a loop alone."""
        room = self.blocks_of_program(self.position_blocks * self.position_block)
        return room >= COPIES_OF_PROGRAM or (self.position_blocks > 1 and 1.0 <= room < LEAST_ROOM)

    def shorter(self) -> BackwardPlan:
        """With blocks of one tile of classes less."""
        classes = (self.class_tiles - 1) * PARTITIONS
        return replace(
            self,
            class_block=classes,
            classes_of_tile=div_ceil(classes, div_ceil(classes, self.classes_of_tile)),
        )

    @property
    def pieces_size(self) -> int:
        """Elements of a partition that the pieces of X take."""
        return self.buffers.pieces * self.buffers.tiles_of_piece * self.stripe

    @property
    def stripes_size(self) -> int:
        """Elements of a partition that the stripes of W take."""
        return self.buffers.weight_stripes * self.class_tiles * self.stripe

    @property
    def input_bytes(self) -> int:
        """What a tile of X^T takes of a partition, of all operand pairs."""
        own = self.feature_tiles * PARTITIONS * self.itemsize
        return own + sum(pair.tile_bytes for pair in self.further)

    @property
    def half_size(self) -> int:
        """Elements of a half of the memory in which X^T, X and W take turns: for a tile of X^T, X alone or W alone."""
        return max(div_ceil(self.input_bytes, self.itemsize), self.pieces_size, self.stripes_size)

    @property
    def keeps_inputs(self) -> bool:
        """There are buffers for all of X^T."""
        keeps = self.position_blocks == 1 and not self.keeps_logits and not self.buffers.takes_turns
        return keeps and self.buffers.input_tiles >= self.position_tiles

    @property
    def streams_weight(self) -> bool:
        """W^T streams by X^T, which stays or streams too."""
        return self.buffers.weight_slices > 0

    @property
    def streams_inputs(self) -> bool:
        """X^T streams beside W^T."""
        return self.buffers.streams_inputs > 0

    @property
    def batches_of_tiles(self) -> int:
        """Batches of tiles of positions whose logits grow at a time, where W^T streams by: one tile a bank of PSUM."""
        return div_ceil(self.position_tiles, STREAMED_LOGIT_BANKS if self.streams_inputs else LOGIT_BANKS)

    @property
    def tiles_of_batch(self) -> int:
        """Tiles of positions of a batch, as equal as can be."""
        return div_ceil(self.position_tiles, self.batches_of_tiles)

    @property
    def weight_bytes(self) -> int:
        """What W^T takes of a partition, and X^T where it streams beside it."""
        if self.streams_weight:
            features = min(TILES_OF_SLICE, self.feature_tiles)
            columns = self.classes_of_tile + (self.tiles_of_batch * PARTITIONS if self.streams_inputs else 0)
            return self.buffers.weight_slices * features * columns * self.itemsize
        return 0 if self.keeps_logits else self.class_tiles * self.input_bytes

    @property
    def pieces_of_stripe(self) -> int:
        """Of X."""
        return div_ceil(self.position_tiles, self.buffers.tiles_of_piece)

    @property
    def keeps_pieces(self) -> bool:
        """There are buffers for all of X."""
        pieces = self.pieces_of_stripe * div_ceil(self.features, self.stripe)
        return self.position_blocks == 1 and not self.buffers.takes_turns and self.buffers.pieces >= pieces

    @property
    def sbuf_bytes(self) -> int:
        """What it takes of a partition."""
        buffers = self.buffers
        streams = (self.pieces_size + self.stripes_size) * self.itemsize
        if self.keeps_logits:
            streams += buffers.input_tiles * self.class_tiles * PARTITIONS * FLOAT32_BYTES
        elif buffers.takes_turns:
            streams = _TURNS_OF_MEMORY * self.half_size * self.itemsize
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
        """Whether a partition of SBUF holds it, and there are banks for a row of tiles of dW."""
        return self.sbuf_bytes <= self.available_bytes and self.weight_group[0] > 0

    @classmethod
    def of(
        cls, sizes: BackwardSizes, position_block: int, class_block: int, available_bytes: int | None = None
    ) -> BackwardPlan:
        """For blocks of at most so many positions and classes, with as many buffers as there is room for and use of.

        ``fits`` says whether even the fewest are too many. There are ``available_bytes`` of a partition; None: as many
        as the target has.
        """
        position_block = min(position_block, div_ceil(sizes.num_positions, PARTITIONS) * PARTITIONS)
        class_block = min(class_block, div_ceil(sizes.vocab_size, PARTITIONS) * PARTITIONS)
        position_blocks = div_ceil(sizes.num_positions, position_block)
        most = _CLASSES_OF_KEPT_TILE if sizes.keeps_logits and sizes.has_classes_first else CLASSES_OF_TILE
        classes_of_tile = div_ceil(class_block, div_ceil(class_block, most))
        least = cls(
            sizes.num_features,
            sizes.itemsize,
            position_block,
            class_block,
            classes_of_tile,
            stripe=min(sizes.num_features, CLASSES_OF_TILE if sizes.has_classes_first else _STRIPE_OF_FEATURES),
            buffers=BackwardBuffers(),
            adds_to_weight=sizes.adds_to_weight,
            weight_sums=sizes.adds_to_weight + (position_blocks > 1),
            result_itemsize=FLOAT32_BYTES if sizes.adds_to_weight else sizes.loaded_itemsize,
            has_classes_first=sizes.has_classes_first,
            position_blocks=position_blocks,
            option_bytes=sizes.option_bytes(class_block, classes_of_tile),
            needs=sizes.needs,
            keeps_logits=sizes.keeps_logits,
            program_share=sizes.program_share,
            staging_bytes=sizes.staging_bytes,
            available_bytes=usable_sbuf_bytes() if available_bytes is None else available_bytes,
            further=sizes.further,
        )
        return least._grown()

    def _grown(self) -> BackwardPlan:
        """With more buffers, those first that matter most."""
        tiles = self.position_tiles
        stripes = div_ceil(self.features, self.stripe)
        steps: list[dict[str, int]] = [
            {"input_tiles": min(_TURNS_OF_MEMORY, tiles)},
            {"weight_stripes": 2},
            {"pieces": 3},
            {"tiles_of_piece": min(2, tiles)},
            {"input_results": 4},
            {"tiles_of_piece": min(_tiles_of_piece(), tiles)},
            {"input_results": 6},
            {"weight_results": 2},
            {"input_results": 8},
            {"input_tiles": min(_INPUT_TILES_MOST, tiles)},
        ]
        if self.position_blocks == 1:
            pieces = div_ceil(tiles, _tiles_of_piece())
            steps.append({"pieces": pieces * stripes, "tiles_of_piece": min(tiles, _tiles_of_piece())})
            if not self.keeps_logits:
                steps.append({"input_tiles": tiles})
        streaming = self._streaming(steps) or self._streaming_both(steps)
        if streaming is not None:
            return streaming
        if self.needs.opened > 0 and not self.further:
            steps += [{"opened": opened} for opened in range(TURNS + 1, _OPENED_MOST + 1)]
        found = self._with(steps)
        if found.is_ample or self.keeps_logits:
            return found
        in_turns = {"takes_turns": 1, "input_tiles": min(_TURNS_OF_MEMORY, tiles)}
        alternative = replace(self, buffers=replace(self.buffers, **in_turns))._with(steps[1:_STEPS_OF_STREAMS])
        return alternative if alternative.is_ample or not found.fits else found

    def _streaming(self, steps: list[dict[str, int]]) -> BackwardPlan | None:
        """With W^T that streams by X^T; None where that does not fit or is of no use.

        Tiles of logits are as wide as there is room for slices of W^T beside what else streams.
        """
        is_of_use = (
            self.features > limited_resident_features(_FEATURES_OF_RESIDENT_WEIGHT)
            and self.itemsize < FLOAT32_BYTES
            and self.batches_of_tiles <= _BATCHES_MOST
        )
        if self.keeps_logits or not is_of_use or self.position_blocks > 1 or self.further:
            return None
        for most in _STREAMED_CLASSES if self.has_classes_first else _STREAMED_CLASSES[:1]:
            plan = self._streaming_tiles([step for step in steps if "input_tiles" not in step], most)
            buffers = plan.buffers
            is_enough = buffers.weight_stripes > 1 and buffers.input_results > _FEWEST_RESULTS
            if plan.fits and is_enough and buffers.tiles_of_piece >= min(2, self.position_tiles):
                return plan
        return None

    def _streaming_tiles(self, steps: list[dict[str, int]], most: int) -> BackwardPlan:
        """The plan with W^T that streams and tiles of logits of at most ``most`` classes, whether it fits or not."""
        least = replace(
            self,
            classes_of_tile=div_ceil(self.class_block, div_ceil(self.class_block, most)),
            buffers=replace(self.buffers, weight_slices=_FEWEST_SLICES, input_tiles=self.position_tiles),
        )
        return least._with([*steps, {"weight_slices": _SLICES_MOST}])

    def _streaming_both(self, steps: list[dict[str, int]]) -> BackwardPlan | None:
        """With X^T and W^T that stream in the first half of a round; None where that does not fit or is of no use.

        W^T that stays is loaded in the second half, where dX, dW, X and W keep the DMA engines busy already, and leaves
        room for shorter blocks only. Slices of [D, V] would be short rows, those of another type take twice the bytes,
        and under a cap tiles of logits are opened in groups, before they leave their banks.
        """
        is_plain = self.has_classes_first and self.staging_bytes == 0 and not self.further
        is_plain = is_plain and self.needs.opened == 0 and self.needs.place_bytes == 0
        resident = limited_resident_features(_FEATURES_OF_RESIDENT_WEIGHT)
        is_deep = resident < self.features <= _FEATURES_OF_BOTH_MOST and self.itemsize < FLOAT32_BYTES
        is_long = self.position_blocks > 1 or self.batches_of_tiles > _BATCHES_MOST
        if self.keeps_logits or not is_plain or not is_deep or not is_long:
            return None
        streams = {"weight_slices": _FEWEST_SLICES, "streams_inputs": 1, "input_tiles": 0}
        least = replace(self, buffers=replace(self.buffers, **streams))
        plan = least._with([step for step in steps if "input_tiles" not in step] + _more_slices())
        is_quick = 1.0 / plan.classes_of_tile + 1.0 / (plan.tiles_of_batch * PARTITIONS) <= 1.0 / _STREAMED_SIZE
        return plan if is_quick and plan.has_room and plan._has_ample_streams else None

    @property
    def is_ample(self) -> bool:
        """It fits, and what streams has room to run ahead."""
        return self._has_ample_streams and self.buffers.input_tiles >= min(_TURNS_OF_MEMORY, self.position_tiles)

    @property
    def _has_ample_streams(self) -> bool:
        """Likewise, but for X^T."""
        buffers, tiles = self.buffers, self.position_tiles
        return (
            self.fits
            and buffers.weight_stripes > 1
            and buffers.input_results > _FEWEST_RESULTS
            and buffers.tiles_of_piece >= min(_tiles_of_piece(), tiles)
        )

    def _with(self, steps: list[dict[str, int]]) -> BackwardPlan:
        """With those of the steps that fit."""
        found = self
        for step in steps:
            larger = replace(found, buffers=replace(found.buffers, **step))
            if larger.fits:
                found = larger
        return found
