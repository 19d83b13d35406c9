# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The first half of a round of the backward: G, the gradient of the logits, of one block, and the transpose of G.

A *round* is the work on one block of classes with one block of positions. dX is the gradient of X, and a *stripe* is a
range of features. *Scores* are the logits before the temperature, or ``tanh(logit / cap)`` under a cap. A tile of
scores is *opened* (:meth:`.TileMaker.open`) before its gradient is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nkilib.core.hardware import PARTITIONS
from nkilib.experimental.loss.linear.backward.bias_gradient import UnroundedBiasGradient
from nkilib.experimental.loss.linear.backward.rounds import TRANSPOSED_LATER, Round, SharedBuffers
from nkilib.experimental.loss.linear.backward.streams import WeightSlices
from nkilib.experimental.loss.linear.backward.tile_maker import LastProduct, TilePlace
from nkilib.experimental.loss.linear.block_schedule import Span, cut
from nkilib.experimental.loss.linear.logits import multiply
from nkilib.nki import nl

# With kept logits, which leave Tensor idle, a tile is multiplied after so many more tiles.
_KEPT_MULTIPLIED_LATER = 3


@dataclass(frozen=True)
class LogitGradient:
    """The computation of a block of G in a round.

    Attributes:
        parts: the buffers and objects that all rounds share.
    """

    parts: SharedBuffers

    def make(self, round_: Round) -> nl.NkiTensor | None:
        """Compute the block of G of a round.

        If the scores are computed here, return None; :class:`.gradient_products.GradientProducts` transposes the last
        tiles of G. If the scores are kept from the forward, Tensor is idle: then all tiles are transposed here, db and
        dX of the first stripe are computed too, and the first stripe of W is returned (None if dX is not wanted).
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

    def _first_inputs(self, round_: Round) -> dict[int, list[nl.NkiTensor]]:
        """Return the buffers of the first tiles of X^T or of kept scores, by the number of the tile of positions."""
        streams = self.parts.streams
        streams.restart_inputs()
        loaded = [streams.next_inputs()]
        if self.parts.plan.buffers.shares_memory:
            loaded += streams.load_second_inputs(round_.positions)
        else:
            loaded += [streams.next_inputs() for _ in range(1, streams.opening_inputs(round_.positions))]
        return dict(enumerate(loaded))

    def _load_ahead(self, round_: Round, inputs: dict[int, list[nl.NkiTensor]], tile: int) -> None:
        """Load a later tile of X^T or of kept scores into the buffer of tile ``tile``, which is no longer needed.

        Args:
            inputs: the loaded tiles by number; the new tile is entered. Nothing is loaded if the block has no later
                tile.
            tile: the number of a tile of positions.
        """
        ahead = tile + self.parts.streams.input_buffers
        if ahead < round_.tiles:
            inputs[ahead] = self.parts.streams.load_input(round_.classes, 0, round_.positions, ahead)

    def _make_tiles(
        self, round_: Round, inputs: dict[int, list[nl.NkiTensor]], stripe: Span, weight_sbuf: nl.NkiTensor | None
    ) -> None:
        """Compute all tiles of the block of G.

        Scalar needs one table of activation functions to open tiles, such as for the tanh of a cap, and another one for
        the exponentials. To load each table only once per group of tiles, all tiles of a group are opened first. A
        group has one tile less than there are buffers for opened tiles.

        Args:
            inputs: the loaded tiles of X^T, or of kept scores, by number of the tile of positions.
            stripe, weight_sbuf: the first stripe of features and W of this stripe, for dX; see :meth:`make`.
        """
        plan, first_column = self.parts.plan, round_.positions.first // PARTITIONS
        spans = cut(round_.classes.size, plan.classes_of_tile)
        tiles = [(tile, span) for tile in range(round_.tiles) for span in spans]
        places = [TilePlace(first_column + tile, round_.rows(tile), span) for tile, span in tiles]
        opens_groups = self.parts.tiles.opens_groups
        last: LastProduct | None = None
        for group in cut(len(tiles), plan.buffers.opened - 1 if opens_groups else 1):
            opened = []
            for number in range(group.first, group.end):
                tile, span = tiles[number]
                scores = self._scores(number, inputs[tile], places[number])
                opened.append(self.parts.tiles.open(number, scores, places[number]))
                if opens_groups and span == spans[-1]:
                    self._load_ahead(round_, inputs, tile)
            for number, opened_tile in enumerate(opened, group.first):
                tile, span = tiles[number]
                if span == spans[0]:
                    self.parts.prepare_rest(round_, tile, tile + 1)
                product = self._make_tile(tile, number, opened_tile, places[number])
                if last is not None:
                    last.issue(plan.keeps_logits)
                last = product
                if span != spans[-1]:
                    continue
                if not opens_groups:
                    self._load_ahead(round_, inputs, tile)
                self._transpose_later(round_, tile - self.parts.transposed_later(round_), stripe, weight_sbuf)
        if last is not None:
            last.issue(plan.keeps_logits)

    def _make_streamed(self, round_: Round, slices: WeightSlices) -> None:
        """Compute the block of G while W^T streams, for a batch of tiles of positions at a time.

        Every tile of a batch has its own bank of PSUM, which must hold at most one unfinished sum: on trn2 a product
        that begins a sum was seen to clear what is pending in its bank. So W^T streams once for each batch.
        """
        self.parts.prepare_rest(round_, 0, round_.tiles)
        spans = cut(round_.classes.size, self.parts.plan.classes_of_tile)
        batches = [range(batch.first, batch.end) for batch in cut(round_.tiles, self.parts.plan.tiles_of_batch)]
        passes = [(number, classes, batch) for number, classes in enumerate(spans) for batch in batches]
        to_load = [
            (round_.classes.part(*classes), slices.positions_of(round_.positions, batch.start), features)
            for _, classes, batch in passes
            for features in slices.features
        ]
        loaded = slices.take_ahead(round_.positions)
        del to_load[: len(loaded)]
        last: LastProduct | None = None
        for number, classes, batch in passes:
            is_last_span = number + 1 == len(spans)
            first_number = number * round_.tiles
            banks = {tile: self._bank(first_number + tile, round_.rows(tile), classes.size) for tile in batch}
            for features in slices.features:
                slice_ = loaded.pop(0)
                weight_sbuf = slice_.weight_sbuf[:, :, 0 : classes.size]
                is_complete = features.end == self.parts.operands.num_features
                for tile, bank_psum in banks.items():
                    rows, first = round_.rows(tile), (tile - batch.start) * PARTITIONS
                    inputs_sbuf = slice_.inputs_sbuf[:, :, first : first + rows]
                    multiply(bank_psum, inputs_sbuf, weight_sbuf, features.size, features.first == 0)
                    if is_complete:
                        place = TilePlace(round_.positions.first // PARTITIONS + tile, rows, classes)
                        product = self._make_streamed_tile(tile, first_number + tile, bank_psum, place)
                        if last is not None:
                            last.issue(on_gpsimd=False)
                        last = product
                    if is_complete and is_last_span:
                        self._transpose_later(round_, tile - self.parts.transposed_later(round_), classes, None)
                if to_load:
                    loaded.append(slices.load(*to_load.pop(0)))
        if last is not None:
            last.issue(on_gpsimd=False)

    def _bank(self, number: int, rows: int, classes: int) -> nl.NkiTensor:
        # Tiles use the banks round-robin, also across batches.
        banks_psum = self.parts.logits[0].products_psum
        return banks_psum[number % len(banks_psum)][0:rows, 0:classes]

    def _make_streamed_tile(
        self, tile: int, number: int, product_psum: nl.NkiTensor, place: TilePlace
    ) -> LastProduct | None:
        scores = self.parts.logits[0].scores_of_product(number, product_psum, self._bias(0, place))
        opened = self.parts.tiles.open(number, [scores], place)
        return self._make_tile(tile, number, opened, place)

    def _transpose_later(self, round_: Round, tile: int, stripe: Span, weight_sbuf: nl.NkiTensor | None) -> None:
        """Transpose tile ``tile`` of the block if the block has a tile of this number.

        If the logits are kept from the forward, also compute dX of an earlier tile, for one stripe of W.
        """
        if 0 <= tile < round_.tiles:
            self.parts.transpose(round_, tile, self.parts.transpose_banks)
        earlier = tile - (_KEPT_MULTIPLIED_LATER - TRANSPOSED_LATER)
        if self.parts.plan.keeps_logits and 0 <= earlier < round_.tiles:
            self.parts.add_input(round_, stripe, earlier, weight_sbuf)

    def _make_tile(self, tile: int, number: int, opened: list[nl.NkiTensor], place: TilePlace) -> LastProduct | None:
        """Compute a tile of G except for its last product; return this product, which is issued later, or None.

        Args:
            tile: the number of the tile of positions in the block.
            number: the running number of the tile of logits, which selects its buffer slots.
            opened: the tensors that :meth:`TileMaker.open` has returned for the tile.
            place: the positions and classes of the tile.
        """
        columns = slice(place.classes.first, place.classes.end)
        dst_sbuf = self.parts.block.plain_sbuf[0 : place.rows, tile, columns]
        tiles, bias_gradient = self.parts.tiles, self.parts.bias_gradient
        if not isinstance(bias_gradient, UnroundedBiasGradient):
            return tiles.make_tile(number, dst_sbuf, opened, place)
        values_sbuf = place.slot(tiles.float32_tiles, number)
        product = tiles.make_tile(number, values_sbuf, opened, place) or LastProduct(dst_sbuf, values_sbuf, None)
        return bias_gradient.with_sums(replace(product, dst_sbuf=dst_sbuf), place)

    def _scores(self, number: int, inputs_sbuf: list[nl.NkiTensor], place: TilePlace) -> list[nl.NkiTensor]:
        """Return a tile of scores for each pair of operands: computed from X^T and W^T, or kept from the forward.

        The products of all pairs use the same banks of PSUM round-robin; each pair has ring buffers for its scores.
        """
        columns = slice(place.classes.first, place.classes.end)
        pairs, scores = self.parts.streams.pairs, []
        for pair, logits, input_sbuf in zip(pairs, self.parts.logits, inputs_sbuf, strict=True):
            if pair.weight_sbuf is None:
                scores.append(input_sbuf[0 : place.rows, columns])
                continue
            product_psum = logits.product(
                len(pairs) * number + pair.number, input_sbuf[:, :, 0 : place.rows], pair.weight_sbuf[:, :, columns]
            )
            scores.append(logits.scores_of_product(number, product_psum, self._bias(pair.number, place)))
        return scores

    def _bias(self, pair: int, place: TilePlace) -> nl.NkiTensor | None:
        bias = self.parts.streams.pairs[pair].bias
        return None if bias is None else bias.row_sbuf[:, place.classes.first : place.classes.end]
