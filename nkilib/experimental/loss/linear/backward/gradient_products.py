# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second half of a round of the backward: dX, dW and db, the gradients of X, W and the bias, from a block of G.

A *round* is the work on one block of classes with one block of positions, and G is the gradient of the logits. The work
on one *stripe* (a range of features) after another is split into *units* (:class:`.rounds.Unit`). A *piece* of X is
some tiles of 128 positions of one stripe, a *part* of W^T what one transfer loads.

:class:`GradientProducts` multiplies. Meanwhile pieces of X are loaded (:class:`StreamLoads`), and groups of tiles of dW
are computed and stored (:class:`WeightGroups`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nkilib.core.hardware import div_ceil
from nkilib.experimental.loss.linear.backward.rounds import Round, SharedBuffers, Unit
from nkilib.experimental.loss.linear.backward.streams import BackwardStreams, WeightPart, WeightSlices
from nkilib.experimental.loss.linear.backward.weight_gradient import WeightGroup
from nkilib.experimental.loss.linear.block_schedule import Span
from nkilib.nki import nl

# Tiles of dX of the first stripe before the last tiles are transposed.
_TILES_BEFORE_TRANSPOSE = 2
# Units of a stripe after which the other core, too, has finished the stripe before.
_UNITS_UNTIL_SUMMED = 1


@dataclass
class StreamLoads:
    """The loads that are issued during the products of a round: pieces of X, and W^T of the next block of classes.

    Attributes:
        streams: the buffers that are loaded.
        positions: the block of positions of the round.
        pieces: the pieces of X that are still to be loaded, each as its stripe of features and its tiles of positions.
        parts: the parts of W^T that are still to be loaded.
        parts_of_unit: the number of parts of W^T that are loaded during each unit.
        loaded: the loaded pieces of X that no unit has taken yet, in the order of their loads.
        piece_sbuf: the piece of X in use.
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
        """Issue loads of pieces of X into all buffers but one, and return the remaining loads of a round.

        Args:
            stripes: the stripes of features.
            units: the units of each stripe.
        """
        pieces = [(stripe, unit.piece) for stripe in stripes for unit in units if unit.loads]
        parts = streams.weight_parts(round_.next_classes, 0)
        # The last stripe loads none, so that all are there when it ends.
        steps = max(1, (len(stripes) - 1) * len(units))
        loads = cls(streams, round_.positions, pieces, parts, div_ceil(len(parts), steps))
        while loads.pieces and len(loads.loaded) < streams.plan.buffers.pieces - 1:
            loads._load_piece()
        return loads

    def load(self, unit: Unit) -> None:
        """Issue the loads that run during a unit: a piece of X if the unit needs a new one, and some parts of W^T."""
        if self.pieces and unit.loads:
            self._load_piece()
        for _ in range(min(self.parts_of_unit, len(self.parts))):
            self.streams.load_weight(self.parts.pop(0))

    def piece_of(self, unit: Unit) -> nl.NkiTensor | None:
        """Return the piece of X that a unit multiplies; None if dW is not wanted."""
        if unit.loads:
            self.piece_sbuf = self.loaded.pop(0)
        return self.piece_sbuf

    def _load_piece(self) -> None:
        stripe, tiles = self.pieces.pop(0)
        self.loaded.append(self.streams.load_piece(self.positions, tiles, stripe))


@dataclass
class WeightGroups:
    """The groups of tiles of dW of a stripe, each accumulated in PSUM over the pieces of X.

    Attributes:
        parts: the buffers and objects that all rounds share.
        round: the round whose block of G is multiplied.
        groups: the groups of the stripe; none if dW is not wanted.
        earlier: float32 tiles, loaded from HBM, that are added to the sums of the current group; none before the last
            block of positions.
    """

    parts: SharedBuffers
    round: Round
    groups: list[WeightGroup] = field(default_factory=list)
    earlier: list[nl.NkiTensor] = field(default_factory=list)

    def begin(self, stripe: Span) -> None:
        """Set :attr:`groups` to the groups of tiles of dW of a stripe; do nothing if dW is not wanted."""
        if self.parts.weight_gradient is not None:
            self.groups = self.parts.weight_gradient.groups(self.round.classes, stripe)

    def add(self, unit: Unit, piece_sbuf: nl.NkiTensor | None) -> None:
        """Add the product of G and a piece of X to the group of dW of ``unit``; do nothing if dW is not wanted.

        After the last piece of the block of positions, store the group (:meth:`.WeightGradient.finish`).

        Args:
            piece_sbuf: the piece of X; None if dW is not wanted.
        """
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


@dataclass(frozen=True)
class GradientProducts:
    """The products of a round: G W for dX, and G^T X for dW.

    Attributes:
        parts: the buffers and objects that all rounds share.
    """

    parts: SharedBuffers

    def multiply(self, round_: Round, first_stripe_sbuf: nl.NkiTensor | None) -> None:
        """Compute dX, dW and db from the block of G of a round.

        Args:
            first_stripe_sbuf: the result of :meth:`.logit_gradient.LogitGradient.make`: the first stripe of W if the
                logits are kept and dX is wanted (dX of this stripe is computed already), else None.
        """
        stripes, units = self.parts.streams.stripes_of_features, self._units(round_)
        keeps_logits = self.parts.plan.keeps_logits
        later = 0 if keeps_logits else self.parts.transposed_later(round_)
        pending = list(range(max(0, round_.tiles - later), round_.tiles))
        weight_sbuf = first_stripe_sbuf if keeps_logits else self.parts.load_stripe(round_, stripes[0])
        if round_.is_first_of_core and round_.is_first:
            self.parts.streams.load_kept(round_.positions)
        loads = StreamLoads.begun(self.parts.streams, round_, stripes, units)
        weight_groups = WeightGroups(self.parts, round_)
        for number, stripe in enumerate(stripes):
            is_last_stripe = number + 1 == len(stripes)
            weight_groups.begin(stripe)
            next_weight_sbuf = None
            if not is_last_stripe and self._runs_ahead:
                next_weight_sbuf = self.parts.load_stripe(round_, stripes[number + 1])
            for unit in units:
                if number > 0 or not keeps_logits:
                    self._add_inputs(round_, stripe, unit, weight_sbuf, pending)
                if number > 0:
                    self._sum_inputs(round_, stripes[number - 1], unit.number, len(units))
                loads.load(unit)
                if is_last_stripe and unit.number == self._loads_next_at(units):
                    self._load_next(round_)
                weight_groups.add(unit, loads.piece_of(unit))
                self.parts.prepare_ahead(round_, number * len(units) + unit.number, len(stripes) * len(units))
            if not is_last_stripe and not self._runs_ahead:
                next_weight_sbuf = self.parts.load_stripe(round_, stripes[number + 1])
            weight_sbuf = next_weight_sbuf
        if self.parts.input_sum is not None and round_.is_last_of_core:
            self.parts.input_sum.synchronise(round_.positions, stripes[-1])
            self.parts.input_sum.add(round_.positions, stripes[-1], 0, 1)

    @property
    def _runs_ahead(self) -> bool:
        # Otherwise the load of the next stripe of W waits until the products with the current stripe have ended.
        return self.parts.plan.buffers.weight_stripes > 1

    def _loads_next_at(self, units: list[Unit]) -> int:
        """Return the number of the unit, in the last stripe, during which X^T of the next round is loaded.

        It is the last unit of the stripe if X^T takes the memory of W, else the first one.
        """
        return len(units) - 1 if self.parts.plan.buffers.shares_memory else 0

    def _units(self, round_: Round) -> list[Unit]:
        """Return the units of a stripe: one for every piece of X in every group of tiles of dW."""
        groups = 1
        if self.parts.weight_gradient is not None:
            groups = len(self.parts.weight_gradient.groups(round_.classes, self.parts.streams.stripes_of_features[0]))
        pieces = self.parts.streams.pieces_of(round_.positions)
        count = groups * len(pieces)
        result = []
        for number in range(count):
            group, piece = divmod(number, len(pieces))
            tiles = range(number * round_.tiles // count, (number + 1) * round_.tiles // count)
            loads = self.parts.weight_gradient is not None and (group == 0 or len(pieces) > 1)
            result.append(Unit(number, tiles, pieces[piece], group, loads))
        return result

    def _add_inputs(
        self, round_: Round, stripe: Span, unit: Unit, weight_sbuf: nl.NkiTensor | None, pending: list[int]
    ) -> None:
        """Compute dX for the tiles of positions of a unit.

        Args:
            stripe: the stripe of features.
            weight_sbuf: the stripe of W; None if dX is not wanted.
            pending: the tiles of G that are still to be transposed; the tiles that are transposed here are removed.
        """
        for tile in unit.tiles:
            is_due = tile >= _TILES_BEFORE_TRANSPOSE or tile == round_.tiles - 1
            while pending and (is_due or tile >= pending[0]):
                self.parts.transpose(round_, pending.pop(0), self.parts.input_banks)
                if not pending:
                    self.parts.add_bias(round_)
            self.parts.add_input(round_, stripe, tile, weight_sbuf)

    def _sum_inputs(self, round_: Round, stripe: Span, unit: int, units: int) -> None:
        """In the core's last block of classes, add up dX of ``stripe`` over the cores; in other blocks, do nothing.

        Call this in each unit of the next stripe: in unit number ``unit`` of ``units``. Each unit adds some rows;
        unit 0 adds none if there are several units.
        """
        if self.parts.input_sum is None or not round_.is_last_of_core:
            return
        begins = min(_UNITS_UNTIL_SUMMED, units - 1)
        if unit == begins:
            self.parts.input_sum.synchronise(round_.positions, stripe)
        if unit >= begins:
            self.parts.input_sum.add(round_.positions, stripe, unit - begins, units - begins)

    def _load_next(self, round_: Round) -> None:
        """Load the first operands of the next round: biases and class weights; and slices of W^T, tiles of X^T or tiles
        of kept logits.

        If X^T, X and W share memory, only the first tile of X^T is loaded: pieces of X still use the rest of it.
        """
        streams = self.parts.streams
        streams.load_rows(round_.next_classes, 0)
        if streams.slices is not None:
            self._load_next_slices(round_, streams.slices)
            return
        if round_.next_positions is not None:
            classes = round_.next_classes if round_.is_last else round_.classes
            self.parts.streams.load_first_tile(classes, round_.next_positions)
            if not self.parts.plan.buffers.shares_memory:
                self.parts.streams.load_second_inputs(round_.next_positions)

    @staticmethod
    def _load_next_slices(round_: Round, slices: WeightSlices) -> None:
        """Load the first slices (:class:`.streams.WeightSlices`) of the next block of positions.

        After the last block of positions, the first slices of the next block of classes are loaded, if at least one
        tile of its classes is known already.
        """
        if round_.next_positions is None:
            return
        if not round_.is_last:
            slices.load_ahead(round_.classes, round_.next_positions)
        elif round_.next_classes is not None and slices.is_loaded_ahead(round_.next_classes.size):
            slices.load_ahead(round_.next_classes, round_.next_positions)
