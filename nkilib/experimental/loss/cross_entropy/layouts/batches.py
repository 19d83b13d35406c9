# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The layouts with more or less than one position per partition, for launches of few positions or of few classes.

- *Split*: a position lies on F partitions, so that few positions keep all partitions busy. Each partition has W =
  floor(V / F) of the V classes; the last one also has the remaining V - F * W.
- *Packed*: a partition has several positions, consecutive in HBM, so that transfers are long and one instruction
  processes the positions of a partition together.

A core takes consecutive positions. :func:`forward_batches` and :func:`backward_batches` divide them into batches and
pieces (:mod:`nkilib.core.rows.row_plan`; a piece is what is loaded at a time), and :class:`LoadedPieces` loads these. A
launch gets the requested layout if its options allow it (:func:`_carries`) and the tiles fit; otherwise each partition
holds one position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nkilib.core.hardware import FLOAT32_BYTES, div_ceil
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.core.rows.row_plan import RowBatch, RowPiece, RowPlan, batches_of_core
from nkilib.core.rows.sbuf import Ring, dtype_bytes, ring_of
from nkilib.core.rows.statistics import STATISTICS_COLUMNS
from nkilib.experimental.loss.cross_entropy.launch import Launch, Options, PositionUpstream, Upstream
from nkilib.nki import nl

# Pieces that have buffers: one is loaded, the others are loaded, computed on or stored meanwhile.
BUFFERS = 4
# Tiles of exponentials, and of other terms of a gradient.
TERMS = 4
# Tiles of the larger elements of pairs, and of capped logits, of the forward.
HALVES, SCORES = 2, 3
# The pieces of a position's part, and the least and the most columns of a piece, unless there are many.
_PIECES, _PIECE_MIN, _PIECE_MAX = 4, 512, 1600
# The most pieces of that size, the columns of longer ones, and the most of all.
_MANY_PIECES, _LONG_PIECE, _PIECES_MAX = 32, 4096, STATISTICS_COLUMNS
# The most columns of a piece whose logits are capped.
_CAPPED_PIECE = 3200
# The most classes of packed positions, and the elements of a piece of them, if it has more than one.
_PACKED_MAX, _PACKED_PIECE = 4096, 2048
# Small tiles: statistics, targets and results of the positions of a partition, some forty numbers of each.
_SMALL_BYTES, _BYTES_OF_POSITION = 8192, 160


def _carries(launch: Launch, options: Options) -> bool:
    """Return whether the options allow a split or packed layout.

    Class probabilities, class weights in sums over all classes, argmax, log_sum_squares and mean_logit require one
    position per partition. A cap allows a split layout only: capped logits would gain nothing by being packed.
    """
    wanted = options.wanted
    if options.has_probabilities or options.needs_class_weights:
        return False
    if wanted.argmax or wanted.log_sum_squares or wanted.mean_logit:
        return False
    return options.softcap is None or launch.layout.partitions_per_position > 1


def _plan(launch: Launch, scratch_bytes: int, is_capped: bool) -> RowPlan | None:
    """Return the plan of the requested split or packed layout; None if the launch requests neither, or the tiles do not
    fit.

    Args:
        launch: the launch.
        scratch_bytes: the bytes per partition of scratch tiles, for each column of a piece of one position.
        is_capped: whether the logits have a cap, for which Scalar loads two activation tables for each piece.
    """
    parts, most = launch.layout
    size, of_element = launch.vocab_size, BUFFERS * dtype_bytes(launch.dtype)
    if parts > 1 and size >= parts and launch.num_positions * size <= INDEX_LIMIT:
        width = size // parts
        columns = size - (parts - 1) * width
        most_columns, fewest = min(max(_PIECE_MAX, div_ceil(columns, _MANY_PIECES)), _LONG_PIECE), _PIECES
        if is_capped:
            most_columns, fewest = _CAPPED_PIECE, 1
        pieces = max(div_ceil(columns, most_columns), min(fewest, columns // _PIECE_MIN), 1)
        if pieces > _PIECES_MAX:
            return None
        plan = RowPlan(size, parts, width, div_ceil(columns, pieces), 1, 1, BUFFERS)
        needed = plan.piece_size * (of_element + scratch_bytes)
    elif most > 1 and size <= _PACKED_MAX:
        rows = max(1, _PACKED_PIECE // size)
        plan = RowPlan(size, 1, size, rows * size, rows, most, BUFFERS)
        needed = size * (rows * of_element + scratch_bytes) + most * _BYTES_OF_POSITION
    else:
        return None
    return plan if needed + _SMALL_BYTES <= usable_sbuf_bytes() else None


def _batches(launch: Launch, plan: RowPlan | None) -> list[RowBatch] | None:
    if plan is None:
        return None
    return batches_of_core(plan, 1, launch.num_positions, nl.num_programs(), nl.program_id(), least_batches=1)


def forward_batches(launch: Launch, options: Options) -> list[RowBatch] | None:
    """Return the batches of this core if the forward has the requested layout; None for one position per partition."""
    if not _carries(launch, options):
        return None
    # Numbers of which only the sums are used; the larger elements of pairs; class weights.
    scratch_bytes = 2 * 2 + HALVES * dtype_bytes(launch.dtype) // 2
    if launch.class_weight_hbm is not None:
        scratch_bytes += FLOAT32_BYTES
    if options.wanted.entropy:  # exponentials, and another buffer
        scratch_bytes += TERMS * FLOAT32_BYTES + dtype_bytes(launch.dtype)
    if options.softcap is not None:
        scratch_bytes += SCORES * FLOAT32_BYTES
    return _batches(launch, _plan(launch, scratch_bytes, options.softcap is not None))


def backward_terms(upstream: Upstream) -> int:
    """Return the number of tiles that each of the backward's ring buffers has: for exponentials, targets and slopes."""
    is_long = isinstance(upstream, PositionUpstream) and upstream.grad_entropy_hbm is None
    return TERMS if is_long else TERMS - 1


def backward_batches(launch: Launch, options: Options, upstream: Upstream) -> list[RowBatch] | None:
    """Return the batches of this core if the backward has the requested layout; None for one position per partition."""
    if not _carries(launch, options):
        return None
    # Exponentials in float32 and targets in float16; the columns in float16; class weights.
    scratch_bytes = backward_terms(upstream) * (FLOAT32_BYTES + 2) + 2
    if launch.class_weight_hbm is not None:
        scratch_bytes += FLOAT32_BYTES
    if isinstance(upstream, PositionUpstream):  # another buffer
        scratch_bytes += dtype_bytes(launch.dtype)
        if upstream.grad_entropy_hbm is not None:
            scratch_bytes += backward_terms(upstream) * FLOAT32_BYTES
    if options.softcap is not None:
        scratch_bytes += backward_terms(upstream) * FLOAT32_BYTES
    return _batches(launch, _plan(launch, scratch_bytes, options.softcap is not None))


@dataclass
class LoadedPieces:
    """The pieces of all batches of a core, each loaded into a free tile some pieces ahead of its turn.

    Attributes:
        launch: the launch.
        batches: the batches of the core.
        visits: the batches and their pieces in the order of processing.
        buffers: the tiles for the pieces.
        first: the number of pieces that are loaded before the first one is processed.
    """

    launch: Launch
    batches: list[RowBatch]
    visits: list[tuple[RowBatch, RowPiece]]
    buffers: Ring
    first: int
    _loaded_sbuf: list[nl.NkiTensor] = field(default_factory=list, init=False)

    @classmethod
    def make(cls, launch: Launch, batches: list[RowBatch], buffers: int, first: int) -> LoadedPieces:
        """Allocate ``buffers`` tiles, or fewer if there are fewer pieces."""
        visits = [(batch, piece) for batch in batches for piece in batch.pieces]
        tiles = ring_of(min(buffers, len(visits)), max(piece.size for _, piece in visits), launch.dtype)
        return cls(launch, batches, visits, Ring(tiles), first)

    @property
    def columns(self) -> int:
        """The largest number of columns of a piece."""
        return max(piece.columns for _, piece in self.visits)

    def of_batch(self, number: int) -> Iterator[tuple[RowPiece, nl.NkiTensor]]:
        """Yield the pieces of a batch with their tiles, and load later ones; call with 0, 1, 2, ..."""
        first = sum(len(batch.pieces) for batch in self.batches[:number])
        for place, piece in enumerate(self.batches[number].pieces):
            visit = first + place
            ahead = self.first if visit == 0 else visit + BUFFERS - 1
            for batch, later in self.visits[len(self._loaded_sbuf) : ahead]:
                tile_sbuf = batch.piece_of(self.buffers.next_tile(), later)
                batch.load(self.launch.logits_hbm, later, tile_sbuf, float("-inf"))
                self._loaded_sbuf.append(tile_sbuf)
            yield piece, self._loaded_sbuf[visit]
