"""What streams by a block of the gradient in the second half of a round: X in pieces, and groups of tiles of dW."""

from __future__ import annotations

from dataclasses import dataclass, field

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward_parts import BackwardParts
from nkilib.experimental.loss.linear.backward_round import Round, Unit
from nkilib.experimental.loss.linear.backward_streams import BackwardStreams
from nkilib.experimental.loss.linear.blocks import Span
from nkilib.experimental.loss.linear.pair_buffers import WeightPart
from nkilib.experimental.loss.linear.weight_gradient import WeightGroup
from nkilib.nki import nl


@dataclass
class StreamLoads:
    """Pieces of X, some of which are loaded ahead, and W^T of the next block.

    Attributes:
        streams: the buffers.
        positions: of the round.
        pieces: that are still to be loaded: stripe, and tiles of positions.
        parts: of W^T, likewise.
        parts_of_unit: how many are loaded at a time.
        loaded: pieces that are there, in their order.
        piece_sbuf: the one in use.
    """

    streams: BackwardStreams
    positions: Span
    pieces: list[tuple[Span, range]]
    parts: list[WeightPart]
    parts_of_unit: int
    loaded: list[nl.NkiTensor] = field(default_factory=list)
    piece_sbuf: nl.NkiTensor | None = None

    @classmethod
    def begun(cls, streams: BackwardStreams, round_: Round, stripes: list[Span], units: list[Unit]) -> StreamLoads:
        """Those of a round, with all buffers of X but one asked for."""
        pieces = [(stripe, unit.piece) for stripe in stripes for unit in units if unit.loads]
        parts = streams.weight_parts(round_.next_classes, 0)
        # The last stripe loads none, so that all are there when it ends.
        steps = max(1, (len(stripes) - 1) * len(units))
        found = cls(streams, round_.positions, pieces, parts, div_ceil(len(parts), steps))
        while found.pieces and len(found.loaded) < streams.plan.buffers.pieces - 1:
            found._load_piece()
        return found

    def load(self, unit: Unit) -> None:
        """What is asked for in a unit."""
        if self.pieces and unit.loads:
            self._load_piece()
        for _ in range(min(self.parts_of_unit, len(self.parts))):
            self.streams.load_weight(self.parts.pop(0))

    def piece_of(self, unit: Unit) -> nl.NkiTensor | None:
        """The piece of X of a unit."""
        if unit.loads:
            self.piece_sbuf = self.loaded.pop(0)
        return self.piece_sbuf

    def _load_piece(self) -> None:
        stripe, tiles = self.pieces.pop(0)
        self.loaded.append(self.streams.load_piece(self.positions, tiles, stripe))


@dataclass
class WeightGroups:
    """The groups of tiles of dW of a stripe.

    Attributes:
        parts: of the launch.
        round: whose gradient it is.
        groups: of the stripe; none where dW is not wanted.
        earlier: what the sums of the group in work are added to.
    """

    parts: BackwardParts
    round: Round
    groups: list[WeightGroup] = field(default_factory=list)
    earlier: list[nl.NkiTensor] = field(default_factory=list)

    def begin(self, stripe: Span) -> None:
        """A stripe of features."""
        if self.parts.weight_gradient is not None:
            self.groups = self.parts.weight_gradient.groups(self.round.classes, stripe)

    def add(self, unit: Unit, piece_sbuf: nl.NkiTensor | None) -> None:
        """A piece of X times the gradient; the group is finished with its last one."""
        gradient, round_ = self.parts.weight_gradient, self.round
        if gradient is None or unit.group >= len(self.groups) or piece_sbuf is None:
            return
        group = self.groups[unit.group]
        if unit.piece.start == 0:
            self.earlier = gradient.load_earlier(group, round_.is_first, round_.is_last)
        for product in group.products:
            for tile in unit.piece:
                rows = round_.rows(tile)
                gradient_sbuf = self.parts.block.plain_sbuf[0:rows, tile, :]
                product.add(gradient_sbuf, piece_sbuf[0:rows, tile - unit.piece.start, :], is_first=tile == 0)
        if unit.piece.stop == round_.tiles:
            gradient.finish(group, self.earlier, round_.is_first, round_.is_last)
