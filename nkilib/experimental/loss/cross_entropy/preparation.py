# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The computation of a batch's coefficients, small tiles with one number per position, while the previous
batch streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.elements import vector_elements
from nkilib.core.rows.tiles import cast, float32_like, log_of_constant, scaled
from nkilib.experimental.loss.cross_entropy.class_factors import ClassFactors
from nkilib.experimental.loss.cross_entropy.coefficients import (
    ChunkCoefficients,
    Coefficients,
    EntropyCoefficients,
    TargetCoefficients,
    UniformCoefficients,
)
from nkilib.experimental.loss.cross_entropy.options import Launch, Options
from nkilib.experimental.loss.cross_entropy.position_terms import (
    TargetTerms,
    loaded_gradient,
    rest_terms,
    summed,
)
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
    """A source of the coefficients of batches. :meth:`prepared` must be called for the batches in their order."""

    def prepared(self, number: int, batch: Batch) -> Coefficients:
        """Return the coefficients of the core's batch with this number."""


def make_preparation(launch: Launch, options: Options, upstream: Upstream, factors: ClassFactors) -> Preparation:
    """Return the source of coefficients for a launch, after computing the constants that all batches of the core
    share.
    """
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
    """The source of coefficients for losses that all have the same upstream gradient."""

    upstream: UniformUpstream
    finder: TargetFinder
    log_scale_sbuf: nl.NkiTensor

    def prepared(self, number: int, batch: Batch) -> UniformCoefficients:
        bias_sbuf = negated_lse(batch.loaded(self.upstream.lse_hbm), self.log_scale_sbuf[0 : batch.rows, :])
        return UniformCoefficients(bias_sbuf, self.finder.find(batch, None).index_sbuf, self.upstream.scale)


@dataclass(frozen=True)
class _OfProbabilities:
    """The source of coefficients for targets that are class probabilities."""

    options: Options
    upstream: PositionUpstream
    factors: ClassFactors

    def prepared(self, number: int, batch: Batch) -> ChunkCoefficients:
        if self.upstream.target_weight_hbm is None:
            factor_sum_sbuf = self.factors.sums_of_positions(number)
        else:
            factor_sum_sbuf = batch.loaded(self.upstream.target_weight_hbm)
        softmax = SoftmaxTerms.load(self.upstream, batch)
        grad_loss_sbuf = loaded_gradient(batch, self.upstream.required_grad_loss_hbm, self.options)
        terms_sbuf = rest_terms(self.upstream, batch, softmax.lse_sbuf, grad_loss_sbuf, self.options)
        rest_sbuf = summed(scaled(grad_loss_sbuf, factor_sum_sbuf), terms_sbuf)
        entropy = _entropy_coefficients(self.upstream, batch, softmax, self.options)
        return ChunkCoefficients(softmax, softmax.normalized(rest_sbuf), rest_sbuf, grad_loss_sbuf, entropy)


@dataclass(frozen=True)
class _OfClasses:
    """The source of coefficients for targets that are classes.

    The sum of all class weights is a number, or float32 [rows, 1] if the kernel has summed them
    (``weight_sum_sbuf``).
    """

    options: Options
    upstream: PositionUpstream
    finder: TargetFinder
    class_weight_hbm: nl.NkiTensor | None
    weight_sum: float
    weight_sum_sbuf: nl.NkiTensor | None

    def prepared(self, number: int, batch: Batch) -> TargetCoefficients:
        softmax = SoftmaxTerms.load(self.upstream, batch)
        grad_loss_sbuf = loaded_gradient(batch, self.upstream.required_grad_loss_hbm, self.options)
        masks = TargetMasks.make(batch.rows, 1)
        elements = self.finder.find(batch, masks)
        local_sbuf = cast(masks.local_sbuf, nl.float32)
        weights_sbuf = None
        if self.class_weight_hbm is not None:
            weights_sbuf = float32_like(local_sbuf)
            nisa.dma_copy(dst=weights_sbuf, src=vector_elements(self.class_weight_hbm, elements.column_sbuf))
        terms = TargetTerms.make(
            self.options,
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
            _entropy_coefficients(self.upstream, batch, softmax, self.options),
            elements.index_sbuf,
            terms.own_sbuf,
            local_sbuf,
            weights_sbuf,
            self.options.softcap,
            self.options.scale,
        )

    def _weight_sum(self, batch: Batch) -> float | nl.NkiTensor:
        return self.weight_sum if self.weight_sum_sbuf is None else self.weight_sum_sbuf[0 : batch.rows, :]


def _entropy_coefficients(
    upstream: PositionUpstream, batch: Batch, softmax: SoftmaxTerms, options: Options
) -> EntropyCoefficients | None:
    if upstream.entropy_hbm is None or upstream.grad_entropy_hbm is None:
        return None
    gradient_sbuf = loaded_gradient(batch, upstream.grad_entropy_hbm, options)
    return EntropyCoefficients.make(softmax, batch.loaded(upstream.entropy_hbm), gradient_sbuf, options.scale)
