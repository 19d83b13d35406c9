# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of properties that several operands of an instruction must share."""

from __future__ import annotations

from typing import Any

from ..tensors.tensor import NkiTensor
from ..terms.errors import NkiValidationError
from ..terms.regions import MemoryRegion


def same_partitions(values: dict[str, Any], first: str, *others: str) -> None:
    """Check that the operands ``others`` have as many partitions as operand ``first``; ``values`` holds them by name.

    Raises:
        NkiValidationError: naming the two operands and their sizes.
    """
    for other in others:
        if values[first].shape[0] != values[other].shape[0]:
            raise NkiValidationError(
                f"operands {first!r} and {other!r} must have the same number of partitions, got {values[first]} and "
                f"{values[other]}"
            )


def same_tile_size(values: dict[str, Any], first: str, *others: str) -> None:
    """Check that the operands ``others`` have as many partitions, and elements per partition, as operand ``first``.

    Raises:
        NkiValidationError: naming the two operands and their sizes.
    """
    tile = values[first]
    for name in others:
        other = values[name]
        if other.free_size != tile.free_size or other.shape[0] != tile.shape[0]:
            same_partitions(values, first, name)
            same_elements(values, first, name)


def same_elements(values: dict[str, Any], first: str, *others: str) -> None:
    """Check that the operands ``others`` have as many elements per partition as operand ``first``.

    Raises:
        NkiValidationError: naming the two operands and their sizes.
    """
    for other in others:
        if values[first].free_size != values[other].free_size:
            raise NkiValidationError(
                f"operands {first!r} and {other!r} must have the same number of elements per partition, got "
                f"{values[first]} and {values[other]}"
            )


def not_both_in_psum(values: dict[str, Any], first: str, second: str) -> None:
    """Check that at most one of two inputs is in PSUM.

    Raises:
        NkiValidationError: naming both.
    """
    if values[first].buffer is MemoryRegion.psum and values[second].buffer is MemoryRegion.psum:
        raise NkiValidationError(f"operands {first!r} and {second!r} must not both be in psum")


def no_cast_of_packed(first: NkiTensor, second: NkiTensor) -> None:
    """Check that the two ends of a copy have one type if either is packed, because packed bits are moved unchanged.

    Raises:
        NkiValidationError: naming both.
    """
    if first.dtype != second.dtype and (first.dtype.is_packed or second.dtype.is_packed):
        raise NkiValidationError(
            f"packed types are copied bit by bit and never cast: 'dst' and 'src' must have one type, got {first} and "
            f"{second}; view one as the type of the other"
        )


def at_most_rank(values: dict[str, Any], limit: int, *names: str) -> None:
    """Check that the operands ``names`` have at most ``limit`` dimensions, the partition dimension included.

    For some instructions NKI 0.7 documents a smaller limit than that of engine accesses.

    Raises:
        NkiValidationError: naming the operand and its shape.
    """
    for name in names:
        if len(values[name].shape) > limit:
            raise NkiValidationError(
                f"operand {name!r} must have at most {limit} dimensions, {limit - 1} of them free, got {values[name]}; "
                "flatten some with flatten_dims or reshape"
            )
