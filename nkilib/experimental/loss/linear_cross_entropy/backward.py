# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of linear cross-entropy on one core: the gradient of the logits, handed to the shared backward.

The shared backward (:mod:`nkilib.experimental.loss.linear.backward.one_core`) keeps blocks of the gradient in SBUF
while X and W stream; both fused linear losses use it. :func:`backward_of_core` runs it on the problem of a launch
(:func:`problem_of_launch`).

A tile of the gradient (:class:`GradientTiles`) is computed in float32 and rounded once, to the dtype of the products.
Let z be the logit after cap and temperature, p the softmax, w the class weights, and r = p - onehot, in which large
terms cancel where a target is confident. The gradient of z is (A - D) * r + D * p - spread * w, with per-position
scalars A, D and spread (:mod:`nkilib.experimental.loss.cross_entropy.coefficients`). Under a cap the gradient of the
logits is the gradient of z times 1 - tanh^2. An upstream gradient h of the entropy H adds -h * (log p + H) to D, which
is a slope times the logit plus an offset. Terms that are 0 take no instructions.

In this file *scores* are the logits, or tanh(logit / cap) under a cap, and K is the number of target ids of a position.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from nkilib.core import arithmetic
from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.cross_entropy.launch import TEMPERATURE_MIN, Options, PositionUpstream
from nkilib.experimental.loss.cross_entropy.softcap import squared, through_cap
from nkilib.experimental.loss.linear.backward.geometry import GRADIENT_SLOTS
from nkilib.experimental.loss.linear.backward.gradient_block import PowerOfTwo
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan, program_share, require_fitting_plan
from nkilib.experimental.loss.linear.backward.one_core import write_gradients_of_positions
from nkilib.experimental.loss.linear.backward.streams import OperandPair
from nkilib.experimental.loss.linear.backward.tile_maker import (
    BackwardProblem,
    LastProduct,
    TilePlace,
)
from nkilib.experimental.loss.linear.block_schedule import Block, Span, position_parts
from nkilib.experimental.loss.linear.launch import Gradients, LinearTiling
from nkilib.experimental.loss.linear.operands import ClassRow, with_rounded_input
from nkilib.experimental.loss.linear_cross_entropy.gradient_columns import GradientColumns
from nkilib.experimental.loss.linear_cross_entropy.id_gradient import IdGradient, IdTiles
from nkilib.experimental.loss.linear_cross_entropy.launch import LinearLaunch, backward_sizes
from nkilib.nki import nisa, nl

# A masked class has a bias of -inf, and 0 * inf is NaN. With this bias its p is 0 too, and so is p times its logit.
_LOWEST_BIAS = -(2.0**100)


def _whole(count: float) -> int:
    # An excess of up to 1e-6 over a whole number is rounding error, and is not rounded up.
    return ceil(count - 1e-6)


@dataclass(frozen=True)
class GradientTiles:
    """Computes one tile of the gradient of the logits after another; implements :class:`.tile_maker.TileMaker`.

    Attributes:
        columns: the per-position scalars.
        softcap: the cap of the logits; None for none.
        is_kept: whether the scores are loaded from HBM, where a forward in the same launch kept them.
        masks: whether kept scores may be -inf, for masked classes under a cap; these scores then count as -1.
        targets_sbuf: the targets, counted from the first class of the block, float32 [128, tiles]; [128, tiles, ids]
            for several target ids.
        class_weights: the class weights of a block; None for 1.
        count_sbuf: 0, 1, 2, ... in each partition, float32 [128, classes of a block].
        errors_sbuf, others_sbuf: buffer slots for r, and for the other terms, float32 [128, classes of a tile]; the
            tiles use them round-robin.
        ids: the tiles of several target ids per position; None for one id.
    """

    columns: GradientColumns
    softcap: float | None
    is_kept: bool
    masks: bool
    targets_sbuf: nl.NkiTensor
    class_weights: ClassRow | None
    count_sbuf: nl.NkiTensor
    errors_sbuf: list[nl.NkiTensor]
    others_sbuf: list[nl.NkiTensor]
    ids: IdTiles | None = None

    @classmethod
    def of_launch(
        cls, launch: LinearLaunch, options: Options, upstream: PositionUpstream, plan: BackwardPlan
    ) -> GradientTiles:
        """Allocate memory for the blocks and tiles of a plan, and compute the per-position scalars."""
        of_ids = IdGradient.make(launch, options, upstream) if launch.ids > 1 else None
        columns = GradientColumns.make(launch, options, upstream) if of_ids is None else of_ids.columns
        block, classes = plan.class_tiles * PARTITIONS, plan.classes_of_tile

        def ring(is_needed: bool) -> list[nl.NkiTensor]:
            slots = GRADIENT_SLOTS if is_needed else 0
            return [nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf) for _ in range(slots)]

        class_weights = None
        if options.needs_class_weights and launch.class_weight_hbm is not None:
            class_weights = ClassRow.make(launch.class_weight_hbm, block)
        count_sbuf = nl.ndarray((PARTITIONS, block), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=count_sbuf, pattern=[[1, block]], offset=0, channel_multiplier=0)
        return cls(
            columns,
            options.softcap,
            plan.keeps_logits,
            plan.keeps_logits and launch.bias_hbm is not None,
            nl.ndarray(columns.target_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf),
            class_weights,
            count_sbuf,
            errors_sbuf=ring(True),
            others_sbuf=ring(columns.rest_sbuf is not None),
            ids=None if of_ids is None else of_ids.tiles(plan.position_tiles, plan.class_block, classes),
        )

    @property
    def power(self) -> PowerOfTwo | None:
        return self.columns.power

    @property
    def rows(self) -> list[ClassRow]:
        """The class weights, in a list; an empty list without class weights."""
        return [] if self.class_weights is None else [self.class_weights]

    @property
    def float32_tiles(self) -> list[nl.NkiTensor]:
        return self.errors_sbuf

    @property
    def may_hold_scores(self) -> bool:
        """Whether the scores of a tile may be stored in the slot in which the gradient of the tile is computed later.

        They may not if tiles are opened in groups, because then :meth:`open` is called before earlier tiles are
        computed.
        """
        return not self.opens_groups

    @property
    def opens_groups(self) -> bool:
        """Whether :meth:`open` is called for a group of tiles at a time: if Scalar has to compute the tanh of a cap.

        Kept scores contain the tanh already.
        """
        return self.softcap is not None and not self.is_kept

    def begin(self, first_class: int) -> None:
        """Set ``targets_sbuf`` to the targets counted from class ``first_class``."""
        nisa.tensor_scalar(
            dst=self.targets_sbuf, data=self.columns.target_sbuf, op0=nl.subtract, operand0=float(first_class)
        )

    def advance(self, classes: int) -> None:
        """Count ``targets_sbuf`` from a later class: subtract ``classes``."""
        nisa.tensor_scalar(dst=self.targets_sbuf, data=self.targets_sbuf, op0=nl.subtract, operand0=float(classes))

    def prepare(self, positions: Span, skipped: int, done: float, end: float) -> None:
        """Compute the table indices of several target ids (:meth:`IdTiles.search`); do nothing for one id.

        The arguments are those of :meth:`TileMaker.prepare`.
        """
        if self.ids is None:
            return
        first, tiles = positions.first // PARTITIONS, div_ceil(positions.size, PARTITIONS)
        count = tiles * self.ids.tiles_of_classes
        for number in range(_whole(done * count), _whole(end * count)):
            column, tile = first + number // self.ids.tiles_of_classes, number % self.ids.tiles_of_classes
            self.ids.search(column, tile, self.targets_sbuf[:, column], skipped)

    def open(self, number: int, scores: list[nl.NkiTensor], place: TilePlace) -> list[nl.NkiTensor]:
        """Return the scores unchanged, because :meth:`make_tile` needs nothing else."""
        return scores

    def make_tile(
        self, number: int, dst_sbuf: nl.NkiTensor, opened: list[nl.NkiTensor], place: TilePlace
    ) -> LastProduct | None:
        """Compute tile ``number``, and return its last product, which the caller issues later; None if there is none.

        Args:
            number: the number of the tile.
            dst_sbuf: the result, [rows, classes], in the dtype of the products.
            opened: the scores, float32 [rows, classes]; overwritten.
            place: the positions and classes of the tile.
        """
        (scores,) = opened
        error_sbuf, own_sbuf = place.slot(self.errors_sbuf, number), place.of(self.columns.own_sbuf)
        slopes_sbuf = self._slopes(number, error_sbuf, scores, place)
        self._softmax(error_sbuf, scores, place)
        ids_sbuf = None
        if self.ids is not None:
            ids_sbuf = self.ids.gradients(number, place.rows, place.column, *place.classes)
        if slopes_sbuf is not None and not self.columns.has_target:
            self._multiply_slopes(dst_sbuf, slopes_sbuf, error_sbuf, scores, ids_sbuf)
            return None
        other_sbuf = ids_sbuf
        if other_sbuf is None:
            other_sbuf = self._others(number, error_sbuf, slopes_sbuf, place)
        if self.columns.has_target:
            nisa.scalar_tensor_tensor(
                dst=error_sbuf,
                data=place.of_classes(self.count_sbuf),
                op0=nl.equal,
                operand0=place.of(self.targets_sbuf),
                op1=nl.subtract,
                operand1=error_sbuf,
                reverse1=True,
            )
        if other_sbuf is not None:
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf if self.softcap is None else error_sbuf,
                data=error_sbuf,
                op0=nl.multiply,
                operand0=own_sbuf,
                op1=nl.add,
                operand1=other_sbuf,
            )
            if self.softcap is not None:
                self._square(scores)
                through_cap(dst_sbuf, error_sbuf, scores)
            return None
        if self.softcap is None:
            return LastProduct(dst_sbuf, error_sbuf, own_sbuf)
        self._square(scores)
        if self.is_kept:
            through_cap(error_sbuf, error_sbuf, scores)
            return LastProduct(dst_sbuf, error_sbuf, own_sbuf)
        # Vector has time for it; a last product on Scalar would wait for Vector.
        nisa.tensor_scalar(
            dst=scores, data=scores, op0=nl.subtract, operand0=1.0, reverse0=True, op1=nl.multiply, operand1=own_sbuf
        )
        arithmetic.product(dst_sbuf, error_sbuf, scores)
        return None

    def _slopes(
        self, number: int, error_sbuf: nl.NkiTensor, scores: nl.NkiTensor, place: TilePlace
    ) -> nl.NkiTensor | None:
        """Return D, in a slot of ``others_sbuf``, if D depends on the logits; None if D is the same for all classes.

        If the maximum is subtracted first, z minus the maximum is also written to ``error_sbuf``, for the softmax.
        """
        if self.columns.neg_maximum_sbuf is not None:
            nisa.tensor_scalar(
                dst=error_sbuf,
                data=scores,
                op0=nl.multiply,
                operand0=self.columns.scale.of(place.column, place.rows),
                op1=nl.add,
                operand1=place.of(self.columns.neg_maximum_sbuf),
            )
            scores = error_sbuf
        slope_sbuf, rest_sbuf = self.columns.slope_sbuf, self.columns.rest_sbuf
        if slope_sbuf is None or rest_sbuf is None:
            return None
        slopes_sbuf = place.slot(self.others_sbuf, number)
        nisa.activation(dst=slopes_sbuf, op=nl.copy, data=scores, scale=place.of(slope_sbuf), bias=place.of(rest_sbuf))
        return slopes_sbuf

    def _multiply_slopes(
        self,
        dst_sbuf: nl.NkiTensor,
        slopes_sbuf: nl.NkiTensor,
        softmax_sbuf: nl.NkiTensor,
        scores: nl.NkiTensor,
        ids_sbuf: nl.NkiTensor | None,
    ) -> None:
        gradient_sbuf = dst_sbuf if self.softcap is None else softmax_sbuf
        if ids_sbuf is None:
            arithmetic.product(gradient_sbuf, slopes_sbuf, softmax_sbuf)
        else:
            arithmetic.product(slopes_sbuf, slopes_sbuf, softmax_sbuf)
            nisa.scalar_tensor_tensor(
                dst=gradient_sbuf, data=slopes_sbuf, op0=nl.multiply, operand0=1.0, op1=nl.add, operand1=ids_sbuf
            )
        if self.softcap is not None:
            self._square(scores)
            through_cap(dst_sbuf, softmax_sbuf, scores)

    def _square(self, tangents: nl.NkiTensor) -> None:
        # Scores are raised to -1 first: the square of -inf would make the gradient NaN, where it is 0.
        if self.masks:
            nisa.tensor_scalar(dst=tangents, data=tangents, op0=nl.maximum, operand0=-1.0)
        if self.is_kept:
            squared(tangents)
        else:
            arithmetic.multiply_on_gpsimd(tangents, tangents, tangents)

    def _softmax(self, dst_sbuf: nl.NkiTensor, scores: nl.NkiTensor, place: TilePlace) -> None:
        # If the maximum is subtracted first, ``dst_sbuf`` holds the exponents without their bias.
        bias_sbuf = place.of(self.columns.bias_sbuf)
        if self.columns.neg_maximum_sbuf is None:
            scale = self.columns.scale.of(place.column, place.rows)
            nisa.activation(dst=dst_sbuf, op=nl.exp, data=scores, bias=bias_sbuf, scale=scale)
        else:
            nisa.activation(dst=dst_sbuf, op=nl.exp, data=dst_sbuf, bias=bias_sbuf)

    def _others(
        self,
        number: int,
        softmax_sbuf: nl.NkiTensor,
        slopes_sbuf: nl.NkiTensor | None,
        place: TilePlace,
    ) -> nl.NkiTensor | None:
        """Return D * p - spread * w, in a slot of ``others_sbuf``; None if it is 0."""
        rest_sbuf, spread_sbuf = self.columns.rest_sbuf, self.columns.spread_sbuf
        if rest_sbuf is None:
            return None
        if slopes_sbuf is not None:
            # Under a cap Vector has the least time of all, and GpSimd nothing to do.
            multiplied = arithmetic.product if self.softcap is None else arithmetic.multiply_on_gpsimd
            multiplied(slopes_sbuf, slopes_sbuf, softmax_sbuf)
            self._subtract_spread(slopes_sbuf, place)
            return slopes_sbuf
        other_sbuf = place.slot(self.others_sbuf, number)
        if spread_sbuf is not None and self.class_weights is None:
            nisa.tensor_scalar(
                dst=other_sbuf,
                data=softmax_sbuf,
                op0=nl.multiply,
                operand0=place.of(rest_sbuf),
                op1=nl.subtract,
                operand1=place.of(spread_sbuf),
            )
            return other_sbuf
        nisa.activation(dst=other_sbuf, op=nl.copy, data=softmax_sbuf, scale=place.of(rest_sbuf))
        self._subtract_spread(other_sbuf, place)
        return other_sbuf

    def _subtract_spread(self, other_sbuf: nl.NkiTensor, place: TilePlace) -> None:
        if self.columns.spread_sbuf is None:
            return
        spread_sbuf = place.of(self.columns.spread_sbuf)
        if self.class_weights is None:
            nisa.tensor_scalar(dst=other_sbuf, data=other_sbuf, op0=nl.subtract, operand0=spread_sbuf)
            return
        nisa.scalar_tensor_tensor(
            dst=other_sbuf,
            data=place.of_classes(self.class_weights.row_sbuf),
            op0=nl.multiply,
            operand0=spread_sbuf,
            op1=nl.subtract,
            operand1=other_sbuf,
            reverse1=True,
        )


def problem_of_launch(launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> BackwardProblem:
    """Return the problem of a launch that the shared backward solves: its operands and its tiles of the gradient."""
    lowest_bias = None
    # The gradient of the entropy multiplies p with its logit, of which none may be -inf.
    if upstream.grad_entropy_hbm is not None and options.softcap is None:
        least = 1.0 if launch.temperature_hbm is None else TEMPERATURE_MIN
        lowest_bias = _LOWEST_BIAS / max(1.0, options.scale / least)
    pair = OperandPair(launch, options.softcap, lowest_bias)

    def make_tiles(plan: BackwardPlan) -> GradientTiles:
        return GradientTiles.of_launch(launch, options, upstream, plan)

    return BackwardProblem([pair], make_tiles)


def upstream_of_positions(upstream: PositionUpstream, block: Block) -> PositionUpstream:
    """Return ``upstream`` with only the rows of its tensors that are in ``block``."""

    def of(vector_hbm: nl.NkiTensor | None) -> nl.NkiTensor | None:
        return None if vector_hbm is None else block.of(vector_hbm)

    return PositionUpstream(
        block.of(upstream.lse_hbm),
        of(upstream.grad_loss_hbm),
        of(upstream.grad_lse_hbm),
        of(upstream.grad_logprob_hbm),
        of(upstream.target_weight_hbm),
        upstream.weight_sum,
        of(upstream.maximum_hbm),
        of(upstream.log_sum_hbm),
        of(upstream.entropy_hbm),
        of(upstream.grad_entropy_hbm),
    )


def backward_of_core(
    launch: LinearLaunch, options: Options, tiling: LinearTiling, upstream: PositionUpstream, gradients: Gradients
) -> None:
    """Compute and store the gradients; this core works on its own part of the classes.

    Raises:
        AssertionError: before anything is written, if the blocks of the tiling do not fit SBUF.
    """
    parts = position_parts(launch.num_positions, launch.num_features, launch.ids)
    first_part = launch.of_positions(Block(0, parts.size))
    adds_to_weight = gradients.adds_to_weight or parts.is_split
    sizes = backward_sizes(first_part, options, upstream, adds_to_weight, gradients.sums_bias_of(launch))
    sizes = replace(sizes, program_share=program_share(parts))
    require_fitting_plan(launch.function, tiling, BackwardPlan.of(sizes, *tiling))
    launch = with_rounded_input(launch)

    def problem_of(block: Block) -> BackwardProblem:
        if not parts.is_split:
            return problem_of_launch(launch, options, upstream)
        return problem_of_launch(launch.of_positions(block), options, upstream_of_positions(upstream, block))

    write_gradients_of_positions(launch, gradients, parts, sizes, tiling, problem_of)
