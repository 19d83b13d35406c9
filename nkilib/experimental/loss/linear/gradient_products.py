"""The second half of a round: dX, dW and db of a block of the gradient, a stripe of features after the other."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.backward_parts import BackwardParts
from nkilib.experimental.loss.linear.backward_round import Round, Unit
from nkilib.experimental.loss.linear.blocks import Span
from nkilib.experimental.loss.linear.product_streams import StreamLoads, WeightGroups
from nkilib.experimental.loss.linear.weight_slices import WeightSlices
from nkilib.nki import nl

# Tiles of dX of the first stripe before the last tiles are transposed.
_TILES_BEFORE_TRANSPOSE = 2
# Units of a stripe after which the other core, too, has finished the stripe before.
_UNITS_UNTIL_SUMMED = 1


@dataclass(frozen=True)
class GradientProducts:
    """Multiplies the gradient of a round with W and X.

    Attributes:
        parts: of the launch.
    """

    parts: BackwardParts

    def multiply(self, round_: Round, first_stripe_sbuf: nl.NkiTensor | None) -> None:
        """dX, dW and db of the block, but for what has been made beside its gradient."""
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
            self.parts.input_sum.meet(round_.positions, stripes[-1])
            self.parts.input_sum.add(round_.positions, stripes[-1], 0, 1)

    @property
    def _runs_ahead(self) -> bool:
        """Whether the next stripe of W has a buffer of its own.

        Otherwise its load has to wait until the products with the current stripe have ended.
        """
        return self.parts.plan.buffers.weight_stripes > 1

    def _loads_next_at(self, units: list[Unit]) -> int:
        """The unit of the last stripe: in the memory of its W only when that is done with."""
        return len(units) - 1 if self.parts.plan.buffers.takes_turns else 0

    def _units(self, round_: Round) -> list[Unit]:
        """Of a stripe: as many as there are pieces of X and groups of tiles of dW."""
        groups = 1
        if self.parts.weight_gradient is not None:
            groups = len(self.parts.weight_gradient.groups(round_.classes, self.parts.streams.stripes_of_features[0]))
        pieces = self.parts.streams.pieces_of(round_.positions)
        count = groups * len(pieces)
        found = []
        for number in range(count):
            group, piece = divmod(number, len(pieces))
            tiles = range(number * round_.tiles // count, (number + 1) * round_.tiles // count)
            loads = self.parts.weight_gradient is not None and (group == 0 or len(pieces) > 1)
            found.append(Unit(number, tiles, pieces[piece], group, loads))
        return found

    def _add_inputs(
        self, round_: Round, stripe: Span, unit: Unit, weight_sbuf: nl.NkiTensor | None, pending: list[int]
    ) -> None:
        """dX of the tiles of a unit; the transposes that are pending are made when others have started."""
        for tile in unit.tiles:
            is_due = tile >= _TILES_BEFORE_TRANSPOSE or tile == round_.tiles - 1
            while pending and (is_due or tile >= pending[0]):
                self.parts.transpose(round_, pending.pop(0), self.parts.input_banks)
                if not pending:
                    self.parts.add_bias(round_)
            self.parts.add_input(round_, stripe, tile, weight_sbuf)

    def _sum_inputs(self, round_: Round, stripe: Span, unit: int, units: int) -> None:
        """dX of a stripe and a block of positions, after the last block of classes, beside the next stripe."""
        if self.parts.input_sum is None or not round_.is_last_of_core:
            return
        begins = min(_UNITS_UNTIL_SUMMED, units - 1)
        if unit == begins:
            self.parts.input_sum.meet(round_.positions, stripe)
        if unit >= begins:
            self.parts.input_sum.add(round_.positions, stripe, unit - begins, units - begins)

    def _load_next(self, round_: Round) -> None:
        """What the next round starts with, but for W^T, and what would take the memory of pieces of X."""
        streams = self.parts.streams
        streams.load_rows(round_.next_classes, 0)
        if streams.slices is not None:
            self._load_next_slices(round_, streams.slices)
            return
        if round_.next_positions is not None:
            classes = round_.next_classes if round_.is_last else round_.classes
            self.parts.streams.load_first_input(classes, round_.next_positions)
            if not self.parts.plan.buffers.takes_turns:
                self.parts.streams.load_second_inputs(round_.next_positions)

    @staticmethod
    def _load_next_slices(round_: Round, slices: WeightSlices) -> None:
        """The first slices of the next block of positions, or of classes where enough of them are known."""
        if round_.next_positions is None:
            return
        if not round_.is_last:
            slices.load_ahead(round_.classes, round_.next_positions)
        elif round_.next_classes is not None and slices.is_loaded_ahead(round_.next_classes.size):
            slices.load_ahead(round_.next_classes, round_.next_positions)
