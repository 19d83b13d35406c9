# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of cross-entropy in the layouts of :mod:`.batches` (:func:`backward_of_batches`).

A partition holds several positions (*packed*) or a part of one (*split*); a *piece* is the part of a batch that is
loaded at a time. The coefficients are tiles [partitions, positions of a partition] (:class:`_Coefficients`).

The gradient is computed on chip, without a scatter: Scalar computes p; Vector compares the columns, as float16 numbers,
with the column of the target, and subtracts. Scalar and GpSimd share the products with A. If all losses have the same
upstream gradient, A is part of the exponential and no products are needed. With a cap, tangents (tanh of logits / cap)
take the place of the logits, and the result is multiplied by the derivative of the cap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.moments import raise_infinite, raise_negligible
from nkilib.core.rows.row_plan import RowBatch, RowPiece
from nkilib.core.rows.sbuf import Ring, ring_of
from nkilib.core.rows.scale import ONE, Scale
from nkilib.core.rows.tiles import cast, clamp, float32_like, log_of_constant, product, scaled
from nkilib.experimental.loss.cross_entropy.coefficients import (
    EntropyCoefficients,
    SoftmaxTerms,
    TargetTerms,
    loaded_gradient,
    negated_lse,
    summed,
)
from nkilib.experimental.loss.cross_entropy.launch import (
    Launch,
    Options,
    PositionUpstream,
    UniformUpstream,
    Upstream,
)
from nkilib.experimental.loss.cross_entropy.layouts.batches import BUFFERS, LoadedPieces, backward_terms
from nkilib.experimental.loss.cross_entropy.layouts.targets import ColumnsOnChip, check_targets, columns_of_parts
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, squared, through_cap
from nkilib.experimental.loss.cross_entropy.targets import LocatedTargets, TargetFinder, TargetMasks
from nkilib.nki import nisa, nl

# The positions that are begun after one before it is finished. A piece is loaded over one that is finished.
_STEPS = 2
# float16 has every integer up to this one.
_COMPARED = 2048


@dataclass(frozen=True)
class _Coefficients:
    """The coefficients of the gradient of a batch: float32 tiles [partitions, positions of a partition].

    Attributes:
        scale: the factor that turns the logits into z.
        bias_sbuf: the bias of exponentials. exp(z + bias) is A * p if ``all_sbuf`` is None; else p, or p times d, the
            sum of exp(z - maximum).
        all_sbuf: the factor that turns exp(z + bias) into A * p: A or A / d; None if exp(z + bias) is A * p already.
        neg_spread_sbuf: minus g * e / V of label smoothing, added to A * p at every class; None for 0.
        entropy: the terms that the gradient of the entropy adds to A for each class, in the unit of ``all_sbuf``; None
            without a gradient of the entropy.
        own_sbuf: A - D, which is subtracted at the target; 0 if the target is ignored or in another shard. A Python
            number if all positions have the same value. The value must be finite, because it is multiplied by 0 at
            other classes.
        column_sbuf: the column of the target in the partition.
        check: the DMA access that is out of range if a target is invalid.
    """

    scale: Scale
    bias_sbuf: nl.NkiTensor
    all_sbuf: nl.NkiTensor | None
    neg_spread_sbuf: nl.NkiTensor | None
    entropy: EntropyCoefficients | None
    own_sbuf: nl.NkiTensor | float
    column_sbuf: nl.NkiTensor
    check: nisa.NkiInstruction
    _columns: dict[int, nl.NkiTensor] = field(default_factory=dict)

    def column_from(self, start: int) -> nl.NkiTensor:
        """Return the columns of the targets, counted from column ``start`` of the partition; the result is cached."""
        if start == 0:
            return self.column_sbuf
        if start not in self._columns:
            column_sbuf = float32_like(self.column_sbuf)
            nisa.tensor_scalar(dst=column_sbuf, data=self.column_sbuf, op0=nl.subtract, operand0=float(start))
            self._columns[start] = column_sbuf
        return self._columns[start]


@dataclass(frozen=True)
class _Begun:
    """One position of each partition, whose gradient is being computed.

    Attributes:
        coefficients: the coefficients of the batch.
        batch, piece, row: the batch, the piece, and the index of the position in the piece.
        piece_sbuf: the tile of the piece.
        scores_sbuf: the logits of the position, or with a cap their tangents.
        is_target_sbuf: 1 at the target, and 0 elsewhere.
        terms_sbuf: the exponentials, until :meth:`_Backward._multiply` replaces them by A * p - g * e / V.
        slopes_sbuf: the terms that the gradient of the entropy adds to A; None without that gradient.
    """

    coefficients: _Coefficients
    batch: RowBatch
    piece: RowPiece
    row: int
    piece_sbuf: nl.NkiTensor
    scores_sbuf: nl.NkiTensor
    is_target_sbuf: nl.NkiTensor
    terms_sbuf: nl.NkiTensor
    slopes_sbuf: nl.NkiTensor | None

    @property
    def position(self) -> int:
        return self.piece.first + self.row


@dataclass
class _Backward:
    """The loop of a core over the pieces of its batches.

    Attributes:
        launch, options, upstream: the arguments of the kernel.
        batches: the batches of the core.
        finder: locates the targets.
        on_chip: gathers elements of packed positions; None for split positions.
        class_sbuf: the column numbers 0, 1, 2, ..., float16 [128, columns].
        log_scale_sbuf: the logarithm of the common upstream gradient, float32 [128, 1]; 0 if the losses have different
            upstream gradients.
        pieces: the pieces of the batches, whose tiles of logits become gradients.
        exponentials: tiles for exponentials.
        targets: float16 tiles that are 1 at the targets and 0 elsewhere.
        slopes: tiles for the terms that the gradient of the entropy adds to A.
        scores: tiles for the tangents of capped logits; none without a cap.
        products: the number of products with A so far, by which the engines share them.
    """

    launch: Launch
    options: Options
    upstream: Upstream
    batches: list[RowBatch]
    finder: TargetFinder
    on_chip: ColumnsOnChip | None
    class_sbuf: nl.NkiTensor
    log_scale_sbuf: nl.NkiTensor
    pieces: LoadedPieces
    exponentials: Ring
    targets: Ring
    slopes: Ring
    scores: Ring
    products: int = 0

    @classmethod
    def make(cls, launch: Launch, options: Options, upstream: Upstream, batches: list[RowBatch]) -> _Backward:
        plan = batches[0].plan
        buffers = BUFFERS if isinstance(upstream, UniformUpstream) else BUFFERS + _STEPS - 1
        pieces = LoadedPieces.make(launch, batches, buffers, BUFFERS - 1)
        columns, terms = pieces.columns, backward_terms(upstream)
        has_entropy = isinstance(upstream, PositionUpstream) and upstream.grad_entropy_hbm is not None
        class_sbuf = nl.ndarray((PARTITIONS, min(columns, _COMPARED)), dtype=nl.float16, buffer=nl.sbuf)
        nisa.iota(dst=class_sbuf, pattern=[[1, class_sbuf.shape[1]]], offset=0, channel_multiplier=0)
        return cls(
            launch,
            options,
            upstream,
            batches,
            TargetFinder.make(launch.targets_hbm, PARTITIONS, 1, options),
            None if plan.parts > 1 else ColumnsOnChip.make(launch, plan),
            class_sbuf,
            log_of_constant(upstream.scale if isinstance(upstream, UniformUpstream) else 1.0, PARTITIONS),
            pieces,
            Ring(ring_of(terms, columns, nl.float32)),
            Ring(ring_of(terms, columns, nl.float16)),
            Ring(ring_of(terms if has_entropy else 0, columns, nl.float32)),
            Ring(ring_of(terms if options.softcap is not None else 0, columns, nl.float32)),
        )

    def run(self, grad_logits_hbm: nl.NkiTensor) -> None:
        """Process all positions of all pieces, and store the gradients.

        A position takes several steps; other positions are processed between them, so that no engine waits for another
        one. The coefficients of a batch are computed while the previous batch is processed.
        """
        begun, steps = deque[_Begun](), 1 if isinstance(self.upstream, UniformUpstream) else _STEPS
        following = self._coefficients(self.batches[0])
        for number, batch in enumerate(self.batches):
            coefficients = following
            for piece, piece_sbuf in self.pieces.of_batch(number):
                if piece is batch.pieces[0] and number + 1 < len(self.batches):
                    following = self._coefficients(self.batches[number + 1])
                for row in range(piece.rows):
                    begun.append(self._begun(coefficients, batch, piece, row, piece_sbuf))
                    if len(begun) > 1:
                        self._multiply(begun[-2])
                    if len(begun) > steps:
                        self._finish(begun.popleft(), grad_logits_hbm)
        self._multiply(begun[-1])
        for last in begun:
            self._finish(last, grad_logits_hbm)

    def _coefficients(self, batch: RowBatch) -> _Coefficients:
        shape, launch, options, upstream = (batch.partitions, batch.rows_each), self.launch, self.options, self.upstream
        masks = TargetMasks.make(*shape)
        located = self.finder.locate(batch, None if options.is_plain else masks)
        column_sbuf = columns_of_parts(batch, located.column_sbuf)
        check = self._check(batch, located)
        if isinstance(upstream, UniformUpstream):
            bias_sbuf = negated_lse(batch.loaded(upstream.lse_hbm), self.log_scale_sbuf[0 : shape[0], :])
            return _Coefficients(ONE, bias_sbuf, None, None, None, upstream.scale, column_sbuf, check)
        temperatures = launch.temperatures(batch, shape)
        softmax = SoftmaxTerms.load(upstream, batch, options.scale_of(temperatures))
        slope = options.slope_of(temperatures)
        grad_loss_sbuf = loaded_gradient(batch, upstream.required_grad_loss_hbm, slope)
        weights_sbuf, valid_sbuf = self._weights(located.column_sbuf), masks.valid_sbuf
        terms = TargetTerms.make(
            options,
            slope,
            upstream,
            batch,
            softmax.lse_sbuf,
            grad_loss_sbuf,
            valid_sbuf,
            weights_sbuf,
            float(options.classes.total),
        )
        all_sbuf = terms.own_sbuf
        if terms.rest_sbuf is not None:
            all_sbuf = summed(terms.rest_sbuf, [terms.own_sbuf])
        own_sbuf = product(terms.own_sbuf, cast(masks.local_sbuf, nl.float32))
        clamp(own_sbuf, own_sbuf, 1.0)
        entropy = self._entropy(upstream, batch, softmax, slope)
        if entropy is not None:
            all_sbuf = summed(all_sbuf, [entropy.offset_sbuf])
        return _Coefficients(
            softmax.scale,
            softmax.bias_sbuf,
            softmax.normalized(all_sbuf),
            None if terms.spread_sbuf is None else scaled(terms.spread_sbuf, -1.0),
            entropy,
            own_sbuf,
            column_sbuf,
            check,
        )

    def _entropy(
        self, upstream: PositionUpstream, batch: RowBatch, softmax: SoftmaxTerms, slope: Scale
    ) -> EntropyCoefficients | None:
        """Return the terms of the entropy's gradient, in the unit of the coefficient A."""
        if upstream.entropy_hbm is None or upstream.grad_entropy_hbm is None:
            return None
        gradient_sbuf = loaded_gradient(batch, upstream.grad_entropy_hbm, slope)
        entropy = EntropyCoefficients.make(softmax, batch.loaded(upstream.entropy_hbm), gradient_sbuf)
        return replace(entropy, slope_sbuf=softmax.normalized(entropy.slope_sbuf))

    def _check(self, batch: RowBatch, located: LocatedTargets) -> nisa.NkiInstruction:
        if batch.plan.parts == 1:
            return check_targets(self.finder, batch, located)
        rows = batch.as_rows
        masks = None if self.options.is_plain else TargetMasks.make(rows.rows, 1)
        return check_targets(self.finder, rows, self.finder.locate(rows, masks))

    def _weights(self, column_sbuf: nl.NkiTensor) -> nl.NkiTensor | None:
        class_weight_hbm = self.launch.class_weight_hbm
        if self.on_chip is not None or class_weight_hbm is None:
            return None if self.on_chip is None else self.on_chip.gather_weights(column_sbuf)
        weights_sbuf = nl.ndarray(column_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=weights_sbuf, src=vector_elements(class_weight_hbm, column_sbuf))
        return weights_sbuf

    def _begun(
        self, coefficients: _Coefficients, batch: RowBatch, piece: RowPiece, row: int, piece_sbuf: nl.NkiTensor
    ) -> _Begun:
        """Compute the exponentials of a position, and the tile that is 1 at its target."""
        partitions, _, columns = piece_sbuf.shape
        at = piece.first + row
        is_target_sbuf = self._is_target(coefficients, piece, at, (partitions, columns))
        terms_sbuf = self.exponentials.next_tile()[0:partitions, 0:columns]
        slopes_sbuf, entropy, scores_sbuf = None, coefficients.entropy, piece_sbuf[:, row]
        if self.options.softcap is not None:
            scores_sbuf = self.scores.next_tile()[0:partitions, 0:columns]
            hyperbolic_tangents(scores_sbuf, piece_sbuf[:, row], self.options.softcap)
        if entropy is not None:
            slopes_sbuf = self.slopes.next_tile()[0:partitions, 0:columns]
            raise_negligible(scores_sbuf, entropy.neg_center_sbuf[:, at : at + 1], coefficients.scale.least)
        nisa.activation(
            dst=terms_sbuf,
            op=nl.exp,
            data=scores_sbuf,
            bias=coefficients.bias_sbuf[:, at : at + 1],
            scale=coefficients.scale.of(at),
        )
        if entropy is not None and slopes_sbuf is not None:
            raise_infinite(scores_sbuf)
            nisa.tensor_scalar(
                dst=slopes_sbuf,
                data=scores_sbuf,
                op0=nl.add,
                operand0=entropy.neg_center_sbuf[:, at : at + 1],
                op1=nl.multiply,
                operand1=entropy.slope_sbuf[:, at : at + 1],
            )
        return _Begun(coefficients, batch, piece, row, piece_sbuf, scores_sbuf, is_target_sbuf, terms_sbuf, slopes_sbuf)

    def _finish(self, begun: _Begun, grad_logits_hbm: nl.NkiTensor) -> None:
        """Replace the logits of a position by their gradient, rounded once; after the last position of a piece, store
        the piece.
        """
        piece, row, at, own = begun.piece, begun.row, begun.position, begun.coefficients.own_sbuf
        gradient_sbuf = begun.piece_sbuf[:, row] if self.options.softcap is None else begun.terms_sbuf
        nisa.scalar_tensor_tensor(
            dst=gradient_sbuf,
            data=begun.is_target_sbuf,
            op0=nl.multiply,
            operand0=own if isinstance(own, float) else own[:, at : at + 1],
            op1=nl.subtract,
            operand1=begun.terms_sbuf,
            reverse1=True,
        )
        if self.options.softcap is not None:
            squared(begun.scores_sbuf)
            through_cap(begun.piece_sbuf[:, row], gradient_sbuf, begun.scores_sbuf)
        if row + 1 == piece.rows:
            for store in begun.batch.store(grad_logits_hbm, piece, begun.piece_sbuf):
                store.depends_on(begun.coefficients.check, kind=nisa.dependency.runtime)

    def _is_target(self, coefficients: _Coefficients, piece: RowPiece, at: int, shape: tuple[int, int]) -> nl.NkiTensor:
        partitions, columns = shape
        is_target_sbuf = self.targets.next_tile()[0:partitions, 0:columns]
        for start in range(0, columns, _COMPARED):
            end = min(start + _COMPARED, columns)
            column_sbuf = coefficients.column_from(piece.start + start)
            if coefficients.entropy is not None:  # Vector has more to do then than GpSimd
                nisa.tensor_tensor(
                    dst=is_target_sbuf[:, start:end],
                    data1=self.class_sbuf[0:partitions, 0 : end - start],
                    data2=column_sbuf[:, at : at + 1].broadcast(1, end - start),
                    op=nl.equal,
                    engine=nisa.engine.gpsimd,
                )
                continue
            nisa.tensor_scalar(
                dst=is_target_sbuf[:, start:end],
                data=self.class_sbuf[0:partitions, 0 : end - start],
                op0=nl.equal,
                operand0=column_sbuf[:, at : at + 1],
            )
        return is_target_sbuf

    def _multiply(self, begun: _Begun) -> None:
        """Multiply the exponentials of a position by A, and add the terms that every class gets.

        Scalar shares this work with GpSimd, or with Vector under label smoothing; with the gradient of the entropy or a
        cap, Scalar takes no part. The results are bitwise identical on every engine.
        """
        coefficients, terms_sbuf, at = begun.coefficients, begun.terms_sbuf, begun.position
        if coefficients.all_sbuf is None:
            return
        factor_sbuf, of_batch_sbuf = coefficients.all_sbuf[:, at : at + 1], coefficients.neg_spread_sbuf
        neg_spread_sbuf = None if of_batch_sbuf is None else of_batch_sbuf[:, at : at + 1]
        if begun.slopes_sbuf is not None:
            nisa.scalar_tensor_tensor(
                dst=terms_sbuf,
                data=begun.slopes_sbuf,
                op0=nl.add,
                operand0=factor_sbuf,
                op1=nl.multiply,
                operand1=terms_sbuf,
            )
            if neg_spread_sbuf is not None:
                nisa.tensor_scalar(dst=terms_sbuf, data=terms_sbuf, op0=nl.add, operand0=neg_spread_sbuf)
            return
        self.products += 1
        if self.options.softcap is None and self.products % (2 if neg_spread_sbuf is None else 3) != 0:
            nisa.activation(dst=terms_sbuf, op=nl.copy, data=terms_sbuf, scale=factor_sbuf, bias=neg_spread_sbuf)
            return
        if neg_spread_sbuf is not None:
            nisa.tensor_scalar(
                dst=terms_sbuf,
                data=terms_sbuf,
                op0=nl.multiply,
                operand0=factor_sbuf,
                op1=nl.add,
                operand1=neg_spread_sbuf,
            )
            return
        nisa.tensor_tensor(
            dst=terms_sbuf,
            data1=terms_sbuf,
            data2=factor_sbuf.broadcast(1, terms_sbuf.shape[1]),
            op=nl.multiply,
            engine=nisa.engine.gpsimd,
        )


def backward_of_batches(
    launch: Launch, options: Options, upstream: Upstream, batches: list[RowBatch], grad_logits_hbm: nl.NkiTensor
) -> None:
    """Compute and store the gradient of this core's batches."""
    if batches:
        _Backward.make(launch, options, upstream, batches).run(grad_logits_hbm)
