"""Coefficients of a batch, made while the batch before it streams: small tiles, a number a position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.tiles import cast, float32_like, log_of_constant, scaled, selected
from nkilib.experimental.loss.cross_entropy.class_factors import ClassFactors
from nkilib.experimental.loss.cross_entropy.coefficients import (
    ChunkCoefficients,
    Coefficients,
    EntropyCoefficients,
    TargetCoefficients,
    UniformCoefficients,
)
from nkilib.experimental.loss.cross_entropy.options import Launch, Options
from nkilib.experimental.loss.cross_entropy.targets import TargetFinder, TargetMasks
from nkilib.experimental.loss.cross_entropy.upstream import (
    PositionUpstream,
    SoftmaxTerms,
    UniformUpstream,
    Upstream,
    negated_lse,
)
from nkilib.nki import nisa, nl


class Preparation(Protocol):
    """Makes the coefficients of batches; to be asked for those of the first batch, of the second, ..."""

    def prepared(self, number: int, batch: Batch) -> Coefficients:
        """Those of the core's batch of that number."""


def make_preparation(launch: Launch, options: Options, upstream: Upstream, factors: ClassFactors) -> Preparation:
    """The one for a launch; makes the constants that all batches of the core share."""
    batch = factors.batches[0]
    if isinstance(upstream, PositionUpstream) and options.has_probabilities:
        return _OfProbabilities(options, upstream, factors)
    finder = TargetFinder.make(launch.targets_hbm, batch.rows, batch.cores, options)
    if isinstance(upstream, UniformUpstream):
        return _Uniform(upstream, finder, log_of_constant(upstream.scale, batch.rows))
    weight_sum_sbuf = factors.sums_of_classes()
    weight_sum = float(options.classes.total) if upstream.weight_sum is None else upstream.weight_sum
    return _OfClasses(options, upstream, finder, launch.class_weight_hbm, weight_sum, weight_sum_sbuf)


@dataclass(frozen=True)
class _Uniform:
    """All losses have the same gradient."""

    upstream: UniformUpstream
    finder: TargetFinder
    log_scale_sbuf: nl.NkiTensor

    def prepared(self, number: int, batch: Batch) -> UniformCoefficients:
        bias_sbuf = negated_lse(batch.loaded(self.upstream.lse_hbm), self.log_scale_sbuf[0 : batch.rows, :])
        return UniformCoefficients(bias_sbuf, self.finder.find(batch, None).index_sbuf, self.upstream.scale)


@dataclass(frozen=True)
class _OfProbabilities:
    """Targets are class probabilities, whose factors sum to W in each position."""

    options: Options
    upstream: PositionUpstream
    factors: ClassFactors

    def prepared(self, number: int, batch: Batch) -> ChunkCoefficients:
        if self.upstream.target_weight_hbm is None:
            factor_sum_sbuf = self.factors.sums_of_positions(number)
        else:
            factor_sum_sbuf = batch.loaded(self.upstream.target_weight_hbm)
        softmax = SoftmaxTerms.load(self.upstream, batch)
        grad_loss_sbuf = _loaded_gradient(batch, self.upstream.grad_loss_hbm, self.options)
        terms_sbuf = _rest_terms(self.upstream, batch, softmax.lse_sbuf, grad_loss_sbuf, self.options)
        rest_sbuf = _summed(scaled(grad_loss_sbuf, factor_sum_sbuf), terms_sbuf)
        entropy = _entropy_coefficients(self.upstream, batch, softmax, self.options)
        return ChunkCoefficients(softmax, softmax.normalized(rest_sbuf), rest_sbuf, grad_loss_sbuf, entropy)


@dataclass(frozen=True)
class _OfClasses:
    """Targets are classes, whose weights sum to W: a number, or float32 [rows, 1] where it was summed here."""

    options: Options
    upstream: PositionUpstream
    finder: TargetFinder
    class_weight_hbm: nl.NkiTensor | None
    weight_sum: float
    weight_sum_sbuf: nl.NkiTensor | None

    def prepared(self, number: int, batch: Batch) -> TargetCoefficients:
        softmax = SoftmaxTerms.load(self.upstream, batch)
        given_sbuf = _loaded_gradient(batch, self.upstream.grad_loss_hbm, self.options)
        masks = TargetMasks.make(batch.rows, 1)
        elements = self.finder.find(batch, masks)
        held_sbuf = cast(masks.held_sbuf, nl.float32)
        weights_sbuf = None
        if self.class_weight_hbm is not None:
            weights_sbuf = float32_like(held_sbuf)
            nisa.dma_copy(dst=weights_sbuf, src=vector_elements(self.class_weight_hbm, elements.column_sbuf))
        grad_loss_sbuf = selected(given_sbuf, masks.valid_sbuf)
        spread_sbuf = rest_sbuf = None
        if self.options.spread != 0.0:
            spread_sbuf = scaled(grad_loss_sbuf, self.options.spread)
            rest_sbuf = scaled(spread_sbuf, self._weight_sum(batch))
        terms_sbuf = _rest_terms(self.upstream, batch, softmax.lse_sbuf, grad_loss_sbuf, self.options)
        if rest_sbuf is None and terms_sbuf:
            rest_sbuf, *terms_sbuf = terms_sbuf
        all_sbuf = own_sbuf = self._own(batch, grad_loss_sbuf, weights_sbuf, masks.valid_sbuf)
        if rest_sbuf is not None:
            rest_sbuf = _summed(rest_sbuf, terms_sbuf)
            all_sbuf = float32_like(own_sbuf)
            nisa.tensor_tensor(dst=all_sbuf, data1=own_sbuf, data2=rest_sbuf, op=nl.add)
        return TargetCoefficients(
            softmax,
            softmax.normalized(all_sbuf),
            rest_sbuf,
            spread_sbuf,
            _entropy_coefficients(self.upstream, batch, softmax, self.options),
            elements.index_sbuf,
            own_sbuf,
            held_sbuf,
            weights_sbuf,
            self.options.softcap,
            self.options.scale,
        )

    def _weight_sum(self, batch: Batch) -> float | nl.NkiTensor:
        return self.weight_sum if self.weight_sum_sbuf is None else self.weight_sum_sbuf[0 : batch.rows, :]

    def _own(
        self, batch: Batch, grad_loss_sbuf: nl.NkiTensor, weights_sbuf: nl.NkiTensor | None, valid_sbuf: nl.NkiTensor
    ) -> nl.NkiTensor:
        """A - D."""
        own_sbuf = scaled(grad_loss_sbuf, self.options.kept)
        if self.upstream.target_weight_hbm is not None:
            weights_sbuf = batch.loaded(self.upstream.target_weight_hbm)
        if weights_sbuf is not None:
            # An ignored position has the weight of some class, which may be infinite.
            nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=selected(weights_sbuf, valid_sbuf), op=nl.multiply)
        if self.upstream.grad_logprob_hbm is not None:
            given_sbuf = _loaded_gradient(batch, self.upstream.grad_logprob_hbm, self.options)
            grad_logprob_sbuf = selected(given_sbuf, valid_sbuf)
            nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=grad_logprob_sbuf, op=nl.subtract)
        return own_sbuf


def _rest_terms(
    upstream: PositionUpstream, batch: Batch, lse_sbuf: nl.NkiTensor, grad_loss_sbuf: nl.NkiTensor, options: Options
) -> list[nl.NkiTensor]:
    """What is added up to D, but for what class factors add to it."""
    terms_sbuf = []
    if options.square != 0.0:
        square_sbuf = float32_like(lse_sbuf)
        nisa.scalar_tensor_tensor(
            dst=square_sbuf,
            data=grad_loss_sbuf,  # first, so that an ignored position stays 0 however large its lse is
            op0=nl.multiply,
            operand0=2.0 * options.square,
            op1=nl.multiply,
            operand1=lse_sbuf,
        )
        terms_sbuf.append(square_sbuf)
    if upstream.grad_lse_hbm is not None:
        terms_sbuf.append(_loaded_gradient(batch, upstream.grad_lse_hbm, options))
    return terms_sbuf


def _loaded_gradient(batch: Batch, gradient_hbm: nl.NkiTensor, options: Options) -> nl.NkiTensor:
    """An upstream gradient of the rows, over the temperature: times dz, it is the gradient of the logits."""
    gradient_sbuf = batch.loaded(gradient_hbm)
    return gradient_sbuf if options.temperature == 1.0 else scaled(gradient_sbuf, 1.0 / options.temperature)


def _entropy_coefficients(
    upstream: PositionUpstream, batch: Batch, softmax: SoftmaxTerms, options: Options
) -> EntropyCoefficients | None:
    if upstream.entropy_hbm is None or upstream.grad_entropy_hbm is None:
        return None
    gradient_sbuf = _loaded_gradient(batch, upstream.grad_entropy_hbm, options)
    return EntropyCoefficients.make(softmax, batch.loaded(upstream.entropy_hbm), gradient_sbuf, options.scale)


def _summed(first_sbuf: nl.NkiTensor, others_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
    """The sum of all of them, in place of the first."""
    for other_sbuf in others_sbuf:
        nisa.tensor_tensor(dst=first_sbuf, data1=first_sbuf, data2=other_sbuf, op=nl.add)
    return first_sbuf
