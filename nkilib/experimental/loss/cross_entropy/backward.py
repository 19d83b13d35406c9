# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of cross-entropy on one core (:func:`backward_of_core`), with one exponential per logit.

Chunks of logits are replaced by their gradients and stored. The gradient at the targets is computed separately, and
scattered over the stored values. The coefficients of a batch (:mod:`.coefficients`) are tiles with one value per
position; they are computed while the previous batch is processed (:class:`_Preparation`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nkilib.core.psum import PsumRing
from nkilib.core.rows.batches import LOADED_ALONE, Batch, GroupedLoads
from nkilib.core.rows.elements import row_elements, vector_elements
from nkilib.core.rows.moments import raise_negligible
from nkilib.core.rows.sbuf import TileRing
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.stream import Chunk, Stream
from nkilib.core.rows.tiles import cast, float32_like, log_of_constant, scaled
from nkilib.experimental.loss.cross_entropy.coefficients import (
    ChunkCoefficients,
    Coefficients,
    EntropyCoefficients,
    SoftmaxTerms,
    TargetCoefficients,
    TargetTerms,
    UniformCoefficients,
    loaded_gradient,
    negated_lse,
    rest_terms,
    summed,
)
from nkilib.experimental.loss.cross_entropy.launch import Launch, Options, PositionUpstream, UniformUpstream, Upstream
from nkilib.experimental.loss.cross_entropy.layouts.backward import backward_of_batches
from nkilib.experimental.loss.cross_entropy.layouts.batches import backward_batches
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, squared, through_cap
from nkilib.experimental.loss.cross_entropy.targets import (
    ClassFactors,
    FactorRings,
    FactorSums,
    TargetFinder,
    TargetMasks,
)
from nkilib.nki import nisa, nl


class _Preparation(Protocol):
    """A source of the coefficients of batches. :meth:`prepared` must be called for the batches in order."""

    def prepared(self, number: int, batch: Batch) -> Coefficients:
        """Return the coefficients of ``batch``, which has index ``number`` among the batches of the core."""


def _entropy_coefficients(
    upstream: PositionUpstream, batch: Batch, softmax: SoftmaxTerms, slope: Scale
) -> EntropyCoefficients | None:
    if upstream.entropy_hbm is None or upstream.grad_entropy_hbm is None:
        return None
    gradient_sbuf = loaded_gradient(batch, upstream.grad_entropy_hbm, slope)
    return EntropyCoefficients.make(softmax, batch.loaded(upstream.entropy_hbm), gradient_sbuf)


@dataclass(frozen=True)
class _Uniform:
    """The source of coefficients if all losses have the same upstream gradient."""

    upstream: UniformUpstream
    finder: TargetFinder
    log_scale_sbuf: nl.NkiTensor

    def prepared(self, number: int, batch: Batch) -> UniformCoefficients:
        bias_sbuf = negated_lse(batch.loaded(self.upstream.lse_hbm), self.log_scale_sbuf[0 : batch.rows, :])
        return UniformCoefficients(bias_sbuf, self.finder.find(batch, None).index_sbuf, self.upstream.scale)


@dataclass(frozen=True)
class _OfProbabilities:
    """The source of coefficients for targets that are class probabilities."""

    launch: Launch
    options: Options
    upstream: PositionUpstream
    factors: ClassFactors

    def prepared(self, number: int, batch: Batch) -> ChunkCoefficients:
        if self.upstream.target_weight_hbm is None:
            factor_sum_sbuf = self.factors.sums_of_positions(number)
        else:
            factor_sum_sbuf = batch.loaded(self.upstream.target_weight_hbm)
        temperatures = self.launch.temperatures(batch, (batch.rows, 1))
        softmax = SoftmaxTerms.load(self.upstream, batch, self.options.scale_of(temperatures))
        slope = self.options.slope_of(temperatures)
        grad_loss_sbuf = loaded_gradient(batch, self.upstream.required_grad_loss_hbm, slope)
        terms_sbuf = rest_terms(self.upstream, batch, softmax.lse_sbuf, grad_loss_sbuf, slope, self.options)
        rest_sbuf = summed(scaled(grad_loss_sbuf, factor_sum_sbuf), terms_sbuf)
        entropy = _entropy_coefficients(self.upstream, batch, softmax, slope)
        return ChunkCoefficients(softmax, softmax.normalized(rest_sbuf), rest_sbuf, grad_loss_sbuf, entropy)


@dataclass(frozen=True)
class _OfClasses:
    """The source of coefficients for targets that are classes.

    The sum of all class weights is the number ``weight_sum``, or ``weight_sum_sbuf``, float32 [rows, 1], if the kernel
    has computed the sum.
    """

    launch: Launch
    options: Options
    upstream: PositionUpstream
    finder: TargetFinder
    weight_sum: float
    weight_sum_sbuf: nl.NkiTensor | None

    def prepared(self, number: int, batch: Batch) -> TargetCoefficients:
        temperatures = self.launch.temperatures(batch, (batch.rows, 1))
        softmax = SoftmaxTerms.load(self.upstream, batch, self.options.scale_of(temperatures))
        slope = self.options.slope_of(temperatures)
        grad_loss_sbuf = loaded_gradient(batch, self.upstream.required_grad_loss_hbm, slope)
        masks = TargetMasks.make(batch.rows, 1)
        elements = self.finder.find(batch, masks)
        local_sbuf = cast(masks.local_sbuf, nl.float32)
        weights_sbuf = None
        if self.launch.class_weight_hbm is not None:
            weights_sbuf = float32_like(local_sbuf)
            nisa.dma_copy(dst=weights_sbuf, src=vector_elements(self.launch.class_weight_hbm, elements.column_sbuf))
        terms = TargetTerms.make(
            self.options,
            slope,
            self.upstream,
            batch,
            softmax.lse_sbuf,
            grad_loss_sbuf,
            masks.valid_sbuf,
            weights_sbuf,
            self._weight_sum(batch),
        )
        all_sbuf = terms.own_sbuf
        if terms.rest_sbuf is not None:
            all_sbuf = float32_like(terms.own_sbuf)
            nisa.tensor_tensor(dst=all_sbuf, data1=terms.own_sbuf, data2=terms.rest_sbuf, op=nl.add)
        return TargetCoefficients(
            softmax,
            softmax.normalized(all_sbuf),
            terms.rest_sbuf,
            terms.spread_sbuf,
            _entropy_coefficients(self.upstream, batch, softmax, slope),
            elements.index_sbuf,
            terms.own_sbuf,
            local_sbuf,
            weights_sbuf,
            self.options.softcap,
        )

    def _weight_sum(self, batch: Batch) -> float | nl.NkiTensor:
        return self.weight_sum if self.weight_sum_sbuf is None else self.weight_sum_sbuf[0 : batch.rows, :]


def _preparation(launch: Launch, options: Options, upstream: Upstream, factors: ClassFactors) -> _Preparation:
    """Return the source of coefficients for a launch; constants that all batches share are computed here."""
    batch = factors.batches[0]
    if isinstance(upstream, PositionUpstream) and options.has_probabilities:
        return _OfProbabilities(launch, options, upstream, factors)
    finder = TargetFinder.make(launch.targets_hbm, batch.rows, batch.cores, options)
    if isinstance(upstream, UniformUpstream):
        return _Uniform(upstream, finder, log_of_constant(upstream.scale, batch.rows))
    weight_sum_sbuf = factors.sums_of_classes()
    weight_sum = float(options.classes.total) if upstream.weight_sum is None else upstream.weight_sum
    return _OfClasses(launch, options, upstream, finder, weight_sum, weight_sum_sbuf)


def _needed_sums(options: Options, upstream: Upstream) -> FactorSums:
    if isinstance(upstream, UniformUpstream):
        return FactorSums.NOTHING
    if options.has_probabilities:
        return FactorSums.POSITIONS if upstream.target_weight_hbm is None else FactorSums.NOTHING
    return FactorSums.CLASSES if options.needs_class_weights and upstream.weight_sum is None else FactorSums.NOTHING


@dataclass(frozen=True)
class _GatheredTarget:
    """The logits at the targets of a batch, gathered before a store may overwrite them.

    Attributes:
        coefficients: the coefficients of the batch.
        logit_sbuf: the gathered logits, [rows, 1].
        gather: the DMA instruction of the gather.
    """

    coefficients: UniformCoefficients | TargetCoefficients
    logit_sbuf: nl.NkiTensor
    gather: nisa.NkiInstruction


@dataclass
class _BatchState:
    """A batch that is being processed, until the gradient at its targets is scattered.

    Attributes:
        batch: the positions of the batch.
        coefficients: the coefficients of the batch, computed before its first chunk.
        stores: the DMA instructions that store the gradients of the batch.
        target: the target logits, gathered during the first chunk; None for class probabilities.
    """

    batch: Batch
    coefficients: Coefficients
    stores: list[nisa.NkiInstruction] = field(default_factory=list)
    target: _GatheredTarget | None = None


@dataclass(frozen=True)
class _Backward:
    """The loop of a core over its chunks.

    Attributes:
        launch, options: the arguments and the options of the kernel.
        logits: the stream of chunks of logits.
        factors: the stream of class weights and class probabilities.
        exponentials: scratch tiles for exponentials.
        squares: scratch tiles for the tangents tanh(x / c) of a cap c, which are then squared in place.
        pieces: PSUM tiles for the exponentials of pieces of a chunk, which the gradient of the entropy needs; None
            without that gradient.
        preparation: computes the coefficients of a batch.
    """

    launch: Launch
    options: Options
    logits: Stream[Batch]
    factors: ClassFactors
    exponentials: TileRing
    squares: TileRing
    pieces: PsumRing | None
    preparation: _Preparation

    @classmethod
    def make(cls, launch: Launch, options: Options, upstream: Upstream, batches: list[Batch]) -> _Backward:
        sbuf = launch.divided(options.backward_plan, batches)
        of_exponentials, squares = sbuf.ring(not options.is_plain), sbuf.ring(options.softcap is not None)
        rings = FactorRings.make(sbuf, options)
        logits = Stream.make(launch.logits_hbm, batches, sbuf.buffers())
        factors = ClassFactors.make(launch, options, logits, rings, _needed_sums(options, upstream))
        has_entropy = isinstance(upstream, PositionUpstream) and upstream.grad_entropy_hbm is not None
        pieces = PsumRing.make(sbuf.rows, sbuf.chunk_size) if has_entropy else None
        preparation = _preparation(launch, options, upstream, factors)
        return cls(launch, options, logits, factors, of_exponentials, squares, pieces, preparation)

    def run(self, grad_logits_hbm: nl.NkiTensor) -> None:
        """Process all chunks, and store their gradients.

        The coefficients of a batch are computed while the previous batch is processed: during its first chunk, or
        during its last chunk if the kernel sums class probabilities.
        """
        chunks, batches = self.logits.num_chunks, self.logits.batches
        # Class probabilities that are read twice, first for their sum: the next batch's, when this one's are all done.
        early = chunks - 1 if self.factors.sums is FactorSums.POSITIONS else 0
        is_gathered = self.factors.sums is FactorSums.POSITIONS or self.launch.class_weight_hbm is not None
        # With an entropy Vector is the busiest engine, and has no time to transpose values of a group.
        vectors = GroupedLoads(batches, alone=LOADED_ALONE if self.pieces is None else len(batches))
        coefficients = self.preparation.prepared(0, vectors.batch(0))
        previous = None
        for number, batch in enumerate(batches):
            state = _BatchState(batch, coefficients)
            for load in range(number * chunks, (number + 1) * chunks):
                chunk, chunk_sbuf = self.logits.chunk(load), self.logits.loaded(load)
                if chunk.number == 0:
                    vectors.request_after(number)
                is_last_before = chunk.number == early and number + 1 < len(batches)
                # What is on chip already is prepared before Vector waits for Scalar with this chunk. Class weights are
                # gathered.
                is_ready = vectors.is_grouped(number + 1) and not is_gathered
                if is_last_before and is_ready:
                    coefficients = self.preparation.prepared(number + 1, vectors.batch(number + 1))
                self._take_gradient(state.coefficients, chunk, chunk_sbuf)
                if chunk.number == 0:
                    state.target = self._gathered(state)
                if is_last_before and not is_ready:
                    coefficients = self.preparation.prepared(number + 1, vectors.batch(number + 1))
                store = nisa.dma_copy(dst=chunk.of(grad_logits_hbm), src=chunk_sbuf)
                state.stores.append(store)
                if state.target is not None:
                    # In place it overwrites the target's logit.
                    store.depends_on(state.target.gather, kind=nisa.dependency.runtime)
                # Later than its last store, so that the scatter need not wait for it, nor Scalar for the gather.
                if previous is not None and chunk.number == min(1, chunks - 1):
                    self._scatter(previous, grad_logits_hbm)
            previous = state
        if previous is not None:
            self._scatter(previous, grad_logits_hbm)

    def _take_gradient(self, coefficients: Coefficients, chunk: Chunk[Batch], chunk_sbuf: nl.NkiTensor) -> None:
        """Replace a chunk of logits by its gradient, computed in float32 and rounded once."""
        if isinstance(coefficients, UniformCoefficients):
            nisa.activation(dst=chunk_sbuf, op=nl.exp, data=chunk_sbuf, bias=coefficients.bias_sbuf)
            return
        softcap, softmax = self.options.softcap, coefficients.softmax
        factors_sbuf = self.factors.loaded(chunk.load)
        gradient_sbuf = scores_sbuf = chunk_sbuf
        exponentials_sbuf = self.exponentials.tile(chunk.load, chunk_sbuf)
        if softcap is not None:
            gradient_sbuf, scores_sbuf = exponentials_sbuf, self.squares.tile(chunk.load, chunk_sbuf)
            hyperbolic_tangents(scores_sbuf, chunk_sbuf, softcap)
        entropy = coefficients.entropy
        if entropy is None or self.pieces is None:
            softmax.take_exponentials(exponentials_sbuf, scores_sbuf)
            coefficients.apply(gradient_sbuf, exponentials_sbuf, factors_sbuf)
        else:
            if softcap is None:
                raise_negligible(scores_sbuf, entropy.neg_center_sbuf, softmax.scale.least)
            pieces = self.pieces.pieces(chunk.load, chunk_sbuf)
            coefficients.apply_with_entropy(
                entropy, gradient_sbuf, scores_sbuf, exponentials_sbuf, pieces, factors_sbuf
            )
        if softcap is not None:
            squared(scores_sbuf)
            through_cap(chunk_sbuf, gradient_sbuf, scores_sbuf)

    def _gathered(self, state: _BatchState) -> _GatheredTarget | None:
        coefficients = state.coefficients
        if not isinstance(coefficients, UniformCoefficients | TargetCoefficients):
            return None
        logit_sbuf = nl.ndarray((state.batch.rows, 1), dtype=self.launch.dtype, buffer=nl.sbuf)
        elements_hbm = row_elements(self.launch.logits_hbm, coefficients.index_sbuf, state.batch)
        return _GatheredTarget(coefficients, logit_sbuf, nisa.dma_copy(dst=logit_sbuf, src=elements_hbm))

    def _scatter(self, state: _BatchState, grad_logits_hbm: nl.NkiTensor) -> None:
        """Scatter the gradient at the targets of a batch over the values that the batch has stored."""
        if state.target is None:
            return
        coefficients = state.target.coefficients
        gradient_sbuf = coefficients.at_target(state.target.logit_sbuf, self.launch.dtype)
        elements_hbm = row_elements(grad_logits_hbm, coefficients.index_sbuf, state.batch)
        scatter = nisa.dma_copy(dst=elements_hbm, src=gradient_sbuf)
        for store in state.stores:
            scatter.depends_on(store, kind=nisa.dependency.runtime)


def backward_of_core(launch: Launch, options: Options, upstream: Upstream, inplace: bool) -> nl.NkiTensor:
    """Compute the gradient of this core's positions, in place or in a new tensor.

    Returns:
        The gradient of all positions, [N, V]: the logits if ``inplace``, else a new tensor of the launch's ``dtype``.
    """
    grad_logits_hbm = launch.logits_hbm
    if not inplace:
        shape = launch.logits_hbm.shape
        grad_logits_hbm = nl.ndarray(shape, dtype=launch.dtype, buffer=nl.shared_hbm, name="grad_hbm")
    laid_out = backward_batches(launch, options, upstream)
    if laid_out is not None:
        backward_of_batches(launch, options, upstream, laid_out, grad_logits_hbm)
        return grad_logits_hbm
    batches = launch.batches()
    if batches:
        _Backward.make(launch, options, upstream, batches).run(grad_logits_hbm)
    return grad_logits_hbm
