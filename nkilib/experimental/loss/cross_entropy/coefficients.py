# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The coefficients of the gradient of a batch, and the gradient at its targets.

Let z be the logits after cap and temperature, p their softmax, t the target, w the class weights and W
their sum, e the label smoothing, V the number of classes and s the factor of the squared log-sum-exp. With
the upstream gradients g of the loss, l of the log-sum-exp and q of the target's log-probability, let

    D = g * ((e / V) * W + 2 s lse) + l        A = D + g * (1 - e) * w[t] - q

The gradient of z is A * p - g * (e / V) * w, less A - D at the target. There A * p - (A - D) is computed as
(A - D) * (p - 1) + D * p, where the large terms of a confident target have cancelled, and D does not hide a
small p. If targets are probabilities y, W is the sum of the factors w y' of a position, with y' = (1 - e)
y + e / V; it enters D without e / V, the gradient is A * p - g * w * y', and A = D.

The gradient h of the entropy H adds -h p_k (log p_k + H), see :class:`EntropyCoefficients`. All of this is
the gradient of z. A temperature divides it: g, l, q and h have been divided by the temperature before they
are used here.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.moments import raise_infinite, raise_negligible
from nkilib.core.rows.psum import Piece
from nkilib.core.rows.tiles import cast, difference, float32_like, product, scaled
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, squared, through_cap
from nkilib.experimental.loss.cross_entropy.upstream import SoftmaxTerms
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class UniformCoefficients:
    """The coefficients if all losses have the same upstream gradient, ``scale``, and no options. One activation
    computes the gradient, except at the target: exp(z + bias) is scale * softmax.

    Attributes:
        bias_sbuf: log(scale) - lse, float32 [rows, 1].
        index_sbuf: the indices of the target elements, int32 [rows, 1].
        scale: the upstream gradient of every loss.
    """

    bias_sbuf: nl.NkiTensor
    index_sbuf: nl.NkiTensor
    scale: float

    def at_target(self, logit_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        """Return scale * (p - 1), where p is the softmax at the target, in float32 and then rounded to ``dtype``.

        If p were rounded before the subtraction, a p near 1 would lose all digits.
        """
        scaled_p_sbuf = float32_like(logit_sbuf)
        nisa.activation(dst=scaled_p_sbuf, op=nl.exp, data=logit_sbuf, bias=self.bias_sbuf)
        gradient_sbuf = nl.ndarray(logit_sbuf.shape, dtype=dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=gradient_sbuf, data=scaled_p_sbuf, op0=nl.subtract, operand0=self.scale)
        return gradient_sbuf


@dataclass(frozen=True)
class EntropyCoefficients:
    """The terms that the gradient h of the entropy H adds to the coefficient A, so that A * softmax includes its
    gradient.

    The added term is -h (log p + H) = slope * (x - center) + offset, where the scores x times the scale are z.
    The center is the maximum of x, or lse / scale if the maximum is not available, so that large logits cancel
    first. All tiles are float32 [rows, 1].

    Attributes:
        neg_center_sbuf: minus the center.
        slope_sbuf: -h * scale.
        offset_sbuf: h * (lse - scale * center - H).
        scale: the factor by which x is multiplied to give z.
    """

    neg_center_sbuf: nl.NkiTensor
    slope_sbuf: nl.NkiTensor
    offset_sbuf: nl.NkiTensor
    scale: float

    @classmethod
    def make(
        cls, softmax: SoftmaxTerms, entropy_sbuf: nl.NkiTensor, grad_sbuf: nl.NkiTensor, scale: float
    ) -> EntropyCoefficients:
        """Compute the coefficients from the entropy H, ``entropy_sbuf``, and its upstream gradient h, ``grad_sbuf``."""
        offset_sbuf = scaled(entropy_sbuf, -1.0)
        if softmax.log_sum_sbuf is not None:
            offset_sbuf = difference(softmax.log_sum_sbuf, entropy_sbuf)
        neg_center_sbuf = softmax.bias_sbuf if scale == 1.0 else scaled(softmax.bias_sbuf, 1.0 / scale)
        return cls(neg_center_sbuf, scaled(grad_sbuf, -scale), product(offset_sbuf, grad_sbuf), scale)

    def slopes(self, dst_sbuf: nl.NkiTensor, scores_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
        """Compute factor * (x - center) of scores x in float32; no x may be -inf."""
        nisa.tensor_scalar(
            dst=dst_sbuf,
            data=scores_sbuf,
            op0=nl.add,
            operand0=self.neg_center_sbuf,
            op1=nl.multiply,
            operand1=factor_sbuf,
        )


@dataclass(frozen=True)
class ChunkCoefficients:
    """The coefficients that apply to all classes of a position: float32 tiles [rows, 1], None for 0.

    The module says what A, D, g, e and V are.

    Attributes:
        softmax: the terms that turn exponentials into the softmax.
        all_sbuf: A, times ``SoftmaxTerms.inverse_sbuf``.
        rest_sbuf: D.
        spread_sbuf: the multiplier of the class factors, see :meth:`apply`: g * e / V, or g for class
            probabilities.
        entropy: the terms that are added to A for each class; None without a gradient of the entropy.
    """

    softmax: SoftmaxTerms
    all_sbuf: nl.NkiTensor
    rest_sbuf: nl.NkiTensor | None
    spread_sbuf: nl.NkiTensor | None
    entropy: EntropyCoefficients | None

    @property
    def bias_sbuf(self) -> nl.NkiTensor:
        """The bias of the exponentials exp(z + bias), from which the softmax is computed."""
        return self.softmax.bias_sbuf

    def apply(self, dst_sbuf: nl.NkiTensor, exponentials_sbuf: nl.NkiTensor, factors_sbuf: nl.NkiTensor | None) -> None:
        """Compute the gradient A * softmax - spread * factors of a chunk, see :class:`ChunkCoefficients`.

        The factors are those of :class:`.class_factors.ClassFactors`; None means 1. The exponentials may be
        overwritten.
        """
        if self.spread_sbuf is None:
            nisa.tensor_scalar(dst=dst_sbuf, data=exponentials_sbuf, op0=nl.multiply, operand0=self.all_sbuf)
        elif factors_sbuf is None:
            nisa.tensor_scalar(
                dst=dst_sbuf,
                data=exponentials_sbuf,
                op0=nl.multiply,
                operand0=self.all_sbuf,
                op1=nl.subtract,
                operand1=self.spread_sbuf,
            )
        else:
            nisa.tensor_scalar(dst=exponentials_sbuf, data=exponentials_sbuf, op0=nl.multiply, operand0=self.all_sbuf)
            self._less_spread(dst_sbuf, exponentials_sbuf, factors_sbuf)

    def apply_with_entropy(
        self,
        entropy: EntropyCoefficients,
        dst_sbuf: nl.NkiTensor,
        scores_sbuf: nl.NkiTensor,
        products_sbuf: nl.NkiTensor,
        pieces: list[Piece],
        factors_sbuf: nl.NkiTensor | None,
    ) -> None:
        """Compute the result of :meth:`apply` plus the gradient of the entropy.

        Args:
            entropy: the entropy coefficients of this object.
            dst_sbuf: the result, [rows, columns]; may be the tile of the scores.
            scores_sbuf: the scores, which times the scale are z. None of them may be -inf, except in float16, where
                the scores are overwritten.
            products_sbuf: float32 scratch [rows, columns], overwritten.
            pieces: the pieces of the chunk, with PSUM tiles for their exponentials.
            factors_sbuf: the class factors, [rows, columns], or None for 1.
        """
        slope_sbuf, may_be_infinite = self.softmax.normalized(entropy.slope_sbuf), scores_sbuf.dtype == nl.float16
        if not may_be_infinite:
            entropy.slopes(products_sbuf, scores_sbuf, slope_sbuf)
        all_sbuf = float32_like(self.all_sbuf)
        offset_sbuf = self.softmax.normalized(entropy.offset_sbuf)
        nisa.tensor_tensor(dst=all_sbuf, data1=self.all_sbuf, data2=offset_sbuf, op=nl.add)
        for piece in pieces:
            nisa.activation(
                dst=piece.tile_psum, op=nl.exp, data=piece.of(scores_sbuf), bias=self.bias_sbuf, scale=entropy.scale
            )
            if may_be_infinite:
                raise_infinite(piece.of(scores_sbuf))
                entropy.slopes(piece.of(products_sbuf), piece.of(scores_sbuf), slope_sbuf)
            nisa.scalar_tensor_tensor(
                dst=piece.of(dst_sbuf if self.spread_sbuf is None else products_sbuf),
                data=piece.of(products_sbuf),
                op0=nl.add,
                operand0=all_sbuf,
                op1=nl.multiply,
                operand1=piece.tile_psum,
            )
        if self.spread_sbuf is not None:
            self._less_spread(dst_sbuf, products_sbuf, factors_sbuf)

    def _less_spread(
        self, dst_sbuf: nl.NkiTensor, products_sbuf: nl.NkiTensor, factors_sbuf: nl.NkiTensor | None
    ) -> None:
        """Write products - spread * factors to ``dst_sbuf``."""
        if factors_sbuf is None:
            nisa.tensor_scalar(dst=dst_sbuf, data=products_sbuf, op0=nl.subtract, operand0=self.spread_sbuf)
            return
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=factors_sbuf,
            op0=nl.multiply,
            operand0=self.spread_sbuf,
            op1=nl.subtract,
            operand1=products_sbuf,
            reverse1=True,
        )


@dataclass(frozen=True)
class TargetCoefficients(ChunkCoefficients):
    """The coefficients of positions whose targets are classes. Besides the inherited ones it has those of the
    targets: tiles [rows, 1].

    Attributes:
        index_sbuf: the indices of the target elements, int32.
        own_sbuf: A - D, see the module.
        local_sbuf: 1.0, or 0.0 for a target that is ignored or whose class is in another shard.
        weights_sbuf: the class weights of the columns that the indices point to; None without class weights.
        softcap: the cap of the logits, or None.
        scale: the factor by which scores are multiplied to give z.
    """

    index_sbuf: nl.NkiTensor
    own_sbuf: nl.NkiTensor
    local_sbuf: nl.NkiTensor
    weights_sbuf: nl.NkiTensor | None
    softcap: float | None
    scale: float

    def at_target(self, logit_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        """Return the gradient at the target, computed in float32 and rounded to ``dtype`` once.

        It is (A - D) * (p - local) + D * p - spread * w[t], with the softmax p at the target and ``local_sbuf``.
        For a target that is ignored or in another shard, local is 0 and the value equals the one that the chunk has
        stored there. The gradient of the entropy is added to D.
        """
        exponential_sbuf, score_sbuf = float32_like(logit_sbuf), logit_sbuf
        if self.softcap is not None:
            score_sbuf = float32_like(logit_sbuf)
            hyperbolic_tangents(score_sbuf, logit_sbuf, self.softcap)
        elif self.entropy is not None:
            if score_sbuf.dtype == nl.float16:  # which has no number that would be far enough below
                score_sbuf = cast(score_sbuf, nl.float32)
            raise_negligible(score_sbuf, self.entropy.neg_center_sbuf, self.scale)
        nisa.activation(dst=exponential_sbuf, op=nl.exp, data=score_sbuf, bias=self.bias_sbuf, scale=self.scale)
        p_sbuf = self.softmax.normalized(exponential_sbuf)
        sum_sbuf = float32_like(logit_sbuf)
        nisa.scalar_tensor_tensor(
            dst=sum_sbuf,
            data=p_sbuf,
            op0=nl.subtract,
            operand0=self.local_sbuf,
            op1=nl.multiply,
            operand1=self.own_sbuf,
        )
        rest_sbuf = self._rest_at_target(score_sbuf)
        if rest_sbuf is not None:
            nisa.scalar_tensor_tensor(
                dst=sum_sbuf, data=rest_sbuf, op0=nl.multiply, operand0=p_sbuf, op1=nl.add, operand1=sum_sbuf
            )
        if self.spread_sbuf is not None:
            nisa.scalar_tensor_tensor(
                dst=sum_sbuf,
                data=self.spread_sbuf,
                op0=nl.multiply,
                operand0=1.0 if self.weights_sbuf is None else self.weights_sbuf,
                op1=nl.subtract,
                operand1=sum_sbuf,
                reverse1=True,
            )
        gradient_sbuf = nl.ndarray(logit_sbuf.shape, dtype=dtype, buffer=nl.sbuf)
        if self.softcap is None:
            nisa.tensor_copy(dst=gradient_sbuf, src=sum_sbuf)
        else:
            squared(score_sbuf)
            through_cap(gradient_sbuf, sum_sbuf, score_sbuf)
        return gradient_sbuf

    def _rest_at_target(self, score_sbuf: nl.NkiTensor) -> nl.NkiTensor | None:
        """Return D plus the term of the entropy's gradient at the target; None if both are 0."""
        if self.entropy is None:
            return self.rest_sbuf
        rest_sbuf = float32_like(score_sbuf)
        self.entropy.slopes(rest_sbuf, score_sbuf, self.entropy.slope_sbuf)
        nisa.tensor_tensor(dst=rest_sbuf, data1=rest_sbuf, data2=self.entropy.offset_sbuf, op=nl.add)
        if self.rest_sbuf is not None:
            nisa.tensor_tensor(dst=rest_sbuf, data1=rest_sbuf, data2=self.rest_sbuf, op=nl.add)
        return rest_sbuf


# Of one batch: with targets that all count alike; of class targets; of class probabilities.
Coefficients = UniformCoefficients | TargetCoefficients | ChunkCoefficients
