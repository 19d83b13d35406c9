# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of one core: the gradient of the logits of linear cross-entropy, handed to the shared backward.

The shared backward (:mod:`nkilib.experimental.loss.linear.backward.one_core`) keeps blocks of the gradient in SBUF
while W and X stream past; both linear losses use it.
"""

from __future__ import annotations

from dataclasses import replace

from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear.backward.one_core import (
    program_share,
    require_fitting_plan,
    write_gradients_of_positions,
)
from nkilib.experimental.loss.linear.backward.operand_pair import OperandPair
from nkilib.experimental.loss.linear.backward.parts import BackwardProblem
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.blocks import Block
from nkilib.experimental.loss.linear.shared.launch import Gradients
from nkilib.experimental.loss.linear.shared.sizes import LinearTiling, position_parts
from nkilib.experimental.loss.linear.shared.staging import with_rounded_input
from nkilib.experimental.loss.linear_cross_entropy.backward.gradient_tile import GradientTiles
from nkilib.experimental.loss.linear_cross_entropy.backward.tile_needs import backward_sizes
from nkilib.experimental.loss.linear_cross_entropy.shared.options import LinearLaunch
from nkilib.nki import nl

# A masked class has a bias of -inf, and 0 * inf is NaN. With this bias its p is 0 too, and so is p times its logit.
_LOWEST_BIAS = -(2.0**100)


def backward_of_core(
    launch: LinearLaunch, options: Options, tiling: LinearTiling, upstream: PositionUpstream, gradients: Gradients
) -> None:
    """Write the gradients; this core works on its share of the classes.

    Raises:
        AssertionError: before anything is written, if the blocks of the tiling do not fit SBUF.
    """
    parts = position_parts(launch.num_positions, launch.num_features, launch.ids)
    first_part = launch.of_positions(Block(0, parts.size))
    adds_to_weight = gradients.adds_to_weight or parts.is_split
    sizes = backward_sizes(first_part, options, upstream, adds_to_weight, gradients.sums_bias_of(launch))
    sizes = replace(sizes, program_share=program_share(parts))
    require_fitting_plan(launch.function, tiling, BackwardPlan.of(sizes, *tiling))
    launch = with_rounded_input(launch)

    def problem_of(block: Block) -> BackwardProblem:
        if not parts.is_split:
            return problem_of_launch(launch, options, upstream)
        return problem_of_launch(launch.of_positions(block), options, upstream_of_positions(upstream, block))

    write_gradients_of_positions(launch, gradients, parts, sizes, tiling, problem_of)


def problem_of_launch(launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> BackwardProblem:
    """Return the problem that the shared backward computes gradients of."""
    lowest_bias = None
    # The gradient of the entropy multiplies p with its logit, of which none may be -inf.
    if upstream.grad_entropy_hbm is not None and options.softcap is None:
        lowest_bias = _LOWEST_BIAS / max(1.0, options.scale)
    pair = OperandPair(launch, options.softcap, lowest_bias)

    def make_tiles(plan: BackwardPlan) -> GradientTiles:
        return GradientTiles.of_launch(launch, options, upstream, plan)

    return BackwardProblem([pair], make_tiles)


def upstream_of_positions(upstream: PositionUpstream, block: Block) -> PositionUpstream:
    """Return the upstream gradients and statistics of a block of positions."""

    def of(vector_hbm: nl.NkiTensor | None) -> nl.NkiTensor | None:
        return None if vector_hbm is None else block.of(vector_hbm)

    return PositionUpstream(
        block.of(upstream.lse_hbm),
        of(upstream.grad_loss_hbm),
        of(upstream.grad_lse_hbm),
        of(upstream.grad_logprob_hbm),
        of(upstream.target_weight_hbm),
        upstream.weight_sum,
        of(upstream.maximum_hbm),
        of(upstream.log_sum_hbm),
        of(upstream.entropy_hbm),
        of(upstream.grad_entropy_hbm),
    )
