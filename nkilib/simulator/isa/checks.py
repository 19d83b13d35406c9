# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of a call of an instruction: its operands, their access by an engine, and the engines that can run the call.

- :func:`same_partitions`, :func:`same_elements`, :func:`same_tile_size`, :func:`not_both_in_psum`,
  :func:`no_cast_of_packed`, :func:`at_most_rank`: requirements on several operands;
- :func:`check_engine_access`, by :func:`check_partitions`, :func:`check_consecutive_partitions` and
  :func:`check_free_pattern`: how an engine may access a tensor;
- :func:`check_engine`, :func:`engines_besides`: which engines can run the call.

``values`` is the mapping from the names of a call's parameters to their values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..hardware.generations import FREE_AXIS_MAX, FREE_DIMENSIONS_MAX, FREE_STRIDE_MAX, Generation
from ..tensors.tensor import NkiTensor
from ..tensors.view import View, allowed_starts, partition_elements, partition_in_storage
from ..terms.enums import Engine, MemoryRegion
from ..terms.errors import NkiValidationError
from ..terms.layout import has_repeats
from .definition import Definition
from .indirection import RULES


def same_partitions(values: dict[str, Any], first: str, *others: str) -> None:
    """Check that the operands named ``others`` have as many partitions as the operand named ``first``.

    Raises:
        NkiValidationError: two numbers differ; the message names the two operands and their sizes.
    """
    for other in others:
        if values[first].shape[0] != values[other].shape[0]:
            raise NkiValidationError(
                f"operands {first!r} and {other!r} must have the same number of partitions, got {values[first]} and "
                f"{values[other]}"
            )


def same_elements(values: dict[str, Any], first: str, *others: str) -> None:
    """Check that the operands named ``others`` have as many elements per partition as the operand named ``first``.

    Raises:
        NkiValidationError: two numbers differ; the message names the two operands and their sizes.
    """
    for other in others:
        if values[first].free_size != values[other].free_size:
            raise NkiValidationError(
                f"operands {first!r} and {other!r} must have the same number of elements per partition, got "
                f"{values[first]} and {values[other]}"
            )


def same_tile_size(values: dict[str, Any], first: str, *others: str) -> None:
    """Check that the operands named ``others`` match the operand named ``first`` in partitions and elements per
    partition.

    Raises:
        NkiValidationError: two numbers differ; the message names the two operands and their sizes.
    """
    tile = values[first]
    for name in others:
        other = values[name]
        if other.free_size != tile.free_size or other.shape[0] != tile.shape[0]:
            same_partitions(values, first, name)
            same_elements(values, first, name)


def not_both_in_psum(values: dict[str, Any], first: str, second: str) -> None:
    """Check that at most one of two inputs is in PSUM.

    Raises:
        NkiValidationError: both are; the message names the two operands.
    """
    if values[first].buffer is MemoryRegion.psum and values[second].buffer is MemoryRegion.psum:
        raise NkiValidationError(f"operands {first!r} and {second!r} must not both be in psum")


def no_cast_of_packed(first: NkiTensor, second: NkiTensor) -> None:
    """Check that the source and destination of a copy have one type if either type is packed.

    Packed bits are moved unchanged.

    Raises:
        NkiValidationError: the types differ; the message names both tensors.
    """
    if first.dtype != second.dtype and (first.dtype.is_packed or second.dtype.is_packed):
        raise NkiValidationError(
            f"packed types are copied bit by bit and never cast: 'dst' and 'src' must have one type, got {first} and "
            f"{second}; view one as the type of the other"
        )


def at_most_rank(values: dict[str, Any], limit: int, *names: str) -> None:
    """Check that the operands ``names`` have at most ``limit`` dimensions, the partition dimension included.

    For some instructions NKI 0.7 documents a smaller limit than the one of engine accesses.

    Raises:
        NkiValidationError: an operand has more; the message names the operand and its shape.
    """
    for name in names:
        if len(values[name].shape) > limit:
            raise NkiValidationError(
                f"operand {name!r} must have at most {limit} dimensions, {limit - 1} of them free, got {values[name]}; "
                "flatten some with flatten_dims or reshape"
            )


def _is_plain(tensor: View) -> bool:
    """Return whether a view meets all limits of engine accesses without further checks, as most views do.

    Such a view has two dimensions, starts at partition 0, and has small sizes and strides. False does not mean that a
    limit is exceeded.
    """
    if len(tensor.shape) != 2:
        return False
    (partitions, elements), (step, stride), row = tensor.shape, tensor.strides, partition_elements(tensor)
    if tensor.offset >= row or (partitions > 1 and step != row):
        return False
    return elements <= FREE_AXIS_MAX and -FREE_STRIDE_MAX <= stride <= FREE_STRIDE_MAX


def check_free_pattern(name: str, tensor: View) -> None:
    """Check sizes and strides of a view within a partition (trainium_inferentia2_arch.rst, Data Access).

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


def check_consecutive_partitions(name: str, tensor: View) -> None:
    """Check that the partitions of an on-chip view are consecutive.

    Raises:
        NkiValidationError: the view skips partitions.
    """
    row = partition_elements(tensor)
    if tensor.shape[0] > 1 and tensor.strides[0] != row:
        raise NkiValidationError(
            f"operand {name!r}: an access must take partitions that follow each other, got every "
            f"{tensor.strides[0] // row}th of {tensor}"
        )


def check_partitions(name: str, tensor: View) -> None:
    """Check that a compute engine may access a view's partitions (trainium_inferentia2_arch.rst, Data Access).

    Raises:
        NkiValidationError: the partitions are not consecutive, or an access to this number of partitions may not start
            at the view's first partition.
    """
    check_consecutive_partitions(name, tensor)
    start, partitions = partition_in_storage(tensor), tensor.shape[0]
    allowed = allowed_starts(partitions)
    if start not in allowed:
        raise NkiValidationError(
            f"operand {name!r}: an access to {partitions} partitions must start at partition "
            f"{' or '.join(map(str, allowed))}, got a start at {start} of {tensor}"
        )


def check_engine_access(name: str, tensor: View) -> None:
    """Check that a compute engine can access an on-chip tensor: its partitions, and sizes and strides within a
    partition.

    Source: ``trainium_inferentia2_arch.rst`` (Data Access).

    Args:
        name: the name of the operand in messages.
        tensor: the view that the engine reads or writes.

    Raises:
        NkiValidationError: the engine cannot; the message names the operand, the limit and the value.
    """
    if _is_plain(tensor):
        repeats = tensor.strides[1] == 0 and tensor.shape[1] > 1
    else:
        check_free_pattern(name, tensor)
        check_partitions(name, tensor)
        repeats = has_repeats(tensor.shape, tensor.strides)
    if not repeats:  # else the result of a matmul is reported each time
        tensor.allow_access()


# Members of an Enum are looked up by a Python function before 3.12; these are asked for in most calls.
_GPSIMD, _PSUM = Engine.gpsimd, MemoryRegion.psum


def _check_indirect(
    definition: Definition, engine: Engine, values: Mapping[str, Any], indirect: Collection[str]
) -> None:
    allowed = RULES[definition.name].engines
    if engine not in allowed:
        names = " or ".join(sorted(f"nki.isa.engine.{able.name}" for able in allowed))
        raise NkiValidationError(f"a view of indirect() needs {names}, got nki.isa.engine.{engine.name}")
    if engine is not Engine.scalar:
        return
    for name in indirect:
        if name in definition.output_names and values[name].buffer is _PSUM:
            raise NkiValidationError(f"operand {name!r}: the Scalar engine cannot scatter to psum, got {values[name]}")


def check_engine(
    definition: Definition,
    engine: Engine,
    generation: Generation,
    values: Mapping[str, Any],
    indirect: Collection[str] = (),
) -> None:
    """Check that an engine can run a call of an instruction.

    Args:
        definition: the instruction.
        engine: the engine, one of ``definition.engines``.
        generation: the hardware generation.
        values: the parameters by name; a tensor may be replaced by a description, see :class:`EngineRule`.
        indirect: the names of the operands that are views of ``NkiTensor.indirect``.

    Raises:
        NkiValidationError: the engine cannot run the call.
    """
    if definition.engine_rule is not None:
        definition.engine_rule(engine, generation, values)
    if indirect:
        _check_indirect(definition, engine, values, indirect)
    if engine is _GPSIMD and definition.is_lane_bound:
        for rule in definition.operands:
            value = values.get(rule.name)
            if getattr(value, "buffer", None) is _PSUM:
                raise NkiValidationError(f"operand {rule.name!r}: the GpSimd engine cannot access psum, got {value}")


def _can_run(
    definition: Definition,
    engine: Engine,
    generation: Generation,
    values: Mapping[str, Any],
    indirect: Collection[str],
) -> bool:
    try:
        check_engine(definition, engine, generation, values, indirect)
    except NkiValidationError:
        return False
    return True


def engines_besides(
    definition: Definition,
    engine: Engine,
    generation: Generation,
    values: Mapping[str, Any],
    indirect: Collection[str] = (),
) -> tuple[Engine, ...]:
    """Return the engines other than ``engine`` that can run a call; the arguments are those of :func:`check_engine`."""
    return tuple(
        other
        for other in definition.engines
        if other is not engine and _can_run(definition, other, generation, values, indirect)
    )
