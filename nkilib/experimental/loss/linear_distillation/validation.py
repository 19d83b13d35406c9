# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks of the kernels' arguments, before anything is written.

- every kernel: :func:`validated_pair_classes` (operands), :func:`validate_pair` (options, labels, row weights);
- forward: :func:`validate_memory_limit`, :func:`validated_forward_tiling`;
- backward: :func:`validate_pair_upstream` (upstream gradients), :func:`validated_backward_tiling`;
- mixture kernel: :func:`validate_mixture` (log-sum-exps), :func:`validated_mixture_tiling`.
"""

from __future__ import annotations

from nkilib.core.host.options import is_integer, is_number
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.checks import require, require_flag, require_indirect_dma, require_vector
from nkilib.experimental.loss.cross_entropy.launch import OPTION_MAX, SOFTCAP_MIN, Classes
from nkilib.experimental.loss.cross_entropy.validation import validate_temperatures, validated_classes
from nkilib.experimental.loss.distillation.launch import LEAST_TEMPERATURE, MOST_TEMPERATURE
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.launch import LOGIT_SCALE_MAX, LOGIT_SCALE_MIN, LinearTiling
from nkilib.experimental.loss.linear.tiling import fastest_tiling
from nkilib.experimental.loss.linear.validation import (
    validate_bias,
    validate_num_classes,
    validate_operands,
    validated_blocks,
)
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import KeptSizes, MixtureSizes
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import PairForwardSizes
from nkilib.experimental.loss.linear_distillation.host.tiling import backward_tiling, forward_tiling
from nkilib.experimental.loss.linear_distillation.launch import (
    ModelOperands,
    PairLaunch,
    PairOptions,
    PairUpstream,
    PairVectors,
    require_room,
)
from nkilib.nki import nisa, nl

_INT32 = 2**31
# Masked classes have a finite score in the unit of the other model too.
_UNITS_APART_MOST = 1e12
_CHOOSER = "choose_linear_distillation_tiling"


def _validate_options(function: str, options: PairOptions) -> None:
    beta, temperature = options.beta, options.temperature
    require(
        is_number(beta) and 0.0 <= beta <= 1.0,
        f"{function}: beta must be a number from 0, for KL(teacher || student), to 1, for KL(student || teacher), "
        f"got {beta}; 0.5 is the Jensen-Shannon divergence",
    )
    require(
        is_number(temperature) and LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE,
        f"{function}: temperature must be a number from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE}, "
        f"got {temperature}; it divides the logits, and 1.0 leaves them",
    )
    ignore_index = options.ignore_index
    require(
        is_integer(ignore_index) and -_INT32 <= ignore_index < _INT32,
        f"{function}: ignore_index must be an int32, got {ignore_index}; use a label that is none, as -100",
    )


def _validate_logits(model: ModelOperands) -> None:
    function, prefix = model.function, model.prefix
    scale, cap = model.logit_scale, model.softcap
    require(
        is_number(scale) and LOGIT_SCALE_MIN <= scale <= LOGIT_SCALE_MAX,
        f"{function}: {prefix}logit_scale must be a number from {LOGIT_SCALE_MIN} to {LOGIT_SCALE_MAX}, got {scale}; "
        f"pass 1.0 for none",
    )
    require(
        cap is None or (is_number(cap) and SOFTCAP_MIN <= cap <= OPTION_MAX),
        f"{function}: {prefix}logit_softcap must be a number from {SOFTCAP_MIN} to {OPTION_MAX} or None, got {cap}; "
        f"pass None for no cap",
    )


def _validate_labels(launch: PairLaunch, labels_hbm: nl.NkiTensor) -> None:
    function, positions = launch.function, launch.num_positions
    require(
        tuple(labels_hbm.shape) == (positions,),
        f"{function}: labels_hbm must have shape ({positions},), one label for each row of student_input_hbm, "
        f"got {labels_hbm.shape}; flatten the labels as the rows",
    )
    require(
        labels_hbm.dtype == nl.int32,
        f"{function}: labels_hbm must be int32, got {labels_hbm.dtype}; cast the labels to int32",
    )


def validated_pair_classes(
    student: ModelOperands, teacher: ModelOperands, first_class: int, num_classes: int | None
) -> Classes:
    """Check the operands of both models, and return the range of classes that their weights hold.

    Raises:
        AssertionError: if an operand is not accepted, or the models do not fit each other; the message names function,
            requirement, value and remedy.
    """
    function = student.function
    require_indirect_dma(function)
    for model in (student, teacher):
        validate_operands(model, model.prefix)
        validate_bias(model, model.prefix)
    require(
        teacher.num_positions == student.num_positions,
        f"{function}: teacher_input_hbm must have the {student.num_positions} rows of student_input_hbm, "
        f"got shape {teacher.input_hbm.shape}; pass both models' hidden states of the same positions",
    )
    require(
        teacher.vocab_size == student.vocab_size,
        f"{function}: teacher_weight_hbm must have the {student.vocab_size} classes of student_weight_hbm, "
        f"got {teacher.vocab_size}; both models must have one vocabulary, and the same shard of it",
    )
    validate_num_classes(function, num_classes)
    classes_name = "the classes of student_weight_hbm"
    return validated_classes(function, student.vocab_size, classes_name, first_class, num_classes)


def validate_pair(launch: PairLaunch) -> None:
    """Check the options, the labels, the row weights and the temperatures.

    Raises:
        AssertionError: if an argument is not accepted; the message names function, requirement, value and remedy.
    """
    function = launch.function
    _validate_options(function, launch.options)
    temperature = launch.options.temperature
    validate_temperatures(function, launch.temperature_hbm, launch.num_positions, temperature, "the positions")
    for model in launch.models:
        _validate_logits(model)
    units = sorted(model.unit for model in launch.models)
    require(
        units[1] <= _UNITS_APART_MOST * units[0],
        f"{function}: softcaps, and logit scales where there is none, must be at most {_UNITS_APART_MOST} times as "
        f"large in one model as in the other, got {launch.student.unit} and {launch.teacher.unit}; pass softcaps of "
        f"the size of the logits",
    )
    if launch.labels_hbm is not None:
        _validate_labels(launch, launch.labels_hbm)
    if launch.row_weight_hbm is not None:
        require_vector(function, "row_weight_hbm", launch.row_weight_hbm, launch.num_positions, "the positions")
    for name, flag in (("with_logprob", launch.wanted.logprob), ("with_target", launch.wanted.target)):
        require_flag(function, name, flag)
        require(
            not flag or launch.labels_hbm is not None,
            f"{function}: {name} must be False without labels_hbm, got True; pass the labels",
        )


def validate_memory_limit(launch: PairLaunch, memory_limit: int | None) -> None:
    """Check the memory limit: None or at least 0 bytes, and None unless beta is strictly between 0 and 1.

    Raises:
        AssertionError: if the limit is not accepted; the message names function, requirement, value and remedy.
    """
    if memory_limit is None:
        return
    require(
        launch.is_mixed,
        f"{launch.function}: memory_limit must be None unless beta is between 0 and 1, got {memory_limit} with "
        f"beta={launch.options.beta}; no logits are kept for a Kullback-Leibler divergence",
    )
    require(
        is_integer(memory_limit) and memory_limit >= 0,
        f"{launch.function}: memory_limit must be a number of bytes from 0 or None, got {memory_limit}; 0 keeps no "
        f"logits, and both products run twice",
    )


def validated_forward_tiling(
    launch: PairLaunch, sizes: PairForwardSizes | KeptSizes, position_block: int | None, class_block: int | None
) -> LinearTiling:
    """Return the tiling of a forward with the requested blocks, or the default where None is requested.

    Raises:
        AssertionError: if a block is not accepted; the message names function, requirement, value and remedy.
    """
    target = "trn2" if nisa.get_nc_version() == nisa.nc_version.gen3 else "trn3"
    chooser = "choose_linear_distillation_tiling"
    tiling = validated_blocks(
        launch.function,
        forward_tiling(sizes, target),
        position_block,
        class_block,
        chooser,
        nl.tile_size.psum_bank_fmax,
    )
    require_room(launch, tiling, sizes.bytes_of, chooser)
    return tiling


def validate_pair_upstream(launch: PairLaunch, upstream: PairUpstream) -> None:
    """Check that the forward's results and the upstream gradients have one value for each position.

    Raises:
        AssertionError: if a vector is not accepted, or ``grad_logprob_hbm`` is passed without labels; the message names
            function, requirement, value and remedy.
    """
    for name, vector_hbm in (
        ("moment_hbm", upstream.moment_hbm),
        ("student_maximum_hbm", upstream.student.maximum_hbm),
        ("student_log_sum_hbm", upstream.student.log_sum_hbm),
        ("teacher_maximum_hbm", upstream.teacher.maximum_hbm),
        ("teacher_log_sum_hbm", upstream.teacher.log_sum_hbm),
        ("grad_divergence_hbm", upstream.grad_divergence_hbm),
        ("grad_logprob_hbm", upstream.grad_logprob_hbm),
    ):
        if vector_hbm is not None:
            require_vector(launch.function, name, vector_hbm, launch.num_positions, "the positions")
    require(
        upstream.grad_logprob_hbm is None or launch.labels_hbm is not None,
        f"{launch.function}: grad_logprob_hbm must be None without labels_hbm, got a tensor; pass the labels",
    )


def validated_backward_tiling(
    launch: PairLaunch, sizes: BackwardSizes, position_block: int | None, class_block: int | None
) -> LinearTiling:
    """Return the tiling of a backward with the requested blocks, or the default where None is requested.

    Raises:
        AssertionError: if a block is not accepted; the message names function, requirement, value and remedy.
    """
    target = "trn2" if nisa.get_nc_version() == nisa.nc_version.gen3 else "trn3"
    try:
        chosen = backward_tiling(sizes, nl.num_programs(), target)
    except ValueError:
        student, teacher = launch.models
        require(
            position_block is not None and class_block is not None,
            f"{launch.function}: student_input_hbm and teacher_input_hbm must have so few features that tiles of both "
            f"models fit SBUF, got {student.num_features} in {student.dtype} and {teacher.num_features} in "
            f"{teacher.dtype}; pass compute_dtype=nl.bfloat16",
        )
        # Requested blocks that do not fit raise an error that states their size.
        chosen = LinearTiling(nl.tile_size.pmax, nl.tile_size.pmax)
    return validated_blocks(launch.function, chosen, position_block, class_block, "choose_linear_distillation_tiling")


def validate_mixture(launch: PairLaunch, vectors: PairVectors) -> None:
    """Check that beta is strictly between 0 and 1, and that the log-sum-exps have one value for each position.

    Raises:
        AssertionError: if beta or a vector is not accepted; the message names function, requirement, value and remedy.
    """
    function = launch.function
    require(
        launch.is_mixed,
        f"{function}: beta must be between 0 and 1, and neither of them, got {launch.options.beta}; "
        f"linear_distillation_forward has the divergence of a shard for 0 and 1",
    )
    for name, vector_hbm in vectors.named().items():
        require_vector(function, name, vector_hbm, launch.num_positions, "the positions")


def validated_mixture_tiling(
    launch: PairLaunch, sizes: MixtureSizes, position_block: int | None, class_block: int | None
) -> LinearTiling:
    """Return the tiling of the mixture kernel with the requested blocks, or the default where None is requested.

    Raises:
        AssertionError: if a block is not accepted or its tiles do not fit SBUF; the message names function,
            requirement, value and remedy.
    """
    chosen, most = fastest_tiling(sizes, usable_sbuf_bytes()), nl.tile_size.psum_bank_fmax
    tiling = validated_blocks(launch.function, chosen, position_block, class_block, _CHOOSER, most)
    require_room(launch, tiling, sizes.bytes_of, _CHOOSER)
    return tiling
