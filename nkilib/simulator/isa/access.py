# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rules for accesses of a compute engine to an on-chip tensor (trainium_inferentia2_arch.rst, Data Access)."""

from __future__ import annotations

from ..hardware.limits import FREE_AXIS_MAX, FREE_DIMENSIONS_MAX, FREE_STRIDE_MAX
from ..tensors.partitions import allowed_starts, partition_elements, start_partition
from ..tensors.view import View
from ..terms.errors import NkiValidationError
from ..terms.layout import has_repeats


def check_engine_access(name: str, tensor: View) -> None:
    """Check that a compute engine can access an on-chip tensor: its partitions, and the pattern within a partition.

    Args:
        name: the name of the operand in messages.
        tensor: the view that the engine is to access.

    Raises:
        NkiValidationError: naming the operand, the limit and the value.
    """
    if _is_plain(tensor):
        repeats = tensor.strides[1] == 0 and tensor.shape[1] > 1
    else:
        check_free_pattern(name, tensor)
        check_partitions(name, tensor)
        repeats = has_repeats(tensor.shape, tensor.strides)
    if not repeats:  # else the result of a matmul is reported each time
        tensor.allow_access()


def _is_plain(tensor: View) -> bool:
    """Return whether a view has two dimensions, starts at partition 0 and is within all limits, as most views are."""
    if len(tensor.shape) != 2:
        return False
    (partitions, elements), (step, stride), row = tensor.shape, tensor.strides, partition_elements(tensor)
    if tensor.offset >= row or (partitions > 1 and step != row):
        return False
    return elements <= FREE_AXIS_MAX and -FREE_STRIDE_MAX <= stride <= FREE_STRIDE_MAX


def check_free_pattern(name: str, tensor: View) -> None:
    """Check the pattern of accesses within a partition (trainium_inferentia2_arch.rst, Data Access).

    The limits are those of compute engines. DMA has other limits.

    Raises:
        NkiValidationError: if there are too many dimensions, or a size or stride exceeds its field in an instruction.
    """
    if len(tensor.shape) - 1 > FREE_DIMENSIONS_MAX:
        raise NkiValidationError(f"operand {name!r}: at most {FREE_DIMENSIONS_MAX} free dimensions, got {tensor}")
    for size, stride in zip(tensor.shape[1:], tensor.strides[1:], strict=True):
        if size > FREE_AXIS_MAX:
            raise NkiValidationError(
                f"operand {name!r}: a free dimension has at most {FREE_AXIS_MAX} elements (16-bit sizes), got {tensor}"
            )
        if size > 1 and abs(stride) > FREE_STRIDE_MAX:
            raise NkiValidationError(
                f"operand {name!r}: a free dimension has a stride of at most {FREE_STRIDE_MAX} elements (signed 16-bit "
                f"strides), got {stride} in {tensor}"
            )


def check_partitions(name: str, tensor: View) -> None:
    """Check that a compute engine may access a view's partitions (trainium_inferentia2_arch.rst, Data Access).

    Raises:
        NkiValidationError: if they are not consecutive, or the first is not one at which an access to so many
            partitions may start.
    """
    check_consecutive_partitions(name, tensor)
    start, partitions = start_partition(tensor), tensor.shape[0]
    allowed = allowed_starts(partitions)
    if start not in allowed:
        raise NkiValidationError(
            f"operand {name!r}: an access to {partitions} partitions must start at partition "
            f"{' or '.join(map(str, allowed))}, got a start at {start} of {tensor}"
        )


def check_consecutive_partitions(name: str, tensor: View) -> None:
    """Check that the partitions of an on-chip view are consecutive.

    Raises:
        NkiValidationError: if the view skips some.
    """
    row = partition_elements(tensor)
    if tensor.shape[0] > 1 and tensor.strides[0] != row:
        raise NkiValidationError(
            f"operand {name!r}: an access must take partitions that follow each other, got every "
            f"{tensor.strides[0] // row}th of {tensor}"
        )
