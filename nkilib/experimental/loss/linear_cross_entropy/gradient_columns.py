# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The per-position scalars of the gradient of linear cross-entropy, computed once per launch.

They are float32 tensors [128, tiles], called *columns*; column t holds positions 128 t to 128 t + 127, one per
partition. :class:`GradientColumns` holds all of them, and :class:`Exponents` those from which a tile computes its
softmax. The terms of the gradient are those of :mod:`nkilib.experimental.loss.cross_entropy.coefficients`. z is the
logit after cap and temperature, p the softmax, and *scores* are the logits, or tanh(logit / cap) under a cap.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.scale import Scale
from nkilib.core.rows.tiles import difference, float32_like, product, scaled, with_nan_of_infinite
from nkilib.experimental.loss.cross_entropy.coefficients import TargetTerms, loaded_gradient, negated_lse, summed
from nkilib.experimental.loss.cross_entropy.launch import Options, PositionUpstream
from nkilib.experimental.loss.linear.backward.gradient_block import PowerOfTwo
from nkilib.experimental.loss.linear.operands import AllPositions, load_positions
from nkilib.experimental.loss.linear_cross_entropy.launch import LinearLaunch, is_factored
from nkilib.experimental.loss.linear_cross_entropy.targets import weights_of_targets
from nkilib.nki import nisa, nl


def _target_weights(
    launch: LinearLaunch, options: Options, upstream: PositionUpstream, target_sbuf: nl.NkiTensor
) -> nl.NkiTensor | None:
    # ``upstream`` may hold the class weights of the targets already.
    if launch.class_weight_hbm is None or upstream.target_weight_hbm is not None:
        return None
    return weights_of_targets(launch.class_weight_hbm, target_sbuf, options.classes)


def sum_of_vector(vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return the sum of a vector, float32 [128, 1], the same on all partitions.

    The elements are loaded spread over the partitions; a product with ones adds up the partitions.
    """
    columns_sbuf = load_positions(vector_hbm, 0.0)
    rows = columns_sbuf.shape[0]
    part_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=part_sbuf, op=nl.add, data=columns_sbuf, axis=1)
    ones_sbuf = nl.ndarray((rows, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sbuf, value=1.0)
    total_psum = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=total_psum, stationary=ones_sbuf, moving=part_sbuf)
    total_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=total_sbuf, src=total_psum)
    return total_sbuf


def _weight_sum(launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> float | nl.NkiTensor:
    """Return the sum of all class weights: a number, or float32 [128, 1] if the kernel has to sum them."""
    if launch.class_weight_hbm is None or options.spread == 0.0:
        return float(options.classes.total)
    return upstream.weight_sum if upstream.weight_sum is not None else sum_of_vector(launch.class_weight_hbm)


def _target_terms(
    launch: LinearLaunch,
    options: Options,
    slope: Scale,
    upstream: PositionUpstream,
    lse_sbuf: nl.NkiTensor,
    target_sbuf: nl.NkiTensor,
) -> TargetTerms:
    positions = AllPositions()
    valid_sbuf = nl.ndarray(target_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    # Classes are small enough to be exact in float32, and no other value equals one.
    nisa.tensor_scalar(dst=valid_sbuf, data=target_sbuf, op0=nl.not_equal, operand0=float(options.recipe.ignore_index))
    of_loss_hbm = upstream.grad_loss_hbm
    return TargetTerms.make(
        options,
        slope,
        upstream,
        positions,
        lse_sbuf,
        None if of_loss_hbm is None else loaded_gradient(positions, of_loss_hbm, slope),
        valid_sbuf,
        _target_weights(launch, options, upstream, target_sbuf),
        _weight_sum(launch, options, upstream),
    )


@dataclass(frozen=True)
class Exponents:
    """The per-position scalars of the softmax p = ``factor * exp(z + neg_maximum + bias)``, float32 [128, tiles] each.

    Attributes:
        lse_sbuf: log-sum-exp.
        bias_sbuf: -lse if ``neg_maximum_sbuf`` is None, else minus ``log_sum_sbuf``.
        neg_maximum_sbuf: minus the maximum; None for 0. Where lse is infinite, this or else ``bias_sbuf`` is NaN.
        log_sum_sbuf: the log of the sum of exponentials relative to the maximum; None if lse is used instead.
        lost_sbuf: the rounding error of lse, ``lse - maximum - log_sum``; None for 0.
        factor_sbuf: ``exp(lost)``; None for 1.
    """

    lse_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    neg_maximum_sbuf: nl.NkiTensor | None = None
    log_sum_sbuf: nl.NkiTensor | None = None
    lost_sbuf: nl.NkiTensor | None = None
    factor_sbuf: nl.NkiTensor | None = None

    @classmethod
    def make(cls, positions: AllPositions, launch: LinearLaunch, upstream: PositionUpstream) -> Exponents:
        """Compute the scalars of all positions.

        - Without maximum and log_sum from the forward, p is computed from z - lse.
        - With them and float32 products, p is computed from z minus the maximum, which is exact. This takes another
          pass over a tile, for which Tensor leaves time.
        - With them and 16-bit products, p is computed from z - lse, and its coefficients are multiplied by
          ``factor_sbuf``, which corrects the rounding of lse.
        """
        lse_sbuf = positions.loaded(upstream.lse_hbm)
        if upstream.maximum_hbm is None or upstream.log_sum_hbm is None:
            return cls(lse_sbuf, negated_lse(lse_sbuf, 0.0))
        maximum_sbuf, log_sum_sbuf = positions.loaded(upstream.maximum_hbm), positions.loaded(upstream.log_sum_hbm)
        if is_factored(launch, upstream):
            lost_sbuf = difference(difference(lse_sbuf, maximum_sbuf), log_sum_sbuf)
            factor_sbuf = float32_like(lost_sbuf)
            nisa.activation(dst=factor_sbuf, op=nl.exp, data=lost_sbuf)
            return cls(lse_sbuf, negated_lse(lse_sbuf, 0.0), lost_sbuf=lost_sbuf, factor_sbuf=factor_sbuf)
        neg_maximum_sbuf = with_nan_of_infinite(scaled(maximum_sbuf, -1.0), lse_sbuf, nl.float32)
        return cls(lse_sbuf, scaled(log_sum_sbuf, -1.0), neg_maximum_sbuf, log_sum_sbuf)

    def entropy_terms(
        self, grad_sbuf: nl.NkiTensor, entropy_sbuf: nl.NkiTensor, scale: Scale
    ) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        """Return slope and offset of -g (log p + H) as a linear function of the scores, float32 [128, tiles] each.

        If ``neg_maximum_sbuf`` is there, the function is one of z minus the maximum instead.

        Args:
            grad_sbuf: g, the upstream gradient of the entropy.
            entropy_sbuf: the entropy H.
            scale: the factor that turns scores into z.
        """
        if self.log_sum_sbuf is not None:
            return scaled(grad_sbuf, -1.0), product(difference(self.log_sum_sbuf, entropy_sbuf), grad_sbuf)
        if self.lost_sbuf is not None:
            entropy_sbuf = summed(entropy_sbuf, [self.lost_sbuf])
        return scale.times(grad_sbuf, -1.0), product(difference(self.lse_sbuf, entropy_sbuf), grad_sbuf)


def _present(*columns_sbuf: nl.NkiTensor | None) -> list[nl.NkiTensor]:
    return [column_sbuf for column_sbuf in columns_sbuf if column_sbuf is not None]


def _with_factor(factor_sbuf: nl.NkiTensor, own_sbuf: nl.NkiTensor, rest_sbuf: nl.NkiTensor | None) -> nl.NkiTensor:
    """Return the coefficient D * factor + (A - D) * (factor - 1), which replaces D if p is computed without ``factor``.

    A - D is ``own_sbuf`` and D is ``rest_sbuf``, see :class:`GradientColumns`. The second term corrects p - onehot,
    which is computed with p / factor in place of p.
    """
    result_sbuf = float32_like(factor_sbuf)
    nisa.scalar_tensor_tensor(
        dst=result_sbuf, data=factor_sbuf, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=own_sbuf
    )
    return result_sbuf if rest_sbuf is None else summed(result_sbuf, [product(rest_sbuf, factor_sbuf)])


def _shifted(values_sbuf: nl.NkiTensor, added: float) -> nl.NkiTensor:
    shifted_sbuf = float32_like(values_sbuf)
    nisa.tensor_scalar(dst=shifted_sbuf, data=values_sbuf, op0=nl.add, operand0=added)
    return shifted_sbuf


@dataclass(frozen=True)
class GradientColumns:
    """The per-position scalars of the gradient, float32 [128, tiles] each; None where the launch does not need them.

    The gradient of z is (A - D) r + D p - spread w, with r = p - onehot and the class weights w (:mod:`.backward`).

    Attributes:
        scale: the factor of each position that turns scores into z.
        target_sbuf: the target, counted from the first class that the launch holds; for several target ids the sorted
            ids, [128, tiles, K'].
        bias_sbuf: the bias of the exponents: -lse, or minus the log of the sum of exponentials relative to the maximum.
        neg_maximum_sbuf: minus the maximum of z, which is added to z before the bias; None if the bias is -lse.
        has_target: whether there is a gradient of the loss or of the log-probability.
        own_sbuf: A - D, the factor of r. Without ``has_target`` there is no r: it is D if D does not depend on the
            logits, and ``rest_sbuf`` is None.
        rest_sbuf: D. If D depends on the logits, D is ``slope * x + rest``: x is z minus the maximum if there is
            ``neg_maximum_sbuf``, else the score.
        slope_sbuf: the slope of D; None if D does not depend on the logits.
        spread_sbuf: ``spread``, the factor of the class weights.
        power: the power of two that the gradient is multiplied by; None for 1.
    """

    scale: Scale
    target_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    neg_maximum_sbuf: nl.NkiTensor | None
    has_target: bool
    own_sbuf: nl.NkiTensor
    rest_sbuf: nl.NkiTensor | None
    slope_sbuf: nl.NkiTensor | None
    spread_sbuf: nl.NkiTensor | None
    power: PowerOfTwo | None

    @classmethod
    def make(cls, launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> GradientColumns:
        """Compute the per-position scalars of all positions of a launch."""
        positions = AllPositions()
        exponents, temperatures = Exponents.make(positions, launch, upstream), launch.temperatures()
        scale, slope = options.scale_of(temperatures), options.slope_of(temperatures)
        target_sbuf = positions.loaded(launch.targets_hbm)
        terms = _target_terms(launch, options, slope, upstream, exponents.lse_sbuf, target_sbuf)
        has_target = upstream.grad_loss_hbm is not None or upstream.grad_logprob_hbm is not None
        own_sbuf, rest_sbuf, spread_sbuf = terms.own_sbuf, terms.rest_sbuf, terms.spread_sbuf
        grad_entropy_sbuf = None
        if upstream.grad_entropy_hbm is not None:
            grad_entropy_sbuf = loaded_gradient(positions, upstream.grad_entropy_hbm, slope)
        power = None
        if launch.dtype == nl.float16:
            # |p (log p + H)| is less than 5, however many classes there are: its coefficient is the gradient alone.
            power = PowerOfTwo.of_largest(_present(own_sbuf, rest_sbuf, grad_entropy_sbuf))
            own_sbuf = scaled(own_sbuf, power.factor_sbuf)
            rest_sbuf, spread_sbuf, grad_entropy_sbuf = (
                None if column_sbuf is None else scaled(column_sbuf, power.factor_sbuf)
                for column_sbuf in (rest_sbuf, spread_sbuf, grad_entropy_sbuf)
            )
        slope_sbuf = None
        if grad_entropy_sbuf is not None and upstream.entropy_hbm is not None:
            entropy_sbuf = positions.loaded(upstream.entropy_hbm)
            slope_sbuf, offset_sbuf = exponents.entropy_terms(grad_entropy_sbuf, entropy_sbuf, scale)
            rest_sbuf = offset_sbuf if rest_sbuf is None else summed(offset_sbuf, [rest_sbuf])
        if exponents.factor_sbuf is not None:
            rest_sbuf = _with_factor(exponents.factor_sbuf, own_sbuf, rest_sbuf)
            slope_sbuf = None if slope_sbuf is None else product(slope_sbuf, exponents.factor_sbuf)
        if not has_target and slope_sbuf is None and rest_sbuf is not None:
            own_sbuf, rest_sbuf = rest_sbuf, None
        if options.classes.first > 0:
            target_sbuf = _shifted(target_sbuf, -float(options.classes.first))
        return cls(
            scale,
            target_sbuf,
            exponents.bias_sbuf,
            exponents.neg_maximum_sbuf,
            has_target,
            own_sbuf,
            rest_sbuf,
            slope_sbuf,
            spread_sbuf,
            power,
        )
