# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operands whose elements an index selects while an instruction runs: tensor indirection of trn3, and scalar offsets.

A view of ``NkiTensor.indirect`` selects free elements of a tensor, its *base*, by the *offsets* in another tensor, its
*index*. Partitions in a *group* (16 of GpSimd, 32 of the Tensor engine) use the same offsets.

- :func:`with_indirection`, :data:`RULES`: the instructions and operands that accept such a view.
- :func:`gather`: makes an :class:`IndirectOperand` from such a view; a :class:`Choice` maps offsets to elements.
  :func:`check_indirect_operands`: requirements on several operands.
- :func:`resolve_scalar_offset`: returns the elements of a view with a scalar offset as a static view; it gathers
  nothing.

Before the instruction runs, the selected elements are gathered into a new tensor, which the instruction gets in place
of the view. This is also done for an output, because the instruction may leave some elements unchanged, or add to them;
afterwards the elements are scattered back. The instruction itself does not know of the indirection.

Sources: sections "Tensor indirection" of the docstrings of ``nki.isa``; docstring of ``NkiTensor.indirect``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..memory.storage import Storage
from ..memory.written import WrittenMap
from ..tensors.tensor import NkiTensor
from ..tensors.view import Indirect, View, assumed_partition, partition_elements, placed_partition
from ..terms import dtypes as dt
from ..terms.enums import Engine, MemoryRegion
from ..terms.errors import NkiValidationError, OutOfRangeError
from ..terms.layout import Layout, extent
from ..terms.spec import DataNeeded
from .definition import Indirection, Operand

_QUADRANT = 32
_MATMUL_TYPES = frozenset({dt.float16, dt.bfloat16, dt.float8_e4m3, dt.float8_e5m2, dt.float8_e4m3fn})


def _rule(*operands: str, on: tuple[Engine, ...]) -> Indirection:
    return Indirection(operands, frozenset(on))


RULES = {
    "activate2": _rule("dst", "data", on=(Engine.scalar,)),
    "activation": _rule("dst", "data", on=(Engine.scalar,)),
    "activation_reduce": _rule("dst", "data", on=(Engine.scalar,)),
    "exponential": _rule("dst", "src", on=(Engine.vector,)),
    "nc_matmul": _rule("dst", "stationary", "moving", on=(Engine.tensor,)),
    "nc_matmul_mx": _rule("dst", "stationary", "stationary_scale", "moving", "moving_scale", on=(Engine.tensor,)),
    "tensor_copy": _rule("dst", "src", on=(Engine.vector, Engine.scalar)),
    "tensor_copy_predicated": _rule("dst", "predicate", on=(Engine.vector,)),
    "tensor_reduce": _rule("dst", "data", on=(Engine.vector,)),
    "tensor_scalar": _rule("dst", "data", on=(Engine.vector, Engine.scalar, Engine.gpsimd)),
    "tensor_scalar_cumulative": _rule("dst", "src", on=(Engine.vector,)),
    "tensor_scalar_reduce": _rule("dst", "data", on=(Engine.vector,)),
    "tensor_tensor": _rule("dst", "data1", on=(Engine.vector, Engine.gpsimd)),
}


def with_indirection(instruction: str, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Return the operands of an instruction with ``indirection`` set where a view of ``NkiTensor.indirect`` is
    accepted.
    """
    rule = RULES.get(instruction)
    if rule is None:
        return operands
    return tuple(
        replace(operand, indirection=rule) if operand.name in rule.operands else operand for operand in operands
    )


@dataclass(frozen=True)
class Choice:
    """The rule by which offsets select free elements of the base.

    Attributes:
        partitions, columns: the shape of the index.
        group: the number of partitions in a group.
        count: the number of elements that are selected in each partition.
        limit: the upper bound of the offsets, which must lie in [0, limit).
    """

    partitions: int
    columns: int
    group: int
    count: int
    limit: int

    @property
    def places(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """The positions in the index of the offsets that select the elements.

        They are two arrays (partitions, count): for each selected element, the partition and column of its offset.
        """
        element = np.arange(self.count)
        first = np.arange(self.partitions) // self.group * self.group
        columns = np.broadcast_to(element // self.group, (self.partitions, self.count))
        return first[:, None] + element % self.group, columns

    def of(self, offsets: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the free positions of the selected elements in the base, as an array (partitions, count).

        Args:
            offsets: the values of the index.

        Raises:
            OutOfRangeError: an offset is outside [0, limit).
        """
        positions = offsets.reshape(self.partitions, self.columns).astype(np.int64)[self.places]
        outside = (positions < 0) | (positions >= self.limit)
        if outside.any():
            raise OutOfRangeError(f"offset {positions[outside][0]} is out of range [0, {self.limit})")
        return positions


def rows_layout(base: View) -> Layout:
    """Return the layout of ``base``, which is dense in each partition, as a matrix (partitions, free elements)."""
    return Layout((base.shape[0], base.size // base.shape[0]), (base.strides[0], 1), base.offset)


def _marks(marks: WrittenMap, layout: Layout, width: int) -> npt.NDArray[np.bool_]:
    if marks.is_full or marks.is_untouched:
        return np.full(layout.shape, marks.is_full)
    return np.asarray(marks.mask_of(layout, width).all(axis=-1)).reshape(layout.shape)


def _put(target: npt.NDArray[Any], positions: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
    np.put_along_axis(target, positions, values, 1)


@dataclass(frozen=True)
class IndirectOperand:
    """An operand of the running instruction that the kernel passed as a view of ``NkiTensor.indirect``.

    Attributes:
        name: the name of the operand.
        base: the tensor whose free elements are selected.
        index: the tensor of the offsets.
        choice: the rule that maps offsets to elements.
        positions: the free positions of the selected elements in ``base``, an array (partitions, selected elements).
        gathered: the tensor of the gathered elements, which the instruction gets in place of the view.
        elements: the layout (partitions, selected elements) of the gathered elements in the storage of ``gathered``.
        is_output: whether the elements are scattered back afterwards.
    """

    name: str
    base: View
    index: View
    choice: Choice
    positions: npt.NDArray[np.int64]
    gathered: View
    elements: Layout
    is_output: bool

    def finish(self) -> None:
        """Scatter the elements of an output back to ``base`` after the instruction; do nothing for an input.

        If several elements have the same position, the last one is stored.
        """
        storage, source = self.base.storage, self.gathered.storage
        if not self.is_output or storage.is_shape_only:
            return
        if not storage.is_abstract:
            to = self.base.flat_rows
            assert to is not None
            _put(to, self.positions, source.array(self.elements, to.dtype))
        # On trn3 a matmul adds to any written element: the record of matmul results does not matter.
        rows, width = rows_layout(self.base), storage.width_of(self.base.dtype)
        chosen = np.zeros(rows.shape, np.bool_)
        _put(chosen, self.positions, _marks(source.written, self.elements, width))
        storage.written.mark_where(rows, width, chosen)


def _copy_elements(base: View, positions: npt.NDArray[np.int64], gathered: View) -> None:
    """Copy the elements of ``base`` at ``positions`` to ``gathered``; an unwritten element is marked as unwritten
    there.
    """
    storage, width = gathered.storage, base.storage.width_of(base.dtype)
    if not storage.is_abstract:
        source = base.flat_rows
        assert source is not None
        gathered.array[...] = np.take_along_axis(source, positions, 1)
    if not base.storage.written.is_untouched:
        chosen = np.take_along_axis(_marks(base.storage.written, rows_layout(base), width), positions, 1)
        storage.written.mark_where(gathered.layout, width, chosen)


def _choice(name: str, view: View, indirect: Indirect, group: int) -> Choice:
    """Return the :class:`Choice` for a view of ``indirect``.

    A group reads its offsets column by column: down its partitions of a column, then down the next column.
    """
    assert isinstance(indirect.index, View)
    partitions, columns = indirect.index.shape
    count = indirect.count
    lanes = partitions % group or group  # of the last group, which may be a part of one
    offsets = group * columns if lanes == group else lanes
    if count > offsets:
        raise NkiValidationError(
            f"operand {name!r}: {view} takes {count} offsets of {indirect.index}, of which each group of {group} "
            f"partitions holds its own: {offsets} here; pass num_elem={offsets} or less, or an index of more columns"
        )
    return Choice(partitions, columns, group, count, indirect.limit)


def _positions(name: str, indirect: Indirect, choice: Choice) -> npt.NDArray[np.int64]:
    """Return the free positions of the selected elements, (partitions, count); zeros in a launch on shapes."""
    assert isinstance(indirect.index, View)
    if indirect.index.storage.is_shape_only:
        return np.zeros((choice.partitions, choice.count), np.int64)
    offsets = indirect.read()
    try:
        return choice.of(offsets)
    except OutOfRangeError:
        rows, columns = choice.places
        positions = offsets.reshape(choice.partitions, choice.columns)[rows, columns]
        lane, at = np.argwhere((positions < 0) | (positions >= choice.limit))[0]
        place = int(rows[lane, at]) + int(columns[lane, at]) * choice.partitions
        error = indirect.out_of_range(place, int(positions[lane, at]))
        raise type(error)(f"operand {name!r}: {error}") from None


def gather(name: str, view: View, indirect: Indirect, rule: Indirection, is_output: bool) -> IndirectOperand:
    """Copy the elements that a view of ``NkiTensor.indirect`` selects to a new tensor, and return the operand.

    Args:
        name: the name of the operand.
        view: the view that the kernel passed.
        indirect: the base and index of the view.
        rule: the operands of the instruction that accept such views, and their engines.
        is_output: whether the instruction writes the operand.

    Raises:
        OutOfRangeError: an offset lies outside the partition.
        NkiValidationError: the view takes more offsets than a group of partitions holds.
    """
    base = indirect.base
    assert base is not None and isinstance(indirect.index, View)
    is_abstract = base.storage.is_abstract
    choice = _choice(name, view, indirect, rule.group)
    positions = _positions(name, indirect, choice)
    is_exact = base.storage.numpy_type_of(base.dtype) == base.dtype.numpy
    partitions, count = positions.shape
    # In the partitions of the base, because these decide which accumulator registers an engine uses.
    lane = assumed_partition(base)
    shape = (lane + partitions, count)
    storage = Storage(
        shape,
        base.dtype,
        base.buffer,
        base.name,
        precise_fp=is_exact,
        is_abstract=is_abstract,
        origin=base.storage.origin,
    )
    layout = Layout(positions.shape, (count, 1), lane * count)
    gathered = NkiTensor(storage.shape, base.dtype, storage, base.buffer, base.name).with_layout(layout)
    if not storage.is_shape_only:
        _copy_elements(base, positions, gathered)
    shifted = view.layout._replace(offset=view.offset + layout.offset)
    return IndirectOperand(
        name, base, indirect.index, choice, positions, gathered.with_layout(shifted), layout, is_output
    )


def _check_same_place(name: str, tensor: View, other_name: str, other: View) -> None:
    start, other_start = placed_partition(tensor), placed_partition(other)
    if start is not None and other_start is not None and start != other_start:
        raise NkiValidationError(
            f"operand {name!r} must start on the partition of {other_name}, which is {other_start}, got partition "
            f"{start} of {tensor}"
        )


def _check_places(names: tuple[str, ...], values: dict[str, Any], operands: dict[str, IndirectOperand]) -> None:
    """Check the partitions at which operands and indices start.

    Two operands that must start at the same partition are compared only if the kernel places both; otherwise a compiler
    can place them accordingly.
    """
    for operand in operands.values():
        # Every tensor starts on such a partition, wherever it is placed; a view of one may not.
        start = operand.index.offset // operand.index.strides[0]
        if start % _QUADRANT:
            raise NkiValidationError(
                f"operand {operand.name!r}: the index of a view of indirect() must start on a partition that is a "
                f"multiple of {_QUADRANT}, got a start at {start} of {operand.index}"
            )
        if not operand.is_output:
            _check_same_place(operand.name, operand.base, f"the index of {operand.name!r}", operand.index)
    output, name = operands.get(names[0]), names[1]
    if output is None:
        return
    source = operands.get(name)
    tensor = values[name] if source is None else source.base
    if tensor.buffer is MemoryRegion.sbuf:
        _check_same_place(f"index of {names[0]}", output.index, repr(name), tensor)
    elif source is not None:
        _check_same_place(f"index of {names[0]}", output.index, f"the index of {name!r}", source.index)


def _place_of_index(operand: IndirectOperand | None) -> tuple[int, Layout] | None:
    return None if operand is None else (id(operand.index.storage), operand.index.layout)


def _check_matmul(instruction: str, values: dict[str, Any], operands: dict[str, IndirectOperand]) -> None:
    position = tuple(values.get("tile_position") or ())
    if position not in ((), (0, 0)):
        raise NkiValidationError(f"tile_position must be (0, 0) or unset with a view of indirect(), got {position}")
    if values.get("is_transpose") and "moving" in operands:
        raise NkiValidationError("operand 'moving' cannot be a view of indirect() with is_transpose=True")
    if instruction == "nc_matmul_mx":
        for data in ("stationary", "moving"):
            index, scale_index = (_place_of_index(operands.get(name)) for name in (data, f"{data}_scale"))
            if index != scale_index:
                raise NkiValidationError(
                    f"operands {data!r} and '{data}_scale' must both be views of indirect() with one index, or neither"
                )
    else:
        for operand in operands.values():
            if not operand.is_output and operand.base.dtype not in _MATMUL_TYPES:
                types = ", ".join(sorted(_MATMUL_TYPES))
                raise NkiValidationError(
                    f"operand {operand.name!r}: a view of indirect() needs one of the types {types}, got {operand.base}"
                )


def check_indirect_operands(
    instruction: str, engine: Engine, values: dict[str, Any], operands: list[IndirectOperand]
) -> None:
    """Check the requirements of an instruction with indirect operands that involve several operands.

    Other functions check the requirements on a single operand, and on the engine.

    Raises:
        NkiValidationError: a requirement is not met; the message names the operand, the requirement and the value.
    """
    by_name = {operand.name: operand for operand in operands}
    _check_places(RULES[instruction].operands, values, by_name)
    if engine is Engine.tensor:
        _check_matmul(instruction, values, by_name)


def _index(indirect: Indirect) -> int:
    """Return the value of a scalar offset; 0 in a launch without data, where nothing depends on the value."""
    try:
        (index,) = indirect.read()
    except DataNeeded:
        return 0
    return int(index)


def _check_stays_in_partitions(name: str, view: NkiTensor, index: int, offset: int) -> None:
    """Check that an on-chip view with a scalar offset stays within its partitions.

    Args:
        name: the name of the operand.
        view: the view with a scalar offset.
        index: the value of the scalar offset.
        offset: the position in the storage of the first element of the resulting view.
    """
    row = partition_elements(view)
    static = view.offset % row
    low, high = extent(Layout(view.shape[1:], view.strides[1:], static + offset - view.offset))
    if low < 0 or high >= row:
        raise OutOfRangeError(
            f"operand {name!r}: index {index} moves {view} to elements {low} to {high} of partitions of {row}"
        )


def resolve_scalar_offset(name: str, view: NkiTensor) -> NkiTensor:
    """Return the static view at which a view with a scalar offset points now.

    In a launch without data the value of the offset is not known, and the view is that of offset 0.

    Raises:
        OutOfRangeError: the result lies outside the tensor.
        NkiValidationError: the view has a vector offset.
    """
    indirect = view.indirect_access
    assert indirect is not None
    if indirect.kind == "vector":
        raise NkiValidationError(f"operand {name!r}: only DMA accepts a view with a vector offset, got {view}")
    index = _index(indirect)
    if not 0 <= index < indirect.limit:
        raise OutOfRangeError(f"operand {name!r}: {indirect.out_of_range(0, index)}")
    target = Layout(view.shape, view.strides, view.offset + index * indirect.stride)
    low, high = extent(target)
    elements = view.storage.elements_of(view.dtype)
    if low < 0 or high >= elements:
        raise OutOfRangeError(
            f"operand {name!r}: index {index} moves {view} to elements {low} to {high} of a storage of {elements}"
        )
    if view.is_on_chip():
        _check_stays_in_partitions(name, view, index, target.offset)
    return view.with_layout(target)
