# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks of the arguments of linear cross-entropy and token scores, before anything is written.

Operands and upstream gradients of a loss are checked by :func:`validate_linear_arrays` and
:func:`validate_linear_upstream`, options by :func:`validated_linear_options`, tilings by :func:`validated_tiling`. A
single launch of loss and gradients has :func:`validated_grad_scale` and :func:`validate_scratch_bytes`. The kernels for
several target ids accept K ids per position (:func:`validated_ids`) and upstream gradients of their log-probabilities
(:func:`validate_score_upstream`).
"""

from __future__ import annotations

import math

from nkilib.core.host.options import is_integer, is_number
from nkilib.core.rows.checks import require, require_indirect_dma, require_vector
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, Options, PositionUpstream, Wanted
from nkilib.experimental.loss.cross_entropy.validation import (
    validate_class_targets,
    validate_recipe,
    validate_temperatures,
    validate_upstream,
    validate_wanted,
    validated_classes,
)
from nkilib.experimental.loss.linear.launch import IDS_MAX, SCRATCH_BYTES, LinearTiling, check_logit_scale
from nkilib.experimental.loss.linear.validation import (
    validate_bias,
    validate_num_classes,
    validate_operands,
    validated_blocks,
)
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import FORWARD, choose_linear_tiling
from nkilib.experimental.loss.linear_cross_entropy.launch import ForwardNeeds, LinearLaunch, scaled_recipe
from nkilib.nki import nisa, nl

_LIKE = "the rows of the input"
_VECTORS = ("maximum", "log_sum", "grad_lse", "entropy", "grad_entropy")
_GRADIENTS = ("grad_logprob", "grad_lse", "grad_entropy")
_PAIRS = (("maximum", "log_sum"), ("entropy", "grad_entropy"))


def validated_linear_options(
    launch: LinearLaunch,
    recipe: LossOptions,
    logit_scale: float,
    first_class: int,
    num_classes: int | None,
    wanted: Wanted | None = None,
) -> Options:
    """Return the validated options of a kernel, with the scale of the logits folded into cap and temperature.

    Raises:
        AssertionError: if an array, an option or a result is not accepted; the message names function, requirement,
            value and remedy.
    """
    function = launch.function
    validate_linear_arrays(launch)
    validate_num_classes(function, num_classes)
    classes = validated_classes(function, launch.vocab_size, "the classes of weight_hbm", first_class, num_classes)
    wanted = wanted or Wanted()
    validate_recipe(function, recipe)
    validate_temperatures(function, launch.temperature_hbm, launch.num_positions, recipe.temperature, _LIKE)
    check_logit_scale(function, logit_scale)
    recipe = scaled_recipe(recipe, logit_scale)
    validate_wanted(function, wanted, classes)
    return Options(classes, is_weighted=launch.class_weight_hbm is not None, recipe=recipe, wanted=wanted)


def validate_linear_arrays(launch: LinearLaunch) -> None:
    """Check that the tensors fit each other, and that the kernels accept them.

    Raises:
        AssertionError: if they do not; the message names function, requirement, value and remedy.
    """
    function = launch.function
    require_indirect_dma(function)
    validate_operands(launch)
    if launch.ids == 1:
        validate_class_targets(function, launch.targets_hbm, launch.num_positions, "input_hbm", _LIKE)
    validate_bias(launch)
    if launch.class_weight_hbm is not None:
        require_vector(function, "class_weight_hbm", launch.class_weight_hbm, launch.vocab_size, "the classes")


def validate_linear_upstream(launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> None:
    """Check that upstream gradients and statistics fit each other, the positions and the options.

    Raises:
        AssertionError: if they do not; the message names function, requirement, value and remedy.
    """
    validate_upstream(launch.function, launch.num_positions, options, upstream, _LIKE, requires_loss=False)


def validated_grad_scale(
    function: str, grad_scale: float | None, grad_scale_hbm: nl.NkiTensor | None
) -> float | nl.NkiTensor:
    """Return the factor of every gradient: a host number, or a tensor [1] of the device.

    Raises:
        AssertionError: if the factor is not accepted; the message names function, requirement, value and remedy.
    """
    remedy = "pass grad_scale=1 / count for the mean, 1.0 for the sum"
    require(
        grad_scale is None or grad_scale_hbm is None,
        f"{function}: grad_scale and grad_scale_hbm must not both be given, got {grad_scale} and a tensor; {remedy}",
    )
    if grad_scale_hbm is not None:
        require(
            tuple(grad_scale_hbm.shape) == (1,),
            f"{function}: grad_scale_hbm must have shape (1,), got {grad_scale_hbm.shape}; it is one for all positions",
        )
        require(
            grad_scale_hbm.dtype == nl.float32,
            f"{function}: grad_scale_hbm must be float32, got {grad_scale_hbm.dtype}; cast it to float32",
        )
        return grad_scale_hbm
    if not is_number(grad_scale) or not math.isfinite(grad_scale):
        raise AssertionError(f"{function}: grad_scale must be a finite number, got {grad_scale}; {remedy}")
    return float(grad_scale)


def validate_scratch_bytes(launch: LinearLaunch, scratch_bytes: int) -> None:
    """Check that the scratch memory holds the logits of one tile of positions.

    Raises:
        AssertionError: if it does not; the message names function, requirement, value and remedy.
    """
    positions = min(launch.num_positions, nl.tile_size.pmax)
    least = positions * launch.vocab_size * 4
    require(
        is_integer(scratch_bytes) and scratch_bytes >= least,
        f"{launch.function}: scratch_bytes must be an integer of at least {least}, the float32 logits of "
        f"{positions} positions, got {scratch_bytes}; pass more, or launch forward and backward apart",
    )


def validated_tiling(
    launch: LinearLaunch,
    extended: bool,
    direction: str,
    position_block: int | None,
    class_block: int | None,
    scratch_bytes: int = SCRATCH_BYTES,
    needs: ForwardNeeds | None = None,
) -> LinearTiling:
    """Return the tiling with the requested sizes, or those of ``choose_linear_tiling`` where None is requested.

    Args:
        launch: the operands of a kernel.
        extended, direction, scratch_bytes: see ``choose_linear_tiling``.
        position_block, class_block: the requested block sizes, or None.
        needs: the options of the forward that take memory or time; None for those that ``extended`` implies.

    Raises:
        AssertionError: if a size is not accepted; the message names function, requirement, value and remedy.
    """
    chosen = choose_linear_tiling(
        launch.num_positions,
        launch.num_features,
        launch.vocab_size,
        launch.dtype,
        direction,
        cores=nl.num_programs(),
        target="trn2" if nisa.get_nc_version() == nisa.nc_version.gen3 else "trn3",
        weight_layout=launch.weight_layout,
        extended=extended,
        scratch_bytes=scratch_bytes,
        input_dtype=launch.input_hbm.dtype,
        weight_dtype=launch.weight_hbm.dtype,
        forward_needs=needs,
        ids=launch.ids,
    )
    most = nl.tile_size.psum_bank_fmax if direction == FORWARD else None
    return validated_blocks(launch.function, chosen, position_block, class_block, "choose_linear_tiling", most)


def validated_ids(function: str, input_hbm: nl.NkiTensor, targets_hbm: nl.NkiTensor) -> int:
    """Return K, the number of target ids per position, from targets [N, K] for N positions.

    Raises:
        AssertionError: if the targets are not accepted; the message names function, requirement, value and remedy.
    """
    positions, shape = input_hbm.shape[0], tuple(targets_hbm.shape)
    require(
        len(shape) == 2 and shape[0] == positions,
        f"{function}: targets_hbm must have shape ({positions}, K), K target ids for each row of input_hbm, "
        f"got {shape}; pass [N, 1] for one id",
    )
    require(
        1 <= shape[1] <= IDS_MAX,
        f"{function}: targets_hbm must have 1 to {IDS_MAX} target ids for each position, got shape {shape}; "
        f"launch several times for more",
    )
    require(
        targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32, got {targets_hbm.dtype}; cast the targets to int32",
    )
    return shape[1]


def validate_score_upstream(launch: LinearLaunch, upstream: PositionUpstream) -> None:
    """Check that upstream gradients and statistics of token scores fit each other and the positions.

    Raises:
        AssertionError: if they do not; the message names function, requirement, value and remedy.
    """
    function, positions = launch.function, launch.num_positions
    require_vector(function, "lse_hbm", upstream.lse_hbm, positions, _LIKE)
    for name in _VECTORS:
        vector_hbm = getattr(upstream, f"{name}_hbm")
        if vector_hbm is not None:
            require_vector(function, f"{name}_hbm", vector_hbm, positions, _LIKE)
    gradient_hbm = upstream.grad_logprob_hbm
    if gradient_hbm is not None:
        shape = (positions, launch.ids)
        require(
            tuple(gradient_hbm.shape) == shape,
            f"{function}: grad_logprob_hbm must have the shape of targets_hbm, {shape}, got {gradient_hbm.shape}; "
            f"pass a gradient for each log-probability",
        )
        require(
            gradient_hbm.dtype == nl.float32,
            f"{function}: grad_logprob_hbm must be float32, got {gradient_hbm.dtype}; cast it to float32",
        )
    require(
        any(getattr(upstream, f"{name}_hbm") is not None for name in _GRADIENTS),
        f"{function}: at least one of {', '.join(f'{name}_hbm' for name in _GRADIENTS)} must be a tensor, got none; "
        f"launch nothing where no gradient comes",
    )
    for first, second in _PAIRS:
        have = [getattr(upstream, f"{name}_hbm") is None for name in (first, second)]
        require(
            have[0] == have[1],
            f"{function}: {first}_hbm and {second}_hbm belong together, got one of them; pass both, or neither",
        )
