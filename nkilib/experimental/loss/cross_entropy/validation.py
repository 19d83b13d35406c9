# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The checks of the arguments of the cross-entropy kernels, which run before the first instruction.

:func:`validated_options` and :func:`validated_classes` return checked options and the checked range of classes; the
functions ``validate_...`` check tensors, sizes and requested results. N is the number of positions.
"""

from __future__ import annotations

from dataclasses import fields

from nkilib.core.hardware import PARTITIONS
from nkilib.core.host.options import is_integer, is_number
from nkilib.core.rows.argmax import ARGMAX_COLUMNS_MAX
from nkilib.core.rows.checks import (
    Words,
    require,
    require_chunk_size,
    require_flag,
    require_float_type,
    require_indirect_dma,
    require_rows_per_batch,
    require_vector,
)
from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.core.rows.sbuf import SbufPlan
from nkilib.experimental.loss.cross_entropy.launch import (
    POSITIONS_PER_PARTITION_MAX,
    Classes,
    Launch,
    LossOptions,
    Options,
    PositionUpstream,
    Wanted,
    check_options,
)
from nkilib.nki import nl

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1

_GRADIENTS = ("grad_loss", "grad_lse", "grad_logprob", "grad_entropy")
_VECTORS = ("lse", "maximum", "log_sum", "entropy", *_GRADIENTS, "target_weight")
_WORDS = Words(row="vocabulary", rows_per_batch="positions_per_batch")


def validated_options(
    launch: Launch, recipe: LossOptions, first_class: int, num_classes: int | None, wanted: Wanted | None = None
) -> Options:
    """Check the arguments of an extended kernel and return its options. :func:`validate_tiles` checks the tile sizes.

    Args:
        first_class: the class of the first column of the logits.
        num_classes: the number of classes of all shards; None: the number of columns.
        wanted: the requested results; None requests no results besides loss and log-sum-exp.

    Raises:
        AssertionError: if an argument is not accepted; the message has function, requirement, value and remedy.
    """
    function = launch.function
    has_probabilities = len(launch.targets_hbm.shape) == 2
    validate_arrays(launch, allow_probabilities=True)
    if launch.class_weight_hbm is not None:
        require_vector(function, "class_weight_hbm", launch.class_weight_hbm, launch.vocab_size, "the logits")
    classes = validated_classes(function, launch.vocab_size, "the columns", first_class, num_classes)
    wanted = wanted or Wanted()
    validate_recipe(function, recipe)
    validate_temperatures(function, launch.temperature_hbm, launch.num_positions, recipe.temperature, "the logits")
    validate_wanted(function, wanted, classes)
    is_weighted = launch.class_weight_hbm is not None
    return Options(classes, False, is_weighted, has_probabilities, recipe, wanted)


def validate_recipe(function: str, recipe: LossOptions) -> None:
    """Check that ``ignore_index`` is an int32 and the other options are in range (:func:`.launch.check_options`).

    Raises:
        AssertionError: if an option is out of range; the message has function, requirement, value and remedy.
    """
    require(
        is_integer(recipe.ignore_index) and INT32_MIN <= recipe.ignore_index <= INT32_MAX,
        f"{function}: ignore_index must be an integer of 32 bits, as targets are, got {recipe.ignore_index}",
    )
    check_options(function, recipe)


def validate_temperatures(
    function: str, temperature_hbm: nl.NkiTensor | None, num_positions: int, temperature: float, like: str
) -> None:
    """Check a tensor of temperatures; None is accepted.

    Args:
        function: the name of the function in error messages.
        temperature_hbm: the temperatures, [N] or [1], or None.
        num_positions: N.
        temperature: the option ``temperature``, which must be 1.0 if ``temperature_hbm`` is not None.
        like: the name, in error messages, of the tensor that has one row per position.

    Raises:
        AssertionError: if an argument is not accepted; the message has function, requirement, value and remedy.
    """
    if temperature_hbm is None:
        return
    require(
        temperature == 1.0,
        f"{function}: temperature must be 1.0 beside temperature_hbm, got {temperature}; pass one of them",
    )
    if tuple(temperature_hbm.shape) != (1,):
        require_vector(function, "temperature_hbm", temperature_hbm, num_positions, like)
    require(
        temperature_hbm.dtype == nl.float32,
        f"{function}: temperature_hbm must be float32, got {temperature_hbm.dtype}; cast it",
    )


def validate_wanted(function: str, wanted: Wanted, classes: Classes) -> None:
    """Check that all flags of ``wanted`` are bool, and that a requested argmax has few enough classes for float32.

    Raises:
        AssertionError: if a flag is not accepted; the message has function, requirement, value and remedy.
    """
    for result in fields(wanted):
        require_flag(function, f"with_{result.name}", getattr(wanted, result.name))
    require(
        not wanted.argmax or classes.total <= ARGMAX_COLUMNS_MAX,
        f"{function}: with_argmax must be False for more than {ARGMAX_COLUMNS_MAX} classes, which are counted in "
        f"float32, got {classes.total} classes; take the argmax elsewhere",
    )


def validate_arrays(launch: Launch, allow_probabilities: bool) -> None:
    """Check the shapes and types of logits and targets, the type of the tiles, and that the device has indirect DMA.

    Raises:
        AssertionError: if a check fails; the message has function, requirement, value and remedy.
    """
    function = launch.function
    require_indirect_dma(function)
    _validate_logits(function, launch.logits_hbm)
    require_float_type(function, "logits_hbm.dtype", launch.logits_hbm.dtype)
    if allow_probabilities and len(launch.targets_hbm.shape) == 2:
        require(
            tuple(launch.targets_hbm.shape) == tuple(launch.logits_hbm.shape),
            f"{function}: class probabilities must have the shape of logits_hbm, {launch.logits_hbm.shape}, "
            f"got {launch.targets_hbm.shape}; flatten them as the logits",
        )
        require_float_type(function, "targets_hbm.dtype of class probabilities", launch.targets_hbm.dtype)
    else:
        validate_class_targets(function, launch.targets_hbm, launch.num_positions, "logits_hbm", "the logits")
    require_float_type(function, "dtype", launch.dtype)
    require(
        launch.dtype != nl.float16 or launch.logits_hbm.dtype == nl.float16,
        f"{function}: dtype must be nl.bfloat16 or nl.float32 for logits of {launch.logits_hbm.dtype}, whose range "
        f"exceeds float16, got {launch.dtype}; use one of the two",
    )


def validate_tiles(launch: Launch, plan: SbufPlan) -> None:
    """Check the requested layout, and that the tiles of a chunk and the scratch tiles of ``plan`` fit SBUF together.

    Raises:
        AssertionError: if a check fails; the message has function, requirement, value and remedy.
    """
    validate_layout(launch)
    require_rows_per_batch(launch.function, _WORDS.rows_per_batch, launch.positions_per_batch)
    require_chunk_size(
        launch.function,
        launch.chunk_size,
        launch.vocab_size,
        launch.positions_per_batch,
        launch.dtype,
        plan,
        _WORDS,
    )


def validate_layout(launch: Launch) -> None:
    """Check the requested layout: the numbers ``partitions_per_position`` and ``positions_per_partition``.

    Raises:
        AssertionError: if a number is out of range, or both are larger than 1; the message has function, requirement,
            value and remedy.
    """
    function, (parts, most) = launch.function, launch.layout
    require(
        is_integer(parts) and 1 <= parts <= PARTITIONS and parts & (parts - 1) == 0,
        f"{function}: partitions_per_position must be a power of two from 1 to {PARTITIONS}, got {parts}; "
        f"take that of choose_tiling",
    )
    require(
        is_integer(most) and 1 <= most <= POSITIONS_PER_PARTITION_MAX,
        f"{function}: positions_per_partition must be an integer from 1 to {POSITIONS_PER_PARTITION_MAX}, got {most}; "
        f"take that of choose_tiling",
    )
    require(
        parts == 1 or most == 1,
        f"{function}: positions_per_partition must be 1 with several partitions_per_position, got {most} and {parts}; "
        f"pass one of them",
    )


def validate_lse(launch: Launch, lse_state_hbm: nl.NkiTensor) -> None:
    """Check the shape [N] and the type of ``lse_state_hbm``, the log-sum-exp that the plain forward returned.

    Raises:
        AssertionError: if shape or type are not accepted; the message has function, requirement, value and remedy.
    """
    function, num_positions = launch.function, launch.num_positions
    require(
        tuple(lse_state_hbm.shape) == (num_positions,),
        f"{function}: lse_state_hbm must have shape ({num_positions},), one value for each row of logits_hbm, "
        f"got {lse_state_hbm.shape}; pass the second result of cross_entropy_forward",
    )
    require_float_type(function, "lse_state_hbm.dtype", lse_state_hbm.dtype)


def validate_upstream(
    function: str,
    num_positions: int,
    options: Options,
    upstream: PositionUpstream,
    like: str,
    *,
    requires_loss: bool = True,
) -> None:
    """Check the upstream gradients and statistics of a backward, and that they match the options.

    Args:
        function: the name of the function in error messages.
        num_positions: N.
        options: the options of the kernel.
        upstream: the upstream gradients and statistics of the kernel.
        like: the name, in error messages, of the tensor that has one row per position.
        requires_loss: whether ``grad_loss_hbm`` is required; else any one of the upstream gradients suffices.

    Raises:
        AssertionError: if a tensor is not accepted; the message has function, requirement, value and remedy.
    """
    required = ("lse", "grad_loss") if requires_loss else ("lse",)
    for name in _VECTORS:
        vector_hbm = getattr(upstream, f"{name}_hbm")
        if vector_hbm is not None or name in required:
            require_vector(function, f"{name}_hbm", vector_hbm, num_positions, like)
    require(
        any(getattr(upstream, f"{name}_hbm") is not None for name in _GRADIENTS),
        f"{function}: at least one of {', '.join(f'{name}_hbm' for name in _GRADIENTS)} must be a tensor, got none; "
        f"launch nothing where no gradient comes",
    )
    require(
        (upstream.maximum_hbm is None) == (upstream.log_sum_hbm is None),
        f"{function}: maximum_hbm and log_sum_hbm belong together, got one of them; pass both, or neither",
    )
    require(
        (upstream.entropy_hbm is None) == (upstream.grad_entropy_hbm is None),
        f"{function}: entropy_hbm and grad_entropy_hbm belong together, got one of them; pass both, or neither",
    )
    require(
        upstream.grad_logprob_hbm is None or not options.has_probabilities,
        f"{function}: grad_logprob_hbm must be None for class probabilities, which have no log-probability of a target",
    )
    require(
        upstream.weight_sum is None or is_number(upstream.weight_sum),
        f"{function}: weight_sum must be a number or None, got {upstream.weight_sum}; pass float(class_weight.sum())",
    )
    if options.classes.is_shard:
        _validate_sums_of_shards(function, options, upstream)


def validate_class_targets(
    function: str, targets_hbm: nl.NkiTensor, num_positions: int, matrix: str, like: str
) -> None:
    """Check that the targets are an int32 vector [N].

    Args:
        function: the name of the function in error messages.
        targets_hbm: the targets.
        num_positions: N.
        matrix: the name, in error messages, of the argument whose rows are the positions.
        like: the words of error messages for the same matrix, such as "the logits".

    Raises:
        AssertionError: if shape or type are not accepted; the message has function, requirement, value and remedy.
    """
    require(
        tuple(targets_hbm.shape) == (num_positions,),
        f"{function}: targets_hbm must have shape ({num_positions},), one class for each row of {matrix}, "
        f"got {targets_hbm.shape}; flatten the targets as {like}",
    )
    require(
        targets_hbm.dtype == nl.int32,
        f"{function}: targets_hbm must be int32, got {targets_hbm.dtype}; cast the targets to int32",
    )


def validated_classes(function: str, vocab_size: int, noun: str, first_class: int, num_classes: int | None) -> Classes:
    """Check the arguments that state which classes the columns of a launch are, and return that range of classes.

    Args:
        function: the name of the function in error messages.
        vocab_size: the number of columns.
        noun: the word for the columns in error messages.
        first_class: the class of the first column.
        num_classes: the number of classes of all shards; None means ``vocab_size``.

    Raises:
        AssertionError: if an argument is not accepted; the message has function, requirement, value and remedy.
    """
    require(
        is_integer(first_class) and first_class >= 0,
        f"{function}: first_class must be an integer of at least 0, got {first_class}",
    )
    last = INDEX_LIMIT if num_classes is None else num_classes
    require(
        is_integer(last) and last <= INDEX_LIMIT,
        f"{function}: num_classes must be an integer of at most {INDEX_LIMIT} or None, got {num_classes}",
    )
    require(
        num_classes is not None or first_class == 0,
        f"{function}: first_class must be 0 without num_classes, got {first_class}; pass num_classes of all shards",
    )
    require(
        first_class + vocab_size <= last,
        f"{function}: {noun} must be classes below num_classes = {last}, got classes {first_class} to "
        f"{first_class + vocab_size - 1}; pass num_classes of all shards",
    )
    return Classes(first_class, vocab_size, vocab_size if num_classes is None else num_classes)


def _validate_sums_of_shards(function: str, options: Options, upstream: PositionUpstream) -> None:
    """Check that a shard with class weights or class probabilities gets the sums over all shards that it needs.

    These are ``target_weight_hbm``, and ``weight_sum`` for label smoothing with class weights.
    """
    remedy = "needs target_weight_hbm, got None; pass the sum of the position_weight of all shards"
    has_target_weight = upstream.target_weight_hbm is not None
    if options.has_probabilities:
        require(has_target_weight, f"{function}: a shard of class probabilities {remedy}")
    elif options.is_weighted:
        require(has_target_weight, f"{function}: a shard of weighted classes {remedy}")
        require(
            options.spread == 0.0 or upstream.weight_sum is not None,
            f"{function}: a shard of weighted classes needs weight_sum for label_smoothing, got None; "
            f"pass the sum of the class weights of all shards",
        )


def _validate_logits(function: str, logits_hbm: nl.NkiTensor) -> None:
    shape = logits_hbm.shape
    require(
        len(shape) == 2,
        f"{function}: logits_hbm must be 2-D [num_positions, vocab_size], got shape {shape}; "
        f"reshape [batch, sequence, vocab_size] to [batch * sequence, vocab_size]",
    )
    require(
        shape[0] > 0 and shape[1] > 0,
        f"{function}: logits_hbm must have at least one row and one column, got shape {shape}",
    )
    require(
        shape[1] <= INDEX_LIMIT,
        f"{function}: vocab_size must be at most {INDEX_LIMIT}, the reach of an int32 index, got {shape[1]}",
    )
