"""What the gradient of the logits takes of each position: float32 columns [128, tiles], made once for a launch.

The terms are those of :mod:`nkilib.experimental.loss.cross_entropy.coefficients`. Column t holds positions 128 t to
128 t + 127, one a partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import float32_like, scaled, with_nan_of_infinite
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.position_terms import TargetTerms, loaded_gradient
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream, negated_lse
from nkilib.experimental.loss.linear_cross_entropy.operands import load_positions
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch
from nkilib.experimental.loss.linear_cross_entropy.positions import weights_of_targets
from nkilib.experimental.loss.linear_cross_entropy.power_of_two import PowerOfTwo
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class AllPositions:
    """All positions of a launch, loaded together."""

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """The values of a vector [N], float32 [128, tiles]; 0 beyond the last position."""
        return load_positions(vector_hbm, 0.0)


@dataclass(frozen=True)
class GradientColumns:
    """float32 [128, tiles] each, None for what there is not.

    Attributes:
        target_sbuf: the class of the target, counted from the first class that the launch holds.
        bias_sbuf: what exponents take besides the logits: -lse, or minus the log of the sum under the maximum.
        neg_maximum_sbuf: is added to the logits before; None without a maximum.
        own_sbuf: A - D, what the error at the target is multiplied with.
        rest_sbuf: D.
        spread_sbuf: what class weights are multiplied with.
        power: by which the gradient is larger than it should be; None for 1.
    """

    target_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    neg_maximum_sbuf: nl.NkiTensor | None
    own_sbuf: nl.NkiTensor
    rest_sbuf: nl.NkiTensor | None
    spread_sbuf: nl.NkiTensor | None
    power: PowerOfTwo | None

    @classmethod
    def make(cls, launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> GradientColumns:
        """Of all positions of a launch."""
        positions = AllPositions()
        lse_sbuf = positions.loaded(upstream.lse_hbm)
        bias_sbuf, neg_maximum_sbuf = _exponents(positions, upstream, lse_sbuf)
        target_sbuf = positions.loaded(launch.targets_hbm)
        valid_sbuf = nl.ndarray(target_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
        # Classes are small enough for float32, and no other value is equal to one.
        nisa.tensor_scalar(
            dst=valid_sbuf, data=target_sbuf, op0=nl.not_equal, operand0=float(options.recipe.ignore_index)
        )
        terms = TargetTerms.make(
            options,
            upstream,
            positions,
            lse_sbuf,
            loaded_gradient(positions, upstream.grad_loss_hbm, options),
            valid_sbuf,
            _target_weights(launch, options, upstream, target_sbuf),
            _weight_sum(launch, options, upstream),
        )
        own_sbuf, rest_sbuf, spread_sbuf = terms.own_sbuf, terms.rest_sbuf, terms.spread_sbuf
        power = None
        if launch.dtype == nl.float16:
            power = PowerOfTwo.of_largest([column for column in (own_sbuf, rest_sbuf) if column is not None])
            own_sbuf = scaled(own_sbuf, power.factor_sbuf)
            rest_sbuf = None if rest_sbuf is None else scaled(rest_sbuf, power.factor_sbuf)
            spread_sbuf = None if spread_sbuf is None else scaled(spread_sbuf, power.factor_sbuf)
        if options.classes.first > 0:
            target_sbuf = _shifted(target_sbuf, -float(options.classes.first))
        return cls(target_sbuf, bias_sbuf, neg_maximum_sbuf, own_sbuf, rest_sbuf, spread_sbuf, power)


def _exponents(
    positions: AllPositions, upstream: PositionUpstream, lse_sbuf: nl.NkiTensor
) -> tuple[nl.NkiTensor, nl.NkiTensor | None]:
    """The bias of the exponents, and minus the maximum: z less the maximum is exact, where lse has lost digits."""
    if upstream.maximum_hbm is None or upstream.log_sum_hbm is None:
        return negated_lse(lse_sbuf, 0.0), None
    neg_maximum_sbuf = scaled(positions.loaded(upstream.maximum_hbm), -1.0)
    bias_sbuf = scaled(positions.loaded(upstream.log_sum_hbm), -1.0)
    return bias_sbuf, with_nan_of_infinite(neg_maximum_sbuf, lse_sbuf, nl.float32)


def _shifted(values_sbuf: nl.NkiTensor, added: float) -> nl.NkiTensor:
    shifted_sbuf = float32_like(values_sbuf)
    nisa.tensor_scalar(dst=shifted_sbuf, data=values_sbuf, op0=nl.add, operand0=added)
    return shifted_sbuf


def _target_weights(
    launch: LinearLaunch, options: Options, upstream: PositionUpstream, target_sbuf: nl.NkiTensor
) -> nl.NkiTensor | None:
    """The class weights of the targets; None where the upstream has them, or there are none."""
    if launch.class_weight_hbm is None or upstream.target_weight_hbm is not None:
        return None
    return weights_of_targets(launch.class_weight_hbm, target_sbuf, options.classes)


def _weight_sum(launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> float | nl.NkiTensor:
    """The sum of all class weights; float32 [128, 1] where it has to be taken here."""
    if launch.class_weight_hbm is None or options.spread == 0.0:
        return float(options.classes.total)
    return upstream.weight_sum if upstream.weight_sum is not None else sum_of_vector(launch.class_weight_hbm)


def sum_of_vector(vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """The sum of a vector, float32 [128, 1], the same on all partitions.

    It is loaded with its elements spread over the partitions; the products with ones add up the partitions.
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
