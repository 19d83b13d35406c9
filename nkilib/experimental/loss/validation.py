"""What the kernels accept. Everything else is refused here, before the first instruction.

Assertions, as the NKI language demands; each names the function, what is required, what came and what to do.
"""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.sbuf_plan import INDEX_LIMIT, chunk_bytes_that_fit, dtype_bytes
from nkilib.nki import nisa, nl

# A free axis of an instruction has a 16-bit size (nki/guides/architecture/trainium_inferentia2_arch.rst).
FREE_AXIS_MAX = 65535
# Bound on positions_per_batch * chunk_size * bytes that the published API states.
BATCH_BYTES_MAX = 24 * 1024 * 1024


def validate_forward(
    logits_hbm: Any,
    targets_hbm: Any,
    positions_per_batch: int,
    chunk_size: int,
    dtype: Any,
    lse_dtype: Any,
) -> None:
    """Refuse what ``cross_entropy_forward`` does not accept.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    function = "cross_entropy_forward"
    validate_target_platform(function)
    validate_logits(function, logits_hbm)
    validate_class_targets(function, targets_hbm, logits_hbm.shape[0])
    validate_float_type(function, "dtype", dtype)
    validate_float_type(function, "lse_dtype", lse_dtype)
    validate_tiling(function, logits_hbm.shape[1], positions_per_batch, chunk_size, dtype)


def validate_backward(
    logits_hbm: Any,
    targets_hbm: Any,
    lse_state_hbm: Any,
    reduction: str,
    positions_per_batch: int,
    chunk_size: int,
    dtype: Any,
    inplace: bool,
) -> None:
    """Refuse what ``cross_entropy_backward`` does not accept.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    function = "cross_entropy_backward"
    validate_target_platform(function)
    validate_logits(function, logits_hbm)
    validate_class_targets(function, targets_hbm, logits_hbm.shape[0])
    validate_float_type(function, "dtype", dtype)
    validate_tiling(function, logits_hbm.shape[1], positions_per_batch, chunk_size, dtype)
    num_positions = logits_hbm.shape[0]
    assert len(lse_state_hbm.shape) == 1 and lse_state_hbm.shape[0] == num_positions, (
        f"{function}: lse_state_hbm must have shape ({num_positions},), one value for each row of logits_hbm, "
        f"got {lse_state_hbm.shape}; pass the second result of cross_entropy_forward"
    )
    validate_float_type(function, "lse_state_hbm.dtype", lse_state_hbm.dtype)
    assert reduction == "mean" or reduction == "sum", f'{function}: reduction must be "mean" or "sum", got {reduction}'
    validate_flag(function, "inplace", inplace)


def validate_flag(function: str, name: str, flag: Any) -> None:
    """True or False."""
    assert flag == True or flag == False, (  # noqa: E712
        f"{function}: {name} must be True or False, got {flag}"
    )


def validate_target_platform(function: str) -> None:
    """A generation with DMA by a vector offset."""
    assert nisa.get_nc_version() != nisa.nc_version.gen2, (
        f"{function}: needs trn2 or newer, because gather and scatter with a vector offset do; the target is trn1"
    )


def validate_logits(function: str, logits_hbm: Any) -> None:
    """Two dimensions, of sizes that can be indexed, and a type that the kernels compute in."""
    assert len(logits_hbm.shape) == 2, (
        f"{function}: logits_hbm must be 2-D [num_positions, vocab_size], got shape {logits_hbm.shape}; "
        f"reshape [batch, sequence, vocab_size] to [batch * sequence, vocab_size]"
    )
    num_positions, vocab_size = logits_hbm.shape
    assert num_positions > 0 and vocab_size > 0, (
        f"{function}: logits_hbm must have at least one row and one column, got shape {logits_hbm.shape}"
    )
    assert vocab_size <= INDEX_LIMIT, (
        f"{function}: vocab_size must be at most {INDEX_LIMIT}, the reach of an int32 index, got {vocab_size}"
    )
    validate_float_type(function, "logits_hbm.dtype", logits_hbm.dtype)


def validate_class_targets(function: str, targets_hbm: Any, num_positions: int) -> None:
    """One int32 for each position."""
    assert len(targets_hbm.shape) == 1 and targets_hbm.shape[0] == num_positions, (
        f"{function}: targets_hbm must have shape ({num_positions},), one class for each row of logits_hbm, "
        f"got {targets_hbm.shape}; flatten the targets as the logits"
    )
    assert targets_hbm.dtype == nl.int32, (
        f"{function}: targets_hbm must be int32, got {targets_hbm.dtype}; cast the targets to int32"
    )


def validate_float_type(function: str, name: str, dtype: Any) -> None:
    """One of the two types that the kernels compute in."""
    assert dtype == nl.bfloat16 or dtype == nl.float32, (
        f"{function}: {name} must be nl.bfloat16 or nl.float32, got {dtype}; use one of the two"
    )


def validate_tiling(function: str, vocab_size: int, positions_per_batch: int, chunk_size: int, dtype: Any) -> None:
    """Sizes of batches and chunks whose tiles the machine takes."""
    partitions = nl.tile_size.pmax
    assert isinstance(positions_per_batch, int) and (positions_per_batch > 0 and positions_per_batch <= partitions), (
        f"{function}: positions_per_batch must be an integer from 1 to {partitions}, got {positions_per_batch}"
    )
    element_bytes = dtype_bytes(dtype)
    fits_partition = chunk_bytes_that_fit() // element_bytes
    largest = min(
        min(vocab_size, FREE_AXIS_MAX), min(fits_partition, BATCH_BYTES_MAX // (positions_per_batch * element_bytes))
    )
    assert isinstance(chunk_size, int) and chunk_size > 0, (
        f"{function}: chunk_size must be a positive integer, got {chunk_size}; the largest that fits is {largest}"
    )
    assert chunk_size <= vocab_size, (
        f"{function}: chunk_size must be at most the vocabulary size {vocab_size}, got {chunk_size}; "
        f"pass chunk_size={largest}"
    )
    assert chunk_size <= FREE_AXIS_MAX, (
        f"{function}: chunk_size must be at most {FREE_AXIS_MAX}, the longest free axis of an instruction, "
        f"got {chunk_size}; the largest that fits is {largest}"
    )
    assert positions_per_batch * chunk_size * element_bytes <= BATCH_BYTES_MAX, (
        f"{function}: positions_per_batch * chunk_size * bytes of dtype must be at most {BATCH_BYTES_MAX}, "
        f"got {positions_per_batch} * {chunk_size} * {element_bytes}; the largest chunk_size that fits is {largest}"
    )
    assert chunk_size <= fits_partition, (
        f"{function}: a chunk of {chunk_size} elements of {dtype} takes {chunk_size * element_bytes} bytes of an SBUF "
        f"partition, which has {chunk_bytes_that_fit()} for it; the largest chunk_size that fits is {largest}"
    )
