# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward on one core: the gradient of the student's logits, and its products with W and X.

Both linear losses share the loop that keeps blocks of the gradient in SBUF while W and X of the student stream by
(:mod:`nkilib.experimental.loss.linear.backward.one_core`). The teacher's operands stream too, only for the logits.
"""

from __future__ import annotations

from dataclasses import replace

from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.one_core import require_fitting_plan, write_gradients_of_positions
from nkilib.experimental.loss.linear.backward.operand_pair import OperandPair
from nkilib.experimental.loss.linear.backward.parts import BackwardProblem
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.blocks import Block
from nkilib.experimental.loss.linear.shared.launch import Gradients
from nkilib.experimental.loss.linear.shared.sizes import LinearTiling
from nkilib.experimental.loss.linear.shared.staging import with_rounded_input
from nkilib.experimental.loss.linear_distillation.backward.gradient_columns import PairColumns
from nkilib.experimental.loss.linear_distillation.backward.gradient_tiles import PairGradientTiles
from nkilib.experimental.loss.linear_distillation.shared.options import TEACHER, ModelOperands, PairLaunch, PairUpstream
from nkilib.experimental.loss.linear_distillation.shared.sizes import backward_needs, parts_of_positions


def backward_of_core(
    launch: PairLaunch, upstream: PairUpstream, sizes: BackwardSizes, tiling: LinearTiling, gradients: Gradients
) -> None:
    """Write the gradients of the classes that belong to this core.

    Raises:
        AssertionError: before anything is written, if the blocks of the tiling do not fit SBUF.
    """
    require_fitting_plan(launch.function, tiling, BackwardPlan.of(sizes, *tiling))
    parts = parts_of_positions(launch)
    student, teacher = (with_rounded_input(model, model.prefix) for model in launch.models)
    launch = replace(launch, student=student, teacher=teacher)

    def problem_of(block: Block) -> BackwardProblem:
        if not parts.is_split:
            return _problem(launch, upstream)
        return _problem(launch.of_positions(block), upstream.of_positions(block))

    write_gradients_of_positions(launch.student, gradients, parts, sizes, tiling, problem_of)


def _problem(launch: PairLaunch, upstream: PairUpstream) -> BackwardProblem:
    """Return the problem that the shared backward computes gradients of."""
    needs = backward_needs(launch, upstream)

    def make_tiles(plan: BackwardPlan) -> PairGradientTiles:
        return PairGradientTiles.make(launch, needs, PairColumns.make(launch, upstream), plan)

    return BackwardProblem([_pair(launch, launch.student), _pair(launch, launch.teacher)], make_tiles)


def _pair(launch: PairLaunch, model: ModelOperands) -> OperandPair:
    """Return the operands of a model, with the score and bias of a masked class.

    Under a softcap of the student its tangent may stay -1: the gradient through the softcap is 0 there.
    """
    lowest, is_teacher = launch.lowest(model), model.name == TEACHER
    masked_score = lowest if is_teacher and model.softcap is not None else None
    lowest_bias = lowest if masked_score is None else 2.0 * lowest
    # The teacher is only needed for differences of scores.
    stays = not is_teacher or launch.options.beta == 0.0
    return OperandPair(model, model.score_cap, lowest_bias, masked_score, stays)
