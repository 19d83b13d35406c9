# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The coefficients that turn a softmax into the gradient of the logits, from the upstream gradients of the results.

The upstream gradients come from the caller (:data:`.launch.Upstream`). This module has:

- :func:`loaded_gradient`, :func:`rest_terms` and :func:`summed` compute terms with one value per position;
  :class:`TargetTerms` has all terms of class targets;
- :func:`negated_lse`: the bias of exponentials; :class:`SoftmaxTerms` turn exponentials into a softmax;
- :class:`EntropyCoefficients`: the terms that add the gradient of the entropy;
- the :data:`Coefficients` of a batch: :class:`ChunkCoefficients` for chunks of a softmax, :class:`TargetCoefficients`
  also for the elements at the targets, :class:`UniformCoefficients` if all losses have the same upstream gradient.

Let z be the logits after cap and temperature, p their softmax, t the target, w the class weights and W their sum, e the
label smoothing, V the number of classes and s the factor of the squared log-sum-exp. With the upstream gradients g of
the loss, l of the log-sum-exp and q of the target's log-probability, let

    D = g * ((e / V) * W + 2 s lse) + l        A = D + g * (1 - e) * w[t] - q

The gradient of z is A * p - g * (e / V) * w; at the target, A - D is subtracted too. There A * p - (A - D) is computed
as (A - D) * (p - 1) + D * p: for p near 1, the large terms have cancelled in p - 1. If targets are probabilities y, let
y' = (1 - e) y + e / V. The sum of w y' over the classes of a position replaces (e / V) * W in D, A is D, and the
gradient of z is A * p - g * w * y'.

An upstream gradient h of the entropy H adds -h p_k (log p_k + H), see :class:`EntropyCoefficients`. To turn the
gradient of z into a gradient of the capped logits, g, l, q and h are divided by the temperature when they are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.psum import PsumPiece
from nkilib.core.rows.moments import raise_infinite, raise_negligible
from nkilib.core.rows.scale import Scale
from nkilib.core.rows.tiles import (
    cast,
    constant,
    difference,
    float32_like,
    product,
    scaled,
    selected,
    with_nan_of_infinite,
)
from nkilib.experimental.loss.cross_entropy.launch import Options, PositionUpstream
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, squared, through_cap
from nkilib.experimental.loss.temperatures import LoadedRows
from nkilib.nki import nisa, nl


def loaded_gradient(positions: LoadedRows, gradient_hbm: nl.NkiTensor, slope: Scale) -> nl.NkiTensor:
    """Load an upstream gradient of positions and divide it by the temperature, that is, multiply it by ``slope``.

    The result times a derivative with respect to z is then a gradient of the logits before the temperature.
    """
    gradient_sbuf = positions.loaded(gradient_hbm)
    return gradient_sbuf if slope.is_one else slope.times(gradient_sbuf)


def rest_terms(
    upstream: PositionUpstream,
    positions: LoadedRows,
    lse_sbuf: nl.NkiTensor,
    grad_loss_sbuf: nl.NkiTensor | None,
    slope: Scale,
    options: Options,
) -> list[nl.NkiTensor]:
    """Return the non-zero terms among 2 g s lse and l, which are terms of D."""
    terms_sbuf = []
    if options.square != 0.0 and grad_loss_sbuf is not None:
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
        terms_sbuf.append(loaded_gradient(positions, upstream.grad_lse_hbm, slope))
    return terms_sbuf


def summed(first_sbuf: nl.NkiTensor, others_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
    """Return the sum of all tiles, written over the first one."""
    for other_sbuf in others_sbuf:
        nisa.tensor_tensor(dst=first_sbuf, data1=first_sbuf, data2=other_sbuf, op=nl.add)
    return first_sbuf


def _own(
    options: Options,
    slope: Scale,
    upstream: PositionUpstream,
    positions: LoadedRows,
    grad_loss_sbuf: nl.NkiTensor | None,
    weights_sbuf: nl.NkiTensor | None,
    valid_sbuf: nl.NkiTensor,
) -> nl.NkiTensor:
    """Return A - D = g * (1 - e) * w[t] - q, or 0 for an ignored target."""
    if grad_loss_sbuf is None:
        own_sbuf = constant(valid_sbuf, 0.0)
    else:
        own_sbuf = scaled(grad_loss_sbuf, options.kept)
        if upstream.target_weight_hbm is not None:
            weights_sbuf = positions.loaded(upstream.target_weight_hbm)
        if weights_sbuf is not None:
            # An ignored position has the weight of some class, which may be infinite.
            nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=selected(weights_sbuf, valid_sbuf), op=nl.multiply)
    if upstream.grad_logprob_hbm is not None:
        unmasked_sbuf = loaded_gradient(positions, upstream.grad_logprob_hbm, slope)
        grad_logprob_sbuf = selected(unmasked_sbuf, valid_sbuf)
        nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=grad_logprob_sbuf, op=nl.subtract)
    return own_sbuf


@dataclass(frozen=True)
class TargetTerms:
    """The terms of positions whose targets are classes: float32 tiles with one value per position, None for 0.

    The head of the module defines A, D, g, e and V.

    Attributes:
        own_sbuf: A - D, the term of the target alone.
        rest_sbuf: D.
        spread_sbuf: g * e / V, the multiplier of the class weights.
    """

    own_sbuf: nl.NkiTensor
    rest_sbuf: nl.NkiTensor | None
    spread_sbuf: nl.NkiTensor | None

    @classmethod
    def make(
        cls,
        options: Options,
        slope: Scale,
        upstream: PositionUpstream,
        positions: LoadedRows,
        lse_sbuf: nl.NkiTensor,
        grad_loss_sbuf: nl.NkiTensor | None,
        valid_sbuf: nl.NkiTensor,
        weights_sbuf: nl.NkiTensor | None,
        weight_sum: float | nl.NkiTensor,
    ) -> TargetTerms:
        """Compute the terms.

        Args:
            options: the options of the kernel.
            slope: 1 over the temperature, see :meth:`.launch.Options.slope_of`.
            upstream: the upstream vectors, which are loaded as needed.
            positions: loads the elements of vectors that belong to the positions.
            lse_sbuf: the log-sum-exp.
            grad_loss_sbuf: the gradient of the loss from :func:`loaded_gradient`; None for 0.
            valid_sbuf: uint32, 1 for a target that is not ignored.
            weights_sbuf: class weights of the targets; None without any, or if ``upstream`` has them
                (``target_weight_hbm``).
            weight_sum: the sum of all class weights.
        """
        if grad_loss_sbuf is not None:
            grad_loss_sbuf = selected(grad_loss_sbuf, valid_sbuf)
        spread_sbuf = rest_sbuf = None
        if options.spread != 0.0 and grad_loss_sbuf is not None:
            spread_sbuf = scaled(grad_loss_sbuf, options.spread)
            rest_sbuf = scaled(spread_sbuf, weight_sum)
        terms_sbuf = rest_terms(upstream, positions, lse_sbuf, grad_loss_sbuf, slope, options)
        if rest_sbuf is None and terms_sbuf:
            rest_sbuf, *terms_sbuf = terms_sbuf
        own_sbuf = _own(options, slope, upstream, positions, grad_loss_sbuf, weights_sbuf, valid_sbuf)
        if rest_sbuf is not None:
            rest_sbuf = summed(rest_sbuf, terms_sbuf)
        return cls(own_sbuf, rest_sbuf, spread_sbuf)


def negated_lse(lse_sbuf: nl.NkiTensor, added: float | nl.NkiTensor) -> nl.NkiTensor:
    """Return ``added - lse``, float32 [rows, 1]; exp(z + result) is the softmax if ``added`` is 0.

    The result is NaN where lse is infinite, and so is the row's gradient, as in PyTorch.
    """
    bias_sbuf = float32_like(lse_sbuf)
    nisa.tensor_scalar(dst=bias_sbuf, data=lse_sbuf, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=added)
    return with_nan_of_infinite(bias_sbuf, lse_sbuf, nl.float32)


@dataclass(frozen=True)
class SoftmaxTerms:
    """The terms that turn exponentials into a softmax of z: float32 [rows, 1].

    *Scores* are the values in tiles: the logits x or, if the logits have a cap c, tanh(x / c).

    Attributes:
        lse_sbuf: the log-sum-exp.
        bias_sbuf: minus the maximum m of z, or -lse. exp(z + bias) is the softmax if the bias is -lse, else the softmax
            times d, where d is the sum of exp(z - m).
        inverse_sbuf: 1 / d; None if the bias is -lse.
        log_sum_sbuf: log d; None if the bias is -lse.
        scale: the factor by which scores are multiplied to give z.
    """

    lse_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    inverse_sbuf: nl.NkiTensor | None
    log_sum_sbuf: nl.NkiTensor | None
    scale: Scale

    @classmethod
    def load(cls, upstream: PositionUpstream, batch: LoadedRows, scale: Scale) -> SoftmaxTerms:
        """Load the terms of a batch: the maximum and log d if the upstream has both, else the log-sum-exp alone.

        For large logits, lse has lost its last digits, while z minus the maximum is exact.

        Args:
            upstream: the statistics of all positions.
            batch: loads the elements that belong to the batch.
            scale: the factor by which scores are multiplied to give z.
        """
        lse_sbuf = batch.loaded(upstream.lse_hbm)
        if upstream.maximum_hbm is None or upstream.log_sum_hbm is None:
            return cls(lse_sbuf, negated_lse(lse_sbuf, 0.0), None, None, scale)
        negated_sbuf = scaled(batch.loaded(upstream.maximum_hbm), -1.0)
        log_sum_sbuf = batch.loaded(upstream.log_sum_hbm)
        inverse_sbuf = float32_like(log_sum_sbuf)
        nisa.activation(dst=inverse_sbuf, op=nl.exp, data=log_sum_sbuf, scale=-1.0)
        bias_sbuf = with_nan_of_infinite(negated_sbuf, lse_sbuf, nl.float32)
        return cls(lse_sbuf, bias_sbuf, inverse_sbuf, log_sum_sbuf, scale)

    def take_exponentials(self, dst_sbuf: nl.NkiTensor, scores_sbuf: nl.NkiTensor) -> None:
        """Write exp(z + bias) of scores [rows, columns] to ``dst_sbuf``, in SBUF or PSUM; z is ``scale`` times the
        scores.
        """
        nisa.activation(dst=dst_sbuf, op=nl.exp, data=scores_sbuf, bias=self.bias_sbuf, scale=self.scale.of(0))

    def normalized(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return ``values_sbuf`` times ``inverse_sbuf``, or unchanged if there is no ``inverse_sbuf``."""
        return values_sbuf if self.inverse_sbuf is None else product(values_sbuf, self.inverse_sbuf)


@dataclass(frozen=True)
class EntropyCoefficients:
    """The terms that the upstream gradient h of the entropy H adds to the coefficient A, before A is multiplied by p.

    The added term is -h (log p + H) = slope * (x - center) + offset, where z is the scale times the scores x. The
    center is the maximum of x, or lse / scale if the maximum is not available, so that large logits cancel first. All
    tiles are float32 [rows, 1].

    Attributes:
        neg_center_sbuf: minus the center.
        slope_sbuf: -h * scale.
        offset_sbuf: h * (lse - scale * center - H).
    """

    neg_center_sbuf: nl.NkiTensor
    slope_sbuf: nl.NkiTensor
    offset_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, softmax: SoftmaxTerms, entropy_sbuf: nl.NkiTensor, grad_sbuf: nl.NkiTensor) -> EntropyCoefficients:
        """Compute the coefficients from the entropy H, ``entropy_sbuf``, and its upstream gradient h, ``grad_sbuf``."""
        offset_sbuf = scaled(entropy_sbuf, -1.0)
        if softmax.log_sum_sbuf is not None:
            offset_sbuf = difference(softmax.log_sum_sbuf, entropy_sbuf)
        scale = softmax.scale
        neg_center_sbuf = softmax.bias_sbuf if scale.is_one else scale.quotients(softmax.bias_sbuf)
        return cls(neg_center_sbuf, scale.times(grad_sbuf, -1.0), product(offset_sbuf, grad_sbuf))

    def slopes(self, dst_sbuf: nl.NkiTensor, scores_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
        """Write ``factor_sbuf`` * (x - center) of the scores x to ``dst_sbuf``, in float32; no x may be -inf."""
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
    """The coefficients of the gradient A * p - spread * factors at all classes of a position: float32 tiles [rows, 1],
    None for 0.

    The factors are those of :class:`.targets.ClassFactors`: w, or w * y' for class probabilities. The head of the
    module defines the symbols.

    Attributes:
        softmax: the terms that turn exponentials into the softmax.
        all_sbuf: A, times ``SoftmaxTerms.inverse_sbuf`` if that is not None.
        rest_sbuf: D.
        spread_sbuf: g * e / V, or g for class probabilities.
        entropy: the terms that are added to A for each class; None without a gradient of the entropy.
    """

    softmax: SoftmaxTerms
    all_sbuf: nl.NkiTensor
    rest_sbuf: nl.NkiTensor | None
    spread_sbuf: nl.NkiTensor | None
    entropy: EntropyCoefficients | None

    def apply(self, dst_sbuf: nl.NkiTensor, exponentials_sbuf: nl.NkiTensor, factors_sbuf: nl.NkiTensor | None) -> None:
        """Write the gradient A * p - spread * factors of a chunk to ``dst_sbuf``.

        Args:
            dst_sbuf: the gradient, [rows, columns].
            exponentials_sbuf: the exponentials of the chunk; may be overwritten.
            factors_sbuf: the class factors, [rows, columns], or None for 1.
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
        pieces: list[PsumPiece],
        factors_sbuf: nl.NkiTensor | None,
    ) -> None:
        """Write the result of :meth:`apply` plus the gradient of the entropy to ``dst_sbuf``.

        Args:
            entropy: the entropy coefficients of this object.
            dst_sbuf: the result, [rows, columns]; may be the tile of the scores.
            scores_sbuf: the scores; in float16 they are overwritten, in other types none may be -inf.
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
            self.softmax.take_exponentials(piece.tile_psum, piece.of(scores_sbuf))
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
    """The coefficients of positions whose targets are classes: tiles [rows, 1].

    The attributes below are used only for the elements at the targets.

    Attributes:
        index_sbuf: the index of each row's target element, int32, counted from the batch's first element of the logits.
        own_sbuf: A - D, see the head of the module.
        local_sbuf: 1.0, or 0.0 for a target that is ignored or whose class is in another shard.
        weights_sbuf: the class weights of the columns that the indices point to; None without class weights.
        softcap: the cap of the logits, or None.
    """

    index_sbuf: nl.NkiTensor
    own_sbuf: nl.NkiTensor
    local_sbuf: nl.NkiTensor
    weights_sbuf: nl.NkiTensor | None
    softcap: float | None

    def at_target(self, logit_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        """Return the gradient at the target, [rows, 1], computed in float32 and rounded to ``dtype`` once.

        The gradient is (A - D) * (p - local) + D * p - spread * w[t], with the softmax p at the target and
        ``local_sbuf``; the gradient of the entropy is added to D. For a target that is ignored or in another shard,
        local is 0, and the result equals the value that the chunk has stored at this element.

        Args:
            logit_sbuf: the logits at the targets.
            dtype: the type of the result.
        """
        exponential_sbuf, score_sbuf = float32_like(logit_sbuf), logit_sbuf
        if self.softcap is not None:
            score_sbuf = float32_like(logit_sbuf)
            hyperbolic_tangents(score_sbuf, logit_sbuf, self.softcap)
        elif self.entropy is not None:
            if score_sbuf.dtype == nl.float16:  # which has no number that would be far enough below
                score_sbuf = cast(score_sbuf, nl.float32)
            raise_negligible(score_sbuf, self.entropy.neg_center_sbuf, self.softmax.scale.least)
        self.softmax.take_exponentials(exponential_sbuf, score_sbuf)
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


@dataclass(frozen=True)
class UniformCoefficients:
    """The coefficients if all losses have the same upstream gradient and no options are set.

    The gradient is exp(z + bias) = scale * softmax, except at the target.

    Attributes:
        bias_sbuf: log(scale) - lse, float32 [rows, 1].
        index_sbuf: the index of each row's target element, int32 [rows, 1], counted from the batch's first element of
            the logits.
        scale: the upstream gradient of every loss.
    """

    bias_sbuf: nl.NkiTensor
    index_sbuf: nl.NkiTensor
    scale: float

    def at_target(self, logit_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
        """Return the gradient at the target, scale * (p - 1), [rows, 1], computed in float32 and rounded to ``dtype``
        once.

        Rounding p before the subtraction would lose all digits of p - 1 for a p near 1.
        """
        scaled_p_sbuf = float32_like(logit_sbuf)
        nisa.activation(dst=scaled_p_sbuf, op=nl.exp, data=logit_sbuf, bias=self.bias_sbuf)
        gradient_sbuf = nl.ndarray(logit_sbuf.shape, dtype=dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=gradient_sbuf, data=scaled_p_sbuf, op0=nl.subtract, operand0=self.scale)
        return gradient_sbuf


# The coefficients of one batch: with one upstream gradient for all losses; of class targets; of class probabilities.
Coefficients = UniformCoefficients | TargetCoefficients | ChunkCoefficients
