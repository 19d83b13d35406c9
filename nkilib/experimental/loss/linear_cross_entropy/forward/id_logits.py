# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Forward results for several target ids per position: log-probabilities [N, K] instead of a loss."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import difference, float32_like, scaled, selected
from nkilib.experimental.loss.cross_entropy.group import Group, TargetValues
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.results import GroupResult, Results, new_vector, results_of_all_classes
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.linear.forward.target_logits import over_ids
from nkilib.experimental.loss.linear_cross_entropy.shared.options import LinearLaunch
from nkilib.experimental.loss.linear_cross_entropy.shared.positions import one_or_several
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class ScoreResults:
    """The result tensors in HBM, in the order in which a kernel returns them; None for results that it does not return.

    Attributes:
        logprob_hbm, target_logit_hbm: tensors [N, K].
        lse_hbm: log-sum-exp, [N].
        others: further vectors [N]. The loss among them is the log-probability, and no loss is written.
    """

    logprob_hbm: nl.NkiTensor
    lse_hbm: nl.NkiTensor
    target_logit_hbm: nl.NkiTensor | None
    others: Results

    @classmethod
    def of_options(cls, launch: LinearLaunch, options: Options) -> ScoreResults:
        """Allocate the tensors for the requested results."""

        def matrix(name: str) -> nl.NkiTensor:
            shape = (launch.num_positions, launch.ids)
            return nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name=name)

        def vector(name: str, is_wanted: bool, dtype: nl.DType = nl.float32) -> nl.NkiTensor | None:
            return new_vector(name, launch.num_positions, dtype) if is_wanted else None

        wanted = options.wanted
        logprob_hbm = matrix("logprob_hbm")
        lse_hbm = new_vector("lse_hbm", launch.num_positions, nl.float32)
        others = Results(
            logprob_hbm,
            lse_hbm,
            argmax_hbm=vector("argmax_hbm", wanted.argmax, nl.int32),
            entropy_hbm=vector("entropy_hbm", wanted.entropy),
            maximum_hbm=vector("maximum_hbm", wanted.log_sum),
            log_sum_hbm=vector("log_sum_hbm", wanted.log_sum),
            log_sum_squares_hbm=vector("log_sum_squares_hbm", wanted.log_sum_squares),
            mean_logit_hbm=vector("mean_logit_hbm", wanted.mean_logit),
        )
        return cls(logprob_hbm, lse_hbm, matrix("target_logit_hbm") if wanted.target else None, others)

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return the tensors that a kernel returns."""
        others = self.others
        tensors = (
            self.logprob_hbm,
            self.lse_hbm,
            self.target_logit_hbm,
            others.argmax_hbm,
            others.entropy_hbm,
            others.maximum_hbm,
            others.log_sum_hbm,
            others.log_sum_squares_hbm,
            others.mean_logit_hbm,
        )
        return tuple(tensor_hbm for tensor_hbm in tensors if tensor_hbm is not None)


def score_results(group: Group, results: ScoreResults, options: Options) -> list[GroupResult]:
    """Compute the results of a block of positions whose log d, the log of the sum of exponentials, is known."""
    statistics, targets = group.statistics, group.targets
    if targets is None or targets.masks is None:
        raise ValueError("linear_token_scores_forward: there must be targets, got none; pass targets_hbm")
    lse_sbuf = difference(statistics.log_sum_sbuf, statistics.scaled(statistics.row_neg_max_sbuf))
    scores_sbuf = _scores(targets, options)
    pairs = [
        (one_or_several(results.logprob_hbm), _logprob(scores_sbuf, lse_sbuf, group, targets)),
        (results.lse_hbm, lse_sbuf),
        *results_of_all_classes(group, results.others),
    ]
    if results.target_logit_hbm is not None:
        local_sbuf = selected(statistics.scaled(scores_sbuf), targets.masks.local_sbuf)
        pairs.append((one_or_several(results.target_logit_hbm), local_sbuf))
    if results.others.maximum_hbm is not None:
        pairs.append((results.others.maximum_hbm, scaled(statistics.row_neg_max_sbuf, -statistics.scale)))
        pairs.append((results.others.log_sum_hbm, statistics.log_sum_sbuf))
    return [GroupResult(vector_hbm, tile_sbuf) for vector_hbm, tile_sbuf in pairs if vector_hbm is not None]


def _scores(targets: TargetValues, options: Options) -> nl.NkiTensor:
    """Return the scores at the targets: the logits, or their tangents under a cap, of which z is a multiple."""
    if options.softcap is None:
        return targets.logits_sbuf
    tangents_sbuf = float32_like(targets.logits_sbuf)
    hyperbolic_tangents(tangents_sbuf, targets.logits_sbuf, options.softcap)
    masked_tangents(tangents_sbuf, tangents_sbuf, targets.logits_sbuf)
    return tangents_sbuf


def _logprob(scores_sbuf: nl.NkiTensor, lse_sbuf: nl.NkiTensor, group: Group, targets: TargetValues) -> nl.NkiTensor:
    """Return z[t] - m - log d, 0 where the id is ignored and NaN where lse is infinite.

    m is the maximum, and d the sum of exponentials relative to it. The result does not go through lse: where logits are
    large, z[t] - lse would cancel the part of log d that the rounding of lse has kept.
    """
    statistics = group.statistics
    distance_sbuf = float32_like(scores_sbuf)
    nisa.tensor_tensor(
        dst=distance_sbuf, data1=scores_sbuf, data2=_of_ids(statistics.row_neg_max_sbuf, scores_sbuf), op=nl.add
    )
    # Adding lse * 0 makes the log-probability NaN where lse is infinite or NaN.
    subtracted_sbuf = float32_like(lse_sbuf)
    nisa.scalar_tensor_tensor(
        dst=subtracted_sbuf,
        data=lse_sbuf,
        op0=nl.multiply,
        operand0=0.0,
        op1=nl.add,
        operand1=statistics.log_sum_sbuf,
    )
    nisa.scalar_tensor_tensor(
        dst=distance_sbuf,
        data=distance_sbuf,
        op0=nl.multiply,
        operand0=statistics.scale,
        op1=nl.subtract,
        operand1=_of_ids(subtracted_sbuf, scores_sbuf),
    )
    if targets.masks is None:
        return distance_sbuf
    return selected(distance_sbuf, targets.masks.valid_sbuf)


def _of_ids(values_sbuf: nl.NkiTensor, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return per-position scalars as a view in the shape of a tile of the ids."""
    return values_sbuf if len(like_sbuf.shape) == 2 else over_ids(values_sbuf, like_sbuf.shape[2])
