# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The sizes and options of launches, forward and backward, in the form in which host code chooses a tiling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.one_core import program_share
from nkilib.experimental.loss.linear.backward.operand_pair import PairSizes
from nkilib.experimental.loss.linear.shared.sizes import LinearTiling, PositionParts
from nkilib.experimental.loss.linear_distillation.host.forward_tiling import (
    PairForwardSizes,
    StreamSizes,
)
from nkilib.experimental.loss.linear_distillation.host.needs import ModelNeeds, PairNeeds, gradient_needs
from nkilib.experimental.loss.linear_distillation.host.tiling import pair_parts
from nkilib.experimental.loss.linear_distillation.shared.options import ModelOperands, PairLaunch, PairUpstream
from nkilib.nki import nl


def pair_needs(launch: PairLaunch) -> PairNeeds:
    """Return the options of a forward that take room or time."""
    student, teacher = (
        ModelNeeds(model.bias_hbm is not None, model.softcap is not None, model.scale != 1.0) for model in launch.models
    )
    return PairNeeds(
        student,
        teacher,
        mixed=launch.is_mixed,
        reverse=launch.is_reverse,
        target=launch.wanted.needs_target,
        ratio=launch.ratio != 1.0,
    )


def stream_sizes(model: ModelOperands) -> StreamSizes:
    """Return the sizes of one model's operands in a forward."""
    return StreamSizes(
        model.num_features,
        dtype_bytes(model.dtype),
        weight_itemsize=model.casts.weight,
        staging_bytes=model.casts.forward_staging(model.has_classes_first),
    )


def forward_sizes(launch: PairLaunch, program_share: float = 1.0) -> PairForwardSizes:
    """Return the sizes of a forward that may have ``program_share`` of the instructions of a program."""
    student, teacher = (stream_sizes(model) for model in launch.models)
    return PairForwardSizes(
        launch.num_positions,
        launch.vocab_size,
        student,
        teacher,
        nl.num_programs(),
        pair_needs(launch).of_products(student.products + teacher.products),
        program_share,
    )


def require_room(launch: PairLaunch, tiling: LinearTiling, bytes_of: Callable[[int, int], int], chooser: str) -> None:
    """Check that the tiles of a tiling fit SBUF.

    Args:
        launch: the launch of the kernel.
        tiling: the tiling.
        bytes_of: the function that returns the bytes of a partition, given the numbers of tiles of positions and of
            classes of a block.
        chooser: the name of the function that chooses a tiling.

    Raises:
        AssertionError: if they do not fit; the message names function, requirement, value and remedy.
    """
    tiles = min(div_ceil(tiling.position_block, PARTITIONS), div_ceil(launch.num_positions, PARTITIONS))
    needed, most = bytes_of(tiles, tiling.class_block), usable_sbuf_bytes()
    remedy = f"None takes the value of {chooser}"
    if bytes_of(1, PARTITIONS) > most:
        remedy = "no smaller one fits either: pass compute_dtype=nl.bfloat16 for less, or fewer features"
    require(
        needed <= most,
        f"{launch.function}: position_block and class_block must leave the tiles of {launch.student.num_features} and "
        f"{launch.teacher.num_features} features at most {most} bytes of a partition, got {needed} with "
        f"position_block={tiling.position_block} and class_block={tiling.class_block}; {remedy}",
    )


def backward_needs(launch: PairLaunch, upstream: PairUpstream) -> PairNeeds:
    """Return the options of a backward that its tiles of the gradient depend on."""
    return replace(pair_needs(launch), target=upstream.grad_logprob_hbm is not None)


def parts_of_positions(launch: PairLaunch) -> PositionParts:
    """Return the parts that the positions of a backward are split into: one, or several for very many positions."""
    student, teacher = launch.models
    feature_bytes = sum(model.num_features * dtype_bytes(model.dtype) for model in launch.models)
    return pair_parts(launch.num_positions, student.num_features, teacher.num_features, feature_bytes)


def backward_sizes(
    launch: PairLaunch, upstream: PairUpstream, adds_to_weight: bool, bias_wanted: bool
) -> BackwardSizes:
    """Return the sizes that the plan of a launch depends on, or of a part of its positions if they are split.

    Args:
        launch, upstream: the launch of the kernel, and its upstream gradients.
        adds_to_weight: whether the caller has a sum that dW is added to.
        bias_wanted: whether the gradient of the student's bias is wanted.
    """
    parts = parts_of_positions(launch)
    needs = replace(backward_needs(launch, upstream), sums_bias=bias_wanted and launch.student.rounds_more_than_bias)
    student, teacher = launch.student, PairSizes.of_operands(launch.teacher)
    staging = student.casts.backward_staging(student.has_classes_first)
    return BackwardSizes(
        parts.size,
        student.num_features,
        launch.vocab_size,
        dtype_bytes(student.dtype),
        student.has_classes_first,
        gradient_needs(needs),
        adds_to_weight or parts.is_split,
        program_share=program_share(parts),
        weight_itemsize=student.casts.weight,
        staging_bytes=max(staging, teacher.staging_bytes),
        further=(teacher,),
    )
