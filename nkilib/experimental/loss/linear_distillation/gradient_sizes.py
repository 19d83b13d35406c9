"""The sizes and the needs of a backward, as host code has them that chooses a tiling."""

from __future__ import annotations

from dataclasses import replace

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.experimental.loss.linear.backward_plan import BackwardSizes
from nkilib.experimental.loss.linear.operand_pair import PairSizes
from nkilib.experimental.loss.linear_distillation.host.gradient_needs import gradient_needs
from nkilib.experimental.loss.linear_distillation.host.pair_needs import PairNeeds
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.experimental.loss.linear_distillation.pair_sizes import pair_needs
from nkilib.experimental.loss.linear_distillation.pair_upstream import PairUpstream


def backward_needs(launch: PairLaunch, upstream: PairUpstream) -> PairNeeds:
    """The options that take tiles of the gradient."""
    return replace(pair_needs(launch), target=upstream.grad_logprob_hbm is not None)


def backward_sizes(launch: PairLaunch, upstream: PairUpstream, adds_to_weight: bool) -> BackwardSizes:
    """What the plan of a launch depends on."""
    student, teacher = launch.student, PairSizes.of_operands(launch.teacher)
    staging = student.casts.backward_staging(student.has_classes_first)
    return BackwardSizes(
        launch.num_positions,
        student.num_features,
        launch.vocab_size,
        dtype_bytes(student.dtype),
        student.has_classes_first,
        gradient_needs(backward_needs(launch, upstream)),
        adds_to_weight,
        weight_itemsize=student.casts.weight,
        staging_bytes=max(staging, teacher.staging_bytes),
        further=(teacher,),
    )
