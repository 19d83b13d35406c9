"""The sizes and the needs of a backward, as host code has them that chooses a tiling."""

from __future__ import annotations

from dataclasses import replace

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.linear.backward import program_share
from nkilib.experimental.loss.linear.backward_plan import BackwardSizes
from nkilib.experimental.loss.linear.operand_pair import PairSizes
from nkilib.experimental.loss.linear.sizes import PositionParts
from nkilib.experimental.loss.linear_distillation.host.backward_tiling import pair_parts
from nkilib.experimental.loss.linear_distillation.host.gradient_needs import gradient_needs
from nkilib.experimental.loss.linear_distillation.host.pair_needs import PairNeeds
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.experimental.loss.linear_distillation.pair_sizes import pair_needs
from nkilib.experimental.loss.linear_distillation.pair_upstream import PairUpstream


def backward_needs(launch: PairLaunch, upstream: PairUpstream) -> PairNeeds:
    """The options that take tiles of the gradient."""
    return replace(pair_needs(launch), target=upstream.grad_logprob_hbm is not None)


def parts_of_positions(launch: PairLaunch) -> PositionParts:
    """One part, or several of very many positions."""
    student, teacher = launch.models
    feature_bytes = sum(model.num_features * dtype_bytes(model.dtype) for model in launch.models)
    return pair_parts(launch.num_positions, student.num_features, teacher.num_features, feature_bytes)


def backward_sizes(launch: PairLaunch, upstream: PairUpstream, adds_to_weight: bool) -> BackwardSizes:
    """What the plan of a launch depends on, of a part of its positions where they are split.

    ``adds_to_weight``: the caller has a sum that dW is added to.
    """
    parts = parts_of_positions(launch)
    student, teacher = launch.student, PairSizes.of_operands(launch.teacher)
    staging = student.casts.backward_staging(student.has_classes_first)
    return BackwardSizes(
        parts.size,
        student.num_features,
        launch.vocab_size,
        dtype_bytes(student.dtype),
        student.has_classes_first,
        gradient_needs(backward_needs(launch, upstream)),
        adds_to_weight or parts.is_split,
        program_share=program_share(parts),
        weight_itemsize=student.casts.weight,
        staging_bytes=max(staging, teacher.staging_bytes),
        further=(teacher,),
    )
