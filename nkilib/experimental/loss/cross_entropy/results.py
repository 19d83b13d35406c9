# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values that the forward of cross-entropy accumulates, and the results that are computed from them.

The values of a group of batches are a :class:`Group`, or a :class:`ShiftedGroup` if exponentials are computed under a
shift. Results are tiles [rows, batches] (:func:`computed_results`), stored as vectors [N] (:class:`Results`). Scores x
are the values in tiles; z is the scale times x: the logits after cap and temperature. m is the maximum of x in a row, d
the sum of exp(z - scale * m), f are the class factors (class weights w, times class probabilities if the targets are
such), t is the target, and e the label smoothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from nkilib.core.rows.argmax import Argmax
from nkilib.core.rows.batches import BatchGroup, StoredRows, SwappedResult
from nkilib.core.rows.moments import FirstMoment, Moments, ShiftedEntropy
from nkilib.core.rows.shifted import ShiftedSums
from nkilib.core.rows.statistics import Columns, Statistics
from nkilib.core.rows.tiles import (
    cast,
    constant,
    difference,
    float32_like,
    product,
    selected,
    with_nan_of_infinite,
)
from nkilib.experimental.loss.cross_entropy.launch import Launch, Options
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.cross_entropy.targets import TargetMasks, TargetValues
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Group:
    """The values accumulated for a group of batches.

    Attributes:
        batches: the batches of the group.
        statistics: the maxima and the sums of exponentials of chunks.
        moments: further sums over the classes, or None.
        argmax: the class of the largest logit, or None.
        exact_neg_max_sbuf: minus the maximum of a chunk of logits, [rows, 1], for the argmax.
        targets: the values at the targets; None for class probabilities.
        is_whole: whether a row is one chunk and only the statistics are requested, so that nothing has to be combined.
    """

    batches: StoredRows
    statistics: Statistics
    moments: Moments | None
    argmax: Argmax | None
    exact_neg_max_sbuf: nl.NkiTensor
    targets: TargetValues | None
    is_whole: bool = False

    @classmethod
    def make(cls, batches: BatchGroup, num_chunks: int, launch: Launch, options: Options) -> Group:
        """Allocate a group for rows of ``num_chunks`` chunks, and load the temperatures if the launch has them."""
        columns, dtype = Columns.of_group(batches, num_chunks), launch.dtype
        scale = options.scale_of(launch.temperatures(batches, (columns.rows, columns.batches)))
        is_capped = options.softcap is not None
        moments = Moments.make(columns, options.sums_classes, options.wanted.entropy)
        is_whole = num_chunks == 1 and moments is None and not options.wanted.argmax
        statistics = Statistics.make(columns, nl.float32 if is_capped else dtype, scale, is_whole)
        exact_neg_max_sbuf = statistics.exact_neg_max_sbuf
        if is_capped and options.wanted.argmax:
            exact_neg_max_sbuf = nl.ndarray((columns.rows, 1), dtype=dtype, buffer=nl.sbuf)
        return cls(
            batches,
            statistics,
            moments,
            Argmax.make(columns, options.classes.total, dtype) if options.wanted.argmax else None,
            exact_neg_max_sbuf,
            None if options.has_probabilities else TargetValues.make(columns, dtype, options),
            is_whole,
        )

    @property
    def first_moment(self) -> FirstMoment:
        """The sums of f and of f * (x - m) over the classes of each row.

        Raises:
            ValueError: if no option requires these sums.
        """
        if self.moments is None or self.moments.first is None:
            raise ValueError("cross_entropy: no option sums over the classes")
        return self.moments.first

    def take_weights(self, chunks: int) -> None:
        """Compute the factor exp(scale * (m_k - m)) of each chunk k, from the maximum m_k of the chunk and the maximum
        m of its row.

        Args:
            chunks: the number of chunks of each row that have been processed.
        """
        if self.is_whole:
            return
        distances_sbuf = self.statistics.take_distances(chunks)
        if self.moments is not None:
            self.moments.keep_distances(distances_sbuf, chunks)
        self.statistics.take_weights(chunks)

    def combine(self, chunks: int) -> None:
        """Combine the values of ``chunks`` chunks into values of rows, with the factors of :meth:`take_weights`."""
        if self.is_whole:
            return
        if self.moments is not None:
            self.moments.combine(self.statistics, chunks)
        if self.argmax is not None:
            self.argmax.combine(chunks)
        self.statistics.combine_sums(chunks)

    def restart(self, chunks: int) -> None:
        """Combine the first ``chunks`` chunks, which fill the tiles of statistics, into column 0, so that more chunks
        can follow.
        """
        self.take_weights(chunks)
        self.combine(chunks)
        self.statistics.restart()
        if self.moments is not None:
            self.moments.restart()
        if self.argmax is not None:
            self.argmax.restart()


@dataclass(frozen=True)
class ShiftedGroup:
    """The values accumulated for a group of batches whose exponentials are computed under a shift.

    Attributes:
        batches: the batches of the group.
        statistics: the sums of exponentials of chunks.
        entropy: the terms of the entropy, or None.
        targets: the values at the targets. For an ignored target, the values are those of another element of the row.
    """

    batches: BatchGroup
    statistics: ShiftedSums
    entropy: ShiftedEntropy | None
    targets: TargetValues

    @classmethod
    def make(cls, batches: BatchGroup, num_chunks: int, launch: Launch, options: Options) -> ShiftedGroup:
        """Allocate a group for rows of ``num_chunks`` chunks, and load the temperatures if the launch has them."""
        columns, dtype = Columns.of_group(batches, num_chunks), launch.dtype
        scale = options.scale_of(launch.temperatures(batches, (columns.rows, columns.batches)))
        return cls(
            batches,
            ShiftedSums.make(columns, dtype, scale),
            ShiftedEntropy.make(columns) if options.wanted.entropy else None,
            TargetValues.make(columns, dtype, options),
        )

    def combine(self, chunks: int) -> None:
        """Combine the values of ``chunks`` chunks into values of rows."""
        self.statistics.combine_sums(chunks)
        if self.entropy is not None:
            self.entropy.combine(self.statistics.columns, chunks)

    def restart(self, chunks: int) -> None:
        """Combine the first ``chunks`` chunks, which fill the tiles of statistics, into column 0, so that more chunks
        can follow.
        """
        self.statistics.restart(chunks)
        if self.entropy is not None:
            self.entropy.restart(self.statistics.columns, chunks)


def new_vector(name: str, num_positions: int, dtype: nl.DType) -> nl.NkiTensor:
    """Allocate a result vector [N] in HBM."""
    return nl.ndarray((num_positions,), dtype=dtype, buffer=nl.shared_hbm, name=name)


@dataclass(frozen=True)
class Results:
    """The result vectors of the forward in HBM, each [N], in the order in which a kernel returns them.

    A vector is None if the kernel does not return it.
    """

    loss_hbm: nl.NkiTensor
    lse_hbm: nl.NkiTensor
    target_logit_hbm: nl.NkiTensor | None = None
    position_weight_hbm: nl.NkiTensor | None = None
    argmax_hbm: nl.NkiTensor | None = None
    entropy_hbm: nl.NkiTensor | None = None
    distance_sum_hbm: nl.NkiTensor | None = None
    maximum_hbm: nl.NkiTensor | None = None
    log_sum_hbm: nl.NkiTensor | None = None
    log_sum_squares_hbm: nl.NkiTensor | None = None
    mean_logit_hbm: nl.NkiTensor | None = None

    @classmethod
    def of_options(cls, num_positions: int, options: Options) -> Results:
        """Allocate the result vectors that a forward with these options returns."""

        def vector(name: str, is_wanted: bool, dtype: nl.DType = nl.float32) -> nl.NkiTensor | None:
            return new_vector(name, num_positions, dtype) if is_wanted else None

        wanted = options.wanted
        return cls(
            loss_hbm=new_vector("loss_hbm", num_positions, nl.float32),
            lse_hbm=new_vector("lse_hbm", num_positions, nl.float32),
            target_logit_hbm=vector("target_logit_hbm", wanted.target),
            position_weight_hbm=vector("position_weight_hbm", wanted.target),
            argmax_hbm=vector("argmax_hbm", wanted.argmax, nl.int32),
            entropy_hbm=vector("entropy_hbm", wanted.entropy),
            distance_sum_hbm=vector("distance_sum_hbm", wanted.distance_sum),
            maximum_hbm=vector("maximum_hbm", wanted.log_sum),
            log_sum_hbm=vector("log_sum_hbm", wanted.log_sum),
            log_sum_squares_hbm=vector("log_sum_squares_hbm", wanted.log_sum_squares),
            mean_logit_hbm=vector("mean_logit_hbm", wanted.mean_logit),
        )

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return the vectors that are not None, in the kernel's order."""
        vectors: list[nl.NkiTensor | None] = [getattr(self, result.name) for result in fields(self)]
        return tuple(vector_hbm for vector_hbm in vectors if vector_hbm is not None)


@dataclass(frozen=True)
class _TargetResults:
    """The results of a group that depend on the targets: float32 tiles [rows, batches].

    Ignored targets are not masked yet, and the loss does not contain the squared log-sum-exp.

    Attributes:
        loss_sbuf: the loss.
        logit_sbuf: x[t], or for class probabilities the sum of f x; may have another type.
        weight_sbuf: w[t], or for class probabilities the sum of f; None where the weight is 1.
    """

    loss_sbuf: nl.NkiTensor
    logit_sbuf: nl.NkiTensor
    weight_sbuf: nl.NkiTensor | None


def _distance_of_target(statistics: Statistics | ShiftedSums, logit_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return lse - z[t], computed as log d - (z[t] - scale * m), where m is the maximum or the shift.

    The difference of lse and z[t] itself would lose the digits of log d for large logits.
    """
    distance_sbuf = float32_like(logit_sbuf)
    nisa.tensor_tensor(dst=distance_sbuf, data1=logit_sbuf, data2=statistics.row_neg_max_sbuf, op=nl.add)
    below_sbuf = statistics.scaled(distance_sbuf)
    nisa.tensor_tensor(dst=distance_sbuf, data1=statistics.log_sum_sbuf, data2=below_sbuf, op=nl.subtract)
    return distance_sbuf


def _results_under_shift(group: ShiftedGroup) -> _TargetResults:
    """Return the loss w[t] * (log S - (z[t] - c)), x[t] and w[t], where S is the sum of exp(z - c) under the shift c.

    z[t] is at most c, and S is at least 1 except for rounding, so log S and c - z[t] are not negative and nothing
    cancels.
    """
    targets = group.targets
    loss_sbuf = _distance_of_target(group.statistics, targets.logits_sbuf)
    nisa.tensor_scalar(dst=loss_sbuf, data=loss_sbuf, op0=nl.maximum, operand0=0.0)
    if targets.weights_sbuf is not None:
        nisa.tensor_tensor(dst=loss_sbuf, data1=loss_sbuf, data2=targets.weights_sbuf, op=nl.multiply)
    return _TargetResults(loss_sbuf, targets.logits_sbuf, targets.weights_sbuf)


def _spread_loss(first: FirstMoment, statistics: Statistics) -> nl.NkiTensor:
    """Return the sum over the classes of f * (lse - z).

    The sum is F * log d - scale * G, with F = sum of f and G = sum of f * (x - m): large logits have cancelled in G
    already.
    """
    loss_sbuf = product(first.row_factors_sbuf, statistics.log_sum_sbuf)
    first_sbuf = statistics.scaled(first.row_first_sbuf)
    nisa.tensor_tensor(dst=loss_sbuf, data1=loss_sbuf, data2=first_sbuf, op=nl.subtract)
    return loss_sbuf


def _results_of_class_targets(group: Group, targets: TargetValues, options: Options) -> _TargetResults:
    """Return the loss, x[t] and w[t] of class targets.

    The loss is (1 - e) * w[t] * (lse - z[t]) + (e / V) * (W * lse - sum of w z), with the sum W of the class weights.
    The loss is not computed from lse: see :func:`_distance_of_target`.
    """
    statistics = group.statistics
    logit_sbuf = targets.logits_sbuf
    if options.softcap is not None:
        logit_sbuf = float32_like(targets.logits_sbuf)
        hyperbolic_tangents(logit_sbuf, targets.logits_sbuf, options.softcap)
        masked_tangents(logit_sbuf, logit_sbuf, targets.logits_sbuf)
    loss_sbuf = _distance_of_target(statistics, logit_sbuf)
    if targets.weights_sbuf is not None:
        nisa.tensor_tensor(dst=loss_sbuf, data1=loss_sbuf, data2=targets.weights_sbuf, op=nl.multiply)
    if options.spread != 0.0:
        spread_sbuf = _spread_loss(group.first_moment, statistics)
        nisa.tensor_scalar(dst=loss_sbuf, data=loss_sbuf, op0=nl.multiply, operand0=options.kept)
        nisa.scalar_tensor_tensor(
            dst=loss_sbuf, data=spread_sbuf, op0=nl.multiply, operand0=options.spread, op1=nl.add, operand1=loss_sbuf
        )
    return _TargetResults(loss_sbuf, logit_sbuf, targets.weights_sbuf)


def _results_of_probabilities(first: FirstMoment, statistics: Statistics) -> _TargetResults:
    """Return the sums over the classes of f * (lse - z), of f x, and of f.

    The second sum is G + F * m, with F = sum of f and G = sum of f * (x - m).
    """
    negated_sbuf = product(first.row_factors_sbuf, statistics.row_neg_max_sbuf)
    return _TargetResults(
        _spread_loss(first, statistics), difference(first.row_first_sbuf, negated_sbuf), first.row_factors_sbuf
    )


def _target_results(group: Group | ShiftedGroup, options: Options) -> _TargetResults:
    if isinstance(group, ShiftedGroup):
        return _results_under_shift(group)
    if group.targets is None:
        return _results_of_probabilities(group.first_moment, group.statistics)
    return _results_of_class_targets(group, group.targets, options)


def _finished_loss(
    loss_sbuf: nl.NkiTensor, lse_sbuf: nl.NkiTensor, masks: TargetMasks | None, dtype: nl.DType, options: Options
) -> nl.NkiTensor:
    """Return the loss plus s * lse^2, with the factor s of the squared log-sum-exp; 0 where the target is ignored.

    A row with +inf has lse +inf and, as in PyTorch, loss NaN.
    """
    total_sbuf = with_nan_of_infinite(loss_sbuf, lse_sbuf, dtype)
    if options.square != 0.0:
        square_sbuf = float32_like(lse_sbuf)
        nisa.scalar_tensor_tensor(
            dst=square_sbuf,
            data=lse_sbuf,
            op0=nl.multiply,
            operand0=options.square,
            op1=nl.multiply,
            operand1=lse_sbuf,
        )
        nisa.tensor_tensor(dst=total_sbuf, data1=total_sbuf, data2=square_sbuf, op=nl.add)
    return total_sbuf if masks is None else selected(total_sbuf, masks.valid_sbuf)


def _where_local(values_sbuf: nl.NkiTensor, masks: TargetMasks | None) -> nl.NkiTensor:
    """Return the values in float32; 0 at targets that are ignored or whose class is in another shard."""
    return values_sbuf if masks is None else selected(cast(values_sbuf, nl.float32), masks.local_sbuf)


# A vector [N] in HBM, or None if it is not returned, and its values of a group, [rows, batches].
_PossibleResult = tuple[nl.NkiTensor | None, nl.NkiTensor]


class GroupResult(NamedTuple):
    """One result of a group of batches.

    Attributes:
        vector_hbm: the vector in HBM, [N].
        tile_sbuf: the values of the group, [rows, batches], in the type of the vector or in float32.
    """

    vector_hbm: nl.NkiTensor
    tile_sbuf: nl.NkiTensor


def results_of_all_classes(group: Group, results: Results) -> list[_PossibleResult]:
    """Compute the requested ones of argmax, entropy, log_sum_squares, mean_logit and distance_sum.

    Returns:
        Pairs of a vector in HBM (None if the kernel does not return it) and the values of the group, [rows, batches].
    """
    entries: list[_PossibleResult] = []
    if group.argmax is not None:
        entries.append((results.argmax_hbm, group.argmax.row_found_sbuf))
    moments = group.moments
    if moments is not None and moments.entropy is not None:
        entries.append((results.entropy_hbm, moments.entropy.entropies(group.statistics)))
    if moments is not None and moments.squares is not None:
        entries.append((results.log_sum_squares_hbm, moments.squares.logs(group.statistics)))
    if moments is not None and moments.mean is not None:
        entries.append((results.mean_logit_hbm, moments.mean.means(group.statistics.scale)))
    if results.distance_sum_hbm is not None:
        entries.append(
            (results.distance_sum_hbm, group.statistics.scale.times(group.first_moment.row_first_sbuf, -1.0))
        )
    return entries


def computed_results(group: Group | ShiftedGroup, results: Results, options: Options) -> Iterator[GroupResult]:
    """Yield the results of a group of batches whose logarithms of sums have been computed. Each result is computed when
    it is asked for, so that a caller can store one while the next one is computed.
    """
    for vector_hbm, tile_sbuf in _possible_results(group, results, options):
        if vector_hbm is not None:
            yield GroupResult(vector_hbm, tile_sbuf)


def _possible_results(group: Group | ShiftedGroup, results: Results, options: Options) -> Iterator[_PossibleResult]:
    """Yield pairs of a vector in HBM (None if the kernel does not return it) and the values of the group. The
    log-sum-exp comes first, so that it is stored while the loss is computed.
    """
    statistics = group.statistics
    target_results = _target_results(group, options)
    lse_sbuf = difference(statistics.log_sum_sbuf, statistics.scaled(statistics.row_neg_max_sbuf))
    yield results.lse_hbm, lse_sbuf
    masks = None if group.targets is None else group.targets.masks
    yield (
        results.loss_hbm,
        _finished_loss(target_results.loss_sbuf, lse_sbuf, masks, results.loss_hbm.dtype, options),
    )
    if results.target_logit_hbm is not None:
        yield results.target_logit_hbm, _where_local(statistics.scaled(target_results.logit_sbuf), masks)
    if results.position_weight_hbm is not None:
        weight_sbuf = target_results.weight_sbuf
        weight_sbuf = constant(lse_sbuf, 1.0) if weight_sbuf is None else weight_sbuf
        yield results.position_weight_hbm, _where_local(weight_sbuf, masks)
    if isinstance(group, Group):
        yield from results_of_all_classes(group, results)
    elif group.entropy is not None:
        yield results.entropy_hbm, group.entropy.entropies(group.statistics)
    if results.maximum_hbm is not None:
        yield results.maximum_hbm, statistics.scale.times(statistics.row_neg_max_sbuf, -1.0)
    if results.log_sum_hbm is not None:
        yield results.log_sum_hbm, statistics.log_sum_sbuf


def store_early_results(group: Group, results: Results) -> Results:
    """Compute and store the requested results of class targets that need no logarithm: target logit, weight and
    maximum.

    Returns:
        The vectors of the other results, for :func:`store_results`.
    """
    statistics, targets = group.statistics, group.targets
    if targets is None:
        return results
    weight_sbuf = targets.weights_sbuf
    early: list[_PossibleResult] = []
    if results.target_logit_hbm is not None:
        early.append((results.target_logit_hbm, _where_local(statistics.scaled(targets.logits_sbuf), targets.masks)))
    if results.position_weight_hbm is not None:
        weight_sbuf = constant(statistics.row_neg_max_sbuf, 1.0) if weight_sbuf is None else weight_sbuf
        early.append((results.position_weight_hbm, _where_local(weight_sbuf, targets.masks)))
    if results.maximum_hbm is not None:
        early.append((results.maximum_hbm, statistics.scale.times(statistics.row_neg_max_sbuf, -1.0)))
    for vector_hbm, tile_sbuf in early:
        if vector_hbm is not None:
            group.batches.stored(vector_hbm, cast(tile_sbuf, vector_hbm.dtype))
    return replace(results, target_logit_hbm=None, position_weight_hbm=None, maximum_hbm=None)


def store_results(group: Group | ShiftedGroup, results: Results, options: Options) -> list[nisa.NkiInstruction]:
    """Compute and store the results of a group of batches, after the logarithms of their sums of exponentials.

    Returns:
        The DMA instructions of the stores.
    """
    return [
        group.batches.stored(vector_hbm, cast(tile_sbuf, vector_hbm.dtype))
        for vector_hbm, tile_sbuf in computed_results(group, results, options)
    ]


def swapped_results(group: Group, batches: BatchGroup, results: Results, options: Options) -> list[SwappedResult]:
    """Compute the results of a group like :func:`store_results`, but swap them in pairs between the cores before the
    store.

    Two results form a pair if both are integers or both are floats; a result that is left over is stored directly.

    Returns:
        The swaps that have begun.
    """
    pairs: list[SwappedResult] = []
    waiting: dict[bool, GroupResult] = {}
    for vector_hbm, tile_sbuf in computed_results(group, results, options):
        result = GroupResult(vector_hbm, cast(tile_sbuf, vector_hbm.dtype))
        is_integer = vector_hbm.dtype == nl.int32
        first = waiting.pop(is_integer, None)
        if first is None:
            waiting[is_integer] = result
        elif first.vector_hbm.dtype == vector_hbm.dtype:
            pairs.append(SwappedResult.begin(batches, [first, result]))
        else:  # in float32, which holds the others exactly
            swapped = [GroupResult(item.vector_hbm, cast(item.tile_sbuf, nl.float32)) for item in (first, result)]
            pairs.append(SwappedResult.begin(batches, [*swapped]))
    for vector_hbm, tile_sbuf in waiting.values():
        batches.stored(vector_hbm, tile_sbuf)
    return pairs
