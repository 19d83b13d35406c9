"""What the extended kernels accept, in the manner of :mod:`.validation`."""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.extended_options import (
    add_forward_options,
    backward_scratch,
    forward_scratch,
    make_options,
)
from nkilib.experimental.loss.sbuf_plan import INDEX_LIMIT, extended_chunk_size_that_fits
from nkilib.experimental.loss.validation import (
    validate_class_targets,
    validate_flag,
    validate_float_type,
    validate_logits,
    validate_target_platform,
    validate_tiling,
)
from nkilib.nki import nl

# Classes are counted in float32 where the argmax is found.
ARGMAX_CLASSES_MAX = 2**24
# Where products of options and logits may leave the range of float32.
OPTION_MAX = 1e30
SOFTCAP_MIN = 1e-30


def validate_extended_forward(
    logits_hbm: Any,
    targets_hbm: Any,
    class_weight_hbm: Any,
    positions_per_batch: int,
    chunk_size: int,
    dtype: Any,
    given: Any,
) -> Any:
    """Refuse what ``extended_cross_entropy_forward`` does not accept.

    Args:
        logits_hbm, targets_hbm, class_weight_hbm, positions_per_batch, chunk_size, dtype: as the kernel gets them.
        given: its other arguments, by name.

    Returns:
        The options in the form that the stages ask for.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    function = "extended_cross_entropy_forward"
    _validate_arrays(function, logits_hbm, targets_hbm, class_weight_hbm, dtype)
    _validate_shard(function, logits_hbm.shape[1], given)
    _validate_numbers(function, given)
    validate_flag(function, "with_argmax", given["with_argmax"])
    validate_flag(function, "with_entropy", given["with_entropy"])
    validate_flag(function, "with_distance_sum", given["with_distance_sum"])
    validate_flag(function, "with_log_sum", given["with_log_sum"])
    options = make_options(logits_hbm, targets_hbm, class_weight_hbm, given)
    add_forward_options(options, given)
    assert given["with_argmax"] == False or options["num_classes"] <= ARGMAX_CLASSES_MAX, (  # noqa: E712
        f"{function}: with_argmax must be False for more than {ARGMAX_CLASSES_MAX} classes, which are counted in "
        f"float32, got {options['num_classes']} classes; take the argmax elsewhere"
    )
    _validate_tiles(function, logits_hbm, positions_per_batch, chunk_size, dtype, len(forward_scratch(options)))
    return options


def validate_extended_backward(
    logits_hbm: Any, vectors: Any, positions_per_batch: int, chunk_size: int, dtype: Any, given: Any
) -> Any:
    """Refuse what ``extended_cross_entropy_backward`` does not accept.

    Args:
        logits_hbm, positions_per_batch, chunk_size, dtype: as the kernel gets them.
        vectors: its other arrays, by name.
        given: its other arguments, by name.

    Returns:
        The options in the form that the stages ask for.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    function = "extended_cross_entropy_backward"
    _validate_arrays(function, logits_hbm, vectors["targets"], vectors["class_weight"], dtype)
    _validate_shard(function, logits_hbm.shape[1], given)
    _validate_numbers(function, given)
    validate_flag(function, "inplace", given["inplace"])
    for name in ("lse", "maximum", "log_sum", "grad_loss", "grad_lse", "grad_logprob", "target_weight"):
        if vectors[name] != None or (name == "lse" or name == "grad_loss"):  # noqa: E711  (NKI has no "is")
            _validate_vector(function, name + "_hbm", vectors[name], logits_hbm.shape[0])
    has_maximum, has_log_sum = vectors["maximum"] != None, vectors["log_sum"] != None  # noqa: E711
    assert has_maximum == has_log_sum, (
        f"{function}: maximum_hbm and log_sum_hbm belong together, got one of them; pass both, or neither"
    )
    options = make_options(logits_hbm, vectors["targets"], vectors["class_weight"], given)
    assert vectors["grad_logprob"] == None or options["has_probabilities"] == False, (  # noqa: E711, E712
        f"{function}: grad_logprob_hbm must be None for class probabilities, which have no log-probability of a target"
    )
    _validate_sums(function, vectors["target_weight"], given["weight_sum"], options)
    _validate_tiles(function, logits_hbm, positions_per_batch, chunk_size, dtype, len(backward_scratch(options)))
    return options


def _validate_sums(function: str, target_weight_hbm: Any, weight_sum: Any, options: Any) -> None:
    """What a shard cannot know has to be given."""
    assert weight_sum == None or isinstance(weight_sum, (float, int)), (  # noqa: E711
        f"{function}: weight_sum must be a number or None, got {weight_sum}; pass float(class_weight.sum())"
    )
    is_whole = options["is_shard"] == False  # noqa: E712
    knows_sums = is_whole or options["has_probabilities"] == False  # noqa: E712
    assert knows_sums or target_weight_hbm != None, (  # noqa: E711
        f"{function}: a shard of class probabilities needs target_weight_hbm, got None; "
        f"pass the sum of the position_weight of all shards"
    )
    knows_weights = is_whole or (options["has_probabilities"] or options["is_weighted"] == False)  # noqa: E712
    assert knows_weights or target_weight_hbm != None, (  # noqa: E711
        f"{function}: a shard of weighted classes needs target_weight_hbm, got None; "
        f"pass the sum of the position_weight of all shards"
    )
    assert (knows_weights or options["spread"] == 0.0) or weight_sum != None, (  # noqa: E711
        f"{function}: a shard of weighted classes needs weight_sum for label_smoothing, got None; "
        f"pass the sum of the class weights of all shards"
    )


def _validate_arrays(function: str, logits_hbm: Any, targets_hbm: Any, class_weight_hbm: Any, dtype: Any) -> None:
    validate_target_platform(function)
    validate_logits(function, logits_hbm)
    num_positions, vocab_size = logits_hbm.shape
    if len(targets_hbm.shape) == 2:
        assert targets_hbm.shape[0] == num_positions and targets_hbm.shape[1] == vocab_size, (
            f"{function}: class probabilities must have the shape of logits_hbm, {logits_hbm.shape}, "
            f"got {targets_hbm.shape}; flatten them as the logits"
        )
        validate_float_type(function, "targets_hbm.dtype of class probabilities", targets_hbm.dtype)
    else:
        validate_class_targets(function, targets_hbm, num_positions)
    if class_weight_hbm != None:  # noqa: E711
        _validate_vector(function, "class_weight_hbm", class_weight_hbm, vocab_size)
    validate_float_type(function, "dtype", dtype)


def _validate_vector(function: str, name: str, vector_hbm: Any, length: int) -> None:
    assert vector_hbm != None, f"{function}: {name} must be a tensor of shape ({length},), got None"  # noqa: E711
    assert len(vector_hbm.shape) == 1 and vector_hbm.shape[0] == length, (
        f"{function}: {name} must have shape ({length},), got {vector_hbm.shape}; flatten it as the logits"
    )
    assert vector_hbm.dtype == nl.float32, (
        f"{function}: {name} must be float32, got {vector_hbm.dtype}; cast it to float32"
    )


def _validate_shard(function: str, vocab_size: int, given: Any) -> None:
    first_class, num_classes = given["first_class"], given["num_classes"]
    assert isinstance(first_class, int) and first_class >= 0, (
        f"{function}: first_class must be an integer of at least 0, got {first_class}"
    )
    last = INDEX_LIMIT if num_classes == None else num_classes  # noqa: E711
    assert isinstance(last, int) and last <= INDEX_LIMIT, (
        f"{function}: num_classes must be an integer of at most {INDEX_LIMIT} or None, got {num_classes}"
    )
    assert num_classes != None or first_class == 0, (  # noqa: E711
        f"{function}: first_class must be 0 without num_classes, got {first_class}; pass num_classes of all shards"
    )
    assert first_class + vocab_size <= last, (
        f"{function}: the columns must be classes below num_classes = {last}, got classes {first_class} to "
        f"{first_class + vocab_size - 1}; pass num_classes of all shards"
    )


def _validate_numbers(function: str, given: Any) -> None:
    ignore_index, label_smoothing = given["ignore_index"], given["label_smoothing"]
    logit_softcap, lse_square_scale = given["logit_softcap"], given["lse_square_scale"]
    largest = 2**31 - 1
    assert isinstance(ignore_index, int) and (ignore_index <= largest and ignore_index + 1 >= 0 - largest), (
        f"{function}: ignore_index must be an integer of 32 bits, as targets are, got {ignore_index}"
    )
    assert isinstance(label_smoothing, (float, int)) and (label_smoothing >= 0.0 and label_smoothing <= 1.0), (
        f"{function}: label_smoothing must be a number from 0 to 1, got {label_smoothing}"
    )
    cap = 1.0 if logit_softcap == None else logit_softcap  # noqa: E711
    assert isinstance(cap, (float, int)) and (cap >= SOFTCAP_MIN and cap <= OPTION_MAX), (
        f"{function}: logit_softcap must be a number from {SOFTCAP_MIN} to {OPTION_MAX} or None, got {logit_softcap}; "
        f"pass None for no cap"
    )
    assert isinstance(lse_square_scale, (float, int)) and (
        lse_square_scale >= 0.0 and lse_square_scale <= OPTION_MAX
    ), f"{function}: lse_square_scale must be a number from 0 to {OPTION_MAX}, got {lse_square_scale}"


def _validate_tiles(
    function: str, logits_hbm: Any, positions_per_batch: int, chunk_size: int, dtype: Any, num_scratch: int
) -> None:
    fitting = extended_chunk_size_that_fits(dtype, num_scratch)
    validate_tiling(function, logits_hbm.shape[1], positions_per_batch, chunk_size, dtype)
    assert chunk_size <= fitting, (
        f"{function}: a chunk of {chunk_size} elements of {dtype} and {num_scratch} of float32 beside each do not fit "
        f"an SBUF partition; the largest chunk_size that fits is {min(fitting, logits_hbm.shape[1])}"
    )
