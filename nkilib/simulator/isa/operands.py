"""What an instruction demands of its tensors, and the checks that hold for all instructions alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..target.limits import FREE_AXIS_MAX, FREE_DIMENSIONS_MAX, FREE_STRIDE_MAX, PARTITIONS
from ..tensors.partitions import allowed_starts, partition_elements, start_partition
from ..tensors.tensor import NkiTensor
from ..terms.description import describe_stranger
from ..terms.dtypes import COMPUTABLE, DType
from ..terms.errors import NkiValidationError, OutOfRangeError, UninitializedReadError
from ..terms.layout import Layout, extent
from ..terms.regions import ON_CHIP, MemoryRegion
from .indirection import Rule, gather

if TYPE_CHECKING:
    from ..machine.core import Core

SBUF = frozenset({MemoryRegion.sbuf})
PSUM = frozenset({MemoryRegion.psum})
HBM_SHARED = frozenset({MemoryRegion.shared_hbm})
DMA_REACH = frozenset(MemoryRegion) - PSUM


@dataclass(frozen=True)
class Operand:
    """A tensor parameter of an instruction.

    Attributes:
        name: the parameter.
        is_output: written by the instruction; else read.
        regions: memory regions in which it may be.
        is_optional: may be None.
        accepts_scalar: may be a Python number instead of a tensor.
        is_vector: must have shape (partitions of ``like``, 1).
        like: the operand whose partitions a vector must match.
        dtypes: allowed types; by default those with which engines compute: all but the packed ones.
        accepts_indirect: the instruction itself resolves indirect views, vector offsets included (DMA only).
        marks_itself: the instruction itself marks what it wrote.
        may_leave: it may leave elements of the view as they were.
        is_accessed: its elements are read or written; else it only names something to wait for, or the instruction
            reads a part of it and checks that this was written.
        indirection: may be a view of ``NkiTensor.indirect``, as ``indirection.RULES`` says for the instruction.
    """

    name: str
    is_output: bool = False
    regions: frozenset[MemoryRegion] = ON_CHIP
    is_optional: bool = False
    accepts_scalar: bool = False
    is_vector: bool = False
    like: str = ""
    dtypes: frozenset[DType] = COMPUTABLE
    accepts_indirect: bool = False
    is_accessed: bool = True
    marks_itself: bool = False
    may_leave: bool = False
    indirection: Rule | None = None


def output(name: str, **rules: Any) -> Operand:
    """An operand that the instruction writes."""
    return Operand(name, is_output=True, **rules)


def vector(name: str, like: str, **rules: Any) -> Operand:
    """An operand of one element a partition, matching the partitions of operand ``like``."""
    return Operand(name, is_vector=True, like=like, **rules)


def check_operand(core: Core, rule: Operand, value: Any, like: Any) -> Any:
    """``value`` if it satisfies ``rule``; a scalar-indirect view comes back resolved to where it points.

    Args:
        core: the core that runs the instruction.
        rule: what the instruction demands.
        value: what the caller gave; not None where the operand is optional.
        like: the operand whose partitions a vector must match; not used for others.

    Raises:
        NkiValidationError: naming the operand, the limit and the value.
    """
    if not isinstance(value, NkiTensor):
        if rule.accepts_scalar and (type(value) is float or _is_number(value)):
            return value
        kinds = "a tensor or a number" if rule.accepts_scalar else "a tensor"
        raise NkiValidationError(f"operand {rule.name!r} must be {kinds}, got {describe_stranger(value)}")
    if value.buffer not in rule.regions:
        allowed = " or ".join(sorted(region.value for region in rule.regions))
        raise NkiValidationError(f"operand {rule.name!r} must be in {allowed}, got {value}{_way_there(rule, value)}")
    if value.dtype not in rule.dtypes:
        _refuse_type(rule, value)
    if value._indirect is not None:
        value = resolve_indirect(core, rule, value)
    storage = value.storage
    if storage.scope:
        _check_scope(core, rule, value)
    if storage.region in ON_CHIP and value.shape[0] > PARTITIONS:
        raise NkiValidationError(
            f"operand {rule.name!r}: the partition dimension must be at most {PARTITIONS} (nl.tile_size.pmax), got "
            f"{value}"
        )
    if rule.is_vector:
        _check_vector(rule, value, like)
    if rule.is_output:
        if storage.is_read_only:
            raise NkiValidationError(
                f"operand {rule.name!r}: {value} is a read-only input and cannot be written: pass a writable array, or "
                "a torch tensor that does not require grad (.detach())"
            )
        return value
    if storage.life is not None:
        storage.life.touch(core.instruction_number)
    if not storage.written.is_full and rule.is_accessed and value._indirect is None:
        check_written(core, rule.name, value)
    return value


def _way_there(rule: Operand, value: NkiTensor) -> str:
    """How an input comes to where the instruction can read it."""
    if rule.is_output or MemoryRegion.sbuf not in rule.regions:
        return ""
    if value.buffer is MemoryRegion.psum:
        return "; copy it to sbuf first, with nisa.tensor_copy"
    return "; load it to sbuf first, with nisa.dma_copy"


def _refuse_type(rule: Operand, value: NkiTensor) -> NoReturn:
    if value.dtype.is_packed and rule.dtypes is COMPUTABLE:
        raise NkiValidationError(
            f"operand {rule.name!r}: engines compute with {value.dtype} in nisa.nc_matmul_mx only, got {value}; "
            f"view it as nl.{value.dtype.numpy} to work on its bits"
        )
    allowed = ", ".join(sorted(rule.dtypes))
    raise NkiValidationError(f"operand {rule.name!r} must have one of the types {allowed}, got {value}")


def _check_scope(core: Core, rule: Operand, value: NkiTensor) -> None:
    scope = value.storage.scope
    if core.loops.scope[: len(scope)] != scope:
        raise NkiValidationError(
            f"operand {rule.name!r}: {value} was made in the body of a dynamic loop, or in another iteration of it, "
            f"and cannot be used here; make it before the loop"
        )


def check_written(core: Core, name: str, tensor: NkiTensor, is_read: npt.NDArray[np.bool_] | None = None) -> None:
    """Refuse a read of unwritten elements, or give them the sentinel value, as the options say.

    Args:
        core: the core that reads.
        name: of the operand, for the message.
        tensor: the operand.
        is_read: which of its elements are read, in its shape; None for all.

    Raises:
        UninitializedReadError: with ``uninitialized="error"``.
    """
    storage = tensor.storage
    if storage.written.is_full:
        return
    missing = storage.count_unwritten(tensor.layout, tensor.dtype, is_read)
    if missing and core.options.uninitialized == "error":
        raise UninitializedReadError(
            f"operand {name!r}: {missing} of the {tensor.size} elements of {tensor} were never written"
        )
    if missing:
        storage.fill_unwritten(tensor.layout, tensor.dtype)


def same_partitions(values: dict[str, Any], first: str, *others: str) -> None:
    """Require that tensors have as many partitions as operand ``first``.

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
    """Require the same number of partitions and of elements per partition as operand ``first``.

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
    """Require as many elements per partition as operand ``first`` has.

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
    """Require that at most one of two inputs is in PSUM.

    Raises:
        NkiValidationError: naming both.
    """
    if values[first].buffer is MemoryRegion.psum and values[second].buffer is MemoryRegion.psum:
        raise NkiValidationError(f"operands {first!r} and {second!r} must not both be in psum")


def no_cast_of_packed(first: NkiTensor, second: NkiTensor) -> None:
    """Require one type of two ends of a copy if either is packed: its bits are moved as they are.

    Raises:
        NkiValidationError: naming both.
    """
    if first.dtype != second.dtype and (first.dtype.is_packed or second.dtype.is_packed):
        raise NkiValidationError(
            f"packed types are copied bit by bit and never cast: 'dst' and 'src' must have one type, got {first} and "
            f"{second}; view one as the type of the other"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "dtype") and getattr(value, "shape", None) == ())


def check_engine_access(name: str, tensor: NkiTensor) -> None:
    """The limits of a compute engine's access to an on-chip tensor.

    Raises:
        NkiValidationError: naming the operand, the limit and the value.
    """
    if tensor._passed_engine_checks:
        return
    if not _is_plain(tensor):
        check_free_pattern(name, tensor)
        check_partitions(name, tensor)
    tensor._passed_engine_checks = True


def _is_plain(tensor: NkiTensor) -> bool:
    """Whether a view is of two dimensions, from partition 0 on, and within all limits: most are."""
    if len(tensor.shape) != 2:
        return False
    (partitions, elements), (step, stride), row = tensor.shape, tensor.strides, partition_elements(tensor)
    if tensor.offset >= row or (partitions > 1 and step != row):
        return False
    return elements <= FREE_AXIS_MAX and -FREE_STRIDE_MAX <= stride <= FREE_STRIDE_MAX


def check_free_pattern(name: str, tensor: NkiTensor) -> None:
    """How a compute engine may walk a partition (trainium_inferentia2_arch.rst, Data Access). DMA has other limits.

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


def check_partitions(name: str, tensor: NkiTensor) -> None:
    """The rules which partitions a compute engine may access (trainium_inferentia2_arch.rst, Data Access).

    Raises:
        NkiValidationError: if they do not follow each other, or do not start where their number allows.
    """
    check_consecutive_partitions(name, tensor)
    start, partitions = start_partition(tensor), tensor.shape[0]
    allowed = allowed_starts(partitions)
    if start not in allowed:
        raise NkiValidationError(
            f"operand {name!r}: an access to {partitions} partitions must start at partition "
            f"{' or '.join(map(str, allowed))}, got a start at {start} of {tensor}"
        )


def check_consecutive_partitions(name: str, tensor: NkiTensor) -> None:
    """Require that the partitions of an on-chip view follow each other.

    Raises:
        NkiValidationError: if the view leaves some out.
    """
    row = partition_elements(tensor)
    if tensor.shape[0] > 1 and tensor.strides[0] != row:
        raise NkiValidationError(
            f"operand {name!r}: an access must take partitions that follow each other, got every "
            f"{tensor.strides[0] // row}th of {tensor}"
        )


def _check_vector(rule: Operand, value: NkiTensor, like: NkiTensor) -> None:
    if value.shape[0] != like.shape[0] or value.free_size != 1:
        raise NkiValidationError(
            f"operand {rule.name!r} must have shape ({like.shape[0]}, 1), one element for each partition of "
            f"{rule.like!r}, got {value}"
        )


def _check_stays_in_partitions(name: str, view: NkiTensor, index: int, offset: int) -> None:
    """An index moves an on-chip view within its partitions, never into the neighbouring one."""
    row = partition_elements(view)
    static = view.offset % row
    low, high = extent(Layout(view.shape[1:], view.strides[1:], static + offset - view.offset))
    if low < 0 or high >= row:
        raise OutOfRangeError(
            f"operand {name!r}: index {index} moves {view} to elements {low} to {high} of partitions of {row}"
        )


def _touch(core: Core, tensor: NkiTensor) -> None:
    life = tensor.storage.life
    if life is not None:
        life.touch(core.instruction_number)


def resolve_indirect(core: Core, rule: Operand, view: NkiTensor) -> NkiTensor:
    """The tensor that an instruction works on in place of an indirect view; one that it resolves itself stays.

    Raises:
        OutOfRangeError: if it points outside the tensor.
        NkiValidationError: if the instruction does not take a view of this kind.
    """
    indirect = view.indirect_access
    assert indirect is not None
    if isinstance(indirect.index, NkiTensor):
        _touch(core, indirect.index)
    if indirect.kind != "tensor":
        return view if rule.accepts_indirect else resolve_scalar_offset(rule.name, view)
    if rule.indirection is None or indirect.base is None:
        raise NkiValidationError(f"operand {rule.name!r} must not be a view of indirect(), got {view}; copy it first")
    check_engine_access(rule.name, indirect.base)
    _touch(core, indirect.base)
    operand = gather(rule.name, view, indirect, rule.indirection, rule.is_output)
    core.indirect_operands.append(operand)
    return operand.gathered


def resolve_scalar_offset(name: str, view: NkiTensor) -> NkiTensor:
    """The static view to which a view with a scalar offset points now.

    Raises:
        OutOfRangeError: if it points outside the tensor.
        NkiValidationError: if the view has a vector offset.
    """
    indirect = view.indirect_access
    assert indirect is not None
    if indirect.kind == "vector":
        raise NkiValidationError(f"operand {name!r}: only DMA accepts a view with a vector offset, got {view}")
    (index,) = indirect.read()
    if not 0 <= index < indirect.limit:
        raise OutOfRangeError(f"operand {name!r}: {indirect.out_of_range(0, int(index))}")
    target = Layout(view.shape, view.strides, view.offset + int(index) * indirect.stride)
    low, high = extent(target)
    elements = view.storage.elements_of(view.dtype)
    if low < 0 or high >= elements:
        raise OutOfRangeError(
            f"operand {name!r}: index {index} moves {view} to elements {low} to {high} of a storage of {elements}"
        )
    if view.is_on_chip():
        _check_stays_in_partitions(name, view, int(index), target.offset)
    return view.with_layout(target)
