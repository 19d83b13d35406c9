"""The first half of a round: the block of the gradient of the logits, and its transpose."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.linear.blocks import Span, cut
from nkilib.experimental.loss.linear.logits import multiply
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear_cross_entropy.backward_parts import TRANSPOSED_LATER, BackwardParts
from nkilib.experimental.loss.linear_cross_entropy.backward_round import Round
from nkilib.experimental.loss.linear_cross_entropy.gradient_tile import LastProduct, TilePlace
from nkilib.experimental.loss.linear_cross_entropy.weight_slices import WeightSlices
from nkilib.nki import nl

# Of kept logits, which leave Tensor idle, it is multiplied when so many more have been made.
_KEPT_MULTIPLIED_LATER = 3


@dataclass(frozen=True)
class LogitGradient:
    """Makes the gradient of the logits of a round.

    Attributes:
        parts: of the launch.
    """

    parts: BackwardParts

    def make(self, round_: Round) -> nl.NkiTensor | None:
        """The block of the gradient; the first stripe of W where it is loaded already.

        Of computed scores the last tiles are not transposed yet. Kept ones leave Tensor idle: dX of the first stripe is
        computed meanwhile, some tiles later.
        """
        if self.parts.streams.slices is not None:
            self._make_streamed(round_, self.parts.streams.slices)
            return None
        inputs = self._first_inputs(round_)
        stripe = self.parts.streams.stripes_of_features[0]
        weight_sbuf = self.parts.load_stripe(round_, stripe) if self.parts.plan.keeps_logits else None
        self._make_tiles(round_, inputs, stripe, weight_sbuf)
        if self.parts.plan.keeps_logits:
            for tile in range(round_.tiles, round_.tiles + _KEPT_MULTIPLIED_LATER):
                self._transpose_later(round_, tile - self.parts.transposed_later(round_), stripe, weight_sbuf)
            self.parts.add_bias(round_)
        return weight_sbuf

    def _first_inputs(self, round_: Round) -> dict[int, nl.NkiTensor]:
        """X^T, or the kept scores, by tile of positions: as many as there are buffers for."""
        streams = self.parts.streams
        streams.inputs.restart()
        loaded = [streams.inputs.next_tile()]
        if self.parts.plan.buffers.takes_turns:
            loaded += streams.load_second_inputs(round_.positions)
        else:
            loaded += [streams.inputs.next_tile() for _ in range(1, streams.first_inputs(round_.positions))]
        return dict(enumerate(loaded))

    def _load_ahead(self, round_: Round, inputs: dict[int, nl.NkiTensor], tile: int) -> None:
        """Load what takes the buffer of a tile that is done with."""
        ahead = tile + len(self.parts.streams.inputs.tiles)
        if ahead < round_.tiles:
            inputs[ahead] = self.parts.streams.load_input(round_.classes, 0, round_.positions, ahead)

    def _make_tiles(
        self, round_: Round, inputs: dict[int, nl.NkiTensor], stripe: Span, weight_sbuf: nl.NkiTensor | None
    ) -> None:
        """Make all tiles of the block.

        Scalar loads a table for the tangents of a cap and one for the exponentials: once for a group of tiles, which
        all of their scores come before. A group has as many as there are buffers for.
        """
        plan, first_column = self.parts.plan, round_.positions.first // PARTITIONS
        spans = cut(round_.classes.size, plan.classes_of_tile)
        tiles = [(tile, span) for tile in range(round_.tiles) for span in spans]
        places = [TilePlace(first_column + tile, round_.rows(tile), span) for tile, span in tiles]
        has_tables = self.parts.tiles.softcap is not None and not plan.keeps_logits
        last: LastProduct | None = None
        for group in cut(len(tiles), plan.buffers.tangents - 1 if has_tables else 1):
            scores = []
            for number in range(group.first, group.end):
                tile, span = tiles[number]
                scores.append(self._scores(number, inputs[tile], places[number]))
                if has_tables and span == spans[-1]:
                    self._load_ahead(round_, inputs, tile)
            for number, scores_of_tile in enumerate(scores, group.first):
                tile, span = tiles[number]
                if span == spans[0]:
                    self.parts.search_rest(round_, tile, tile + 1)
                made = self._make_tile(tile, number, scores_of_tile, places[number])
                if last is not None:
                    last.issue(plan.keeps_logits)
                last = made
                if span != spans[-1]:
                    continue
                if not has_tables:
                    self._load_ahead(round_, inputs, tile)
                self._transpose_later(round_, tile - self.parts.transposed_later(round_), stripe, weight_sbuf)
        if last is not None:
            last.issue(plan.keeps_logits)

    def _make_streamed(self, round_: Round, slices: WeightSlices) -> None:
        """Make the block of the gradient while W^T streams by: the logits of a batch of tiles of positions at a time.

        Every tile of a batch has a bank of PSUM of its own. A bank must hold one unfinished sum at most: on trn2 a
        product that begins a sum was seen to clear what is pending in its bank. So W^T streams by once for each batch.
        """
        self.parts.search_rest(round_, 0, round_.tiles)
        spans = cut(round_.classes.size, self.parts.plan.classes_of_tile)
        batches = [range(batch.first, batch.end) for batch in cut(round_.tiles, self.parts.plan.tiles_of_batch)]
        passes = [(number, classes, batch) for number, classes in enumerate(spans) for batch in batches]
        to_load = [
            (round_.classes.part(*classes), features) for _, classes, _ in passes for features in slices.features
        ]
        loaded = slices.take_ahead()
        del to_load[: len(loaded)]
        last: LastProduct | None = None
        for number, classes, batch in passes:
            is_last_span = number + 1 == len(spans)
            first_number = number * round_.tiles
            banks = {tile: self._bank(first_number + tile, round_.rows(tile), classes.size) for tile in batch}
            for features in slices.features:
                slice_sbuf = loaded.pop(0)[:, :, 0 : classes.size]
                is_complete = features.end == self.parts.launch.num_features
                for tile, bank_psum in banks.items():
                    positions = Span(tile * PARTITIONS, round_.rows(tile))
                    inputs_sbuf = slices.inputs_of(features, positions)
                    multiply(bank_psum, inputs_sbuf, slice_sbuf, features.size, features.first == 0)
                    if is_complete:
                        place = TilePlace(tile, positions.size, classes)
                        made = self._make_streamed_tile(first_number + tile, bank_psum, place)
                        if last is not None:
                            last.issue(on_gpsimd=False)
                        last = made
                    if is_complete and is_last_span:
                        self._transpose_later(round_, tile - self.parts.transposed_later(round_), classes, None)
                if to_load:
                    loaded.append(slices.load(*to_load.pop(0)))
        if last is not None:
            last.issue(on_gpsimd=False)

    def _bank(self, number: int, rows: int, classes: int) -> nl.NkiTensor:
        """Where tile ``number`` of the logits grows, [rows, classes]: banks take turns, also from batch to batch."""
        banks_psum = self.parts.logits.products_psum
        return banks_psum[number % len(banks_psum)][0:rows, 0:classes]

    def _make_streamed_tile(self, number: int, product_psum: nl.NkiTensor, place: TilePlace) -> LastProduct | None:
        bias_sbuf = self.parts.streams.bias_sbuf
        if bias_sbuf is not None:
            bias_sbuf = bias_sbuf[:, place.classes.first : place.classes.end]
        scores = self.parts.logits.scores_of_product(number, product_psum, bias_sbuf)
        return self._make_tile(place.column, number, scores, place)

    def _transpose_later(self, round_: Round, tile: int, stripe: Span, weight_sbuf: nl.NkiTensor | None) -> None:
        """Transpose a tile, if there is one of that number, and multiply an earlier one with a stripe of W."""
        if 0 <= tile < round_.tiles:
            self.parts.transpose(round_, tile, self.parts.transpose_banks)
        earlier = tile - (_KEPT_MULTIPLIED_LATER - TRANSPOSED_LATER)
        if self.parts.plan.keeps_logits and 0 <= earlier < round_.tiles:
            self.parts.add_input(round_, stripe, earlier, weight_sbuf)

    def _make_tile(self, tile: int, number: int, scores: nl.NkiTensor, place: TilePlace) -> LastProduct | None:
        """A tile of the gradient from its scores."""
        columns, weights_sbuf = slice(place.classes.first, place.classes.end), self.parts.streams.class_weight_sbuf
        return self.parts.tiles.make_tile(
            number,
            self.parts.block.plain_sbuf[0 : place.rows, tile, columns],
            scores,
            place,
            place.of(self.parts.targets_sbuf),
            None if weights_sbuf is None else weights_sbuf[0 : place.rows, columns],
        )

    def _scores(self, number: int, input_sbuf: nl.NkiTensor, place: TilePlace) -> nl.NkiTensor:
        """A tile of scores: products of a tile of X^T, or what is kept."""
        columns = slice(place.classes.first, place.classes.end)
        streams = self.parts.streams
        if streams.weight_sbuf is None:
            return input_sbuf[0 : place.rows, columns]
        bias_sbuf = None if streams.bias_sbuf is None else streams.bias_sbuf[:, columns]
        return self.parts.logits.scores(
            number, input_sbuf[:, :, 0 : place.rows], streams.weight_sbuf[:, :, columns], bias_sbuf
        )
