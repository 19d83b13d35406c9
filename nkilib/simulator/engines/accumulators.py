# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The accumulator registers of the Vector and Scalar engines, and the commands (``reduce_cmd``) that instructions have.

An engine has one register per partition (*lane*). An instruction reduces its results over the free dimensions to one
value per row, combines this value with the register of the row's lane as the command says, and stores the registers in
a (P, 1) tile, the *destination*, if requested. ``rows`` is always a slice of the partitions of the instruction's tile.

- :class:`VectorAccumulation`, :class:`ScalarAccumulation`: apply the effect of one instruction to the registers;
- :func:`lanes_of`: returns the registers that belong to a tile; :func:`read_accumulators` stores registers in a tile;
- :func:`check_known`, :func:`check_stored`: check that registers hold defined values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..hardware.options import refuse
from ..isa.operators import operator_key
from ..machine.core import Accumulators, Core
from ..numerics.casts import store_float
from ..numerics.operators import ARITHMETIC_REDUCTIONS, row_sums
from ..tensors.tensor import NkiTensor
from ..tensors.view import assumed_partition
from ..terms.dtypes import DType
from ..terms.enums import reduce_cmd as commands
from ..terms.errors import NkiValidationError, UninitializedReadError, kernel_location
from .rowwise import Float32s, column, rows_of_operand

# For reduce_cmd=reduce.
CONTINUES = "reduce_cmd=reduce continues from accumulator registers that hold no defined value; start with reset_reduce"


def lanes_of(data: NkiTensor) -> slice:
    """Return the slice of the registers that an instruction on the tile ``data`` uses, one for each partition."""
    start = assumed_partition(data)
    return slice(start, start + data.shape[0])


def check_known(core: Core, registers: Accumulators, lanes: slice, message: str) -> None:
    """Check that the registers ``lanes`` hold defined values, before an instruction accumulates onto them.

    The option ``uninitialized`` decides whether a violation is an error, a warning or ignored.

    Raises:
        UninitializedReadError: with the text ``message``, if a register holds no defined value and
            ``uninitialized="error"``.
    """
    level = core.options.uninitialized
    if (level == "ignore" and not core.is_recorded) or registers.known[lanes].all():
        return
    core.unrepeatable = "it reads accumulator registers that hold nothing defined"
    if level != "ignore":
        refuse(level, UninitializedReadError(message), kernel_location())


def check_stored(core: Core, registers: Accumulators, lanes: slice) -> None:
    """Check that the registers ``lanes`` hold defined values, before they are stored in a tile.

    The option ``uninitialized`` decides whether a violation is an error, a warning or ignored.

    Raises:
        UninitializedReadError: a register holds no defined value, with ``uninitialized="error"``.
    """
    check_known(
        *(core, registers, lanes),
        "reduce_res reads accumulator registers that hold no defined value; start with reduce_cmd=reset_reduce",
    )


def read_accumulators(
    core: Core,
    registers: Accumulators,
    lanes: slice,
    destination: npt.NDArray[Any],
    dtype: DType,
    *,
    negate: bool = False,
) -> None:
    """Store registers in a (P, 1) tile.

    Args:
        core: the core.
        registers: the registers of the engine.
        lanes: the registers that are stored.
        destination: the elements of the tile.
        dtype: the type of the tile.
        negate: whether the values are multiplied by -1 first.

    Raises:
        UninitializedReadError: a register holds no defined value, with ``uninitialized="error"``.
    """
    check_stored(core, registers, lanes)
    values = registers.read(lanes)
    store_float(destination, np.negative(values) if negate else values, dtype)


class VectorAccumulation:
    """The effect of one instruction on the accumulator registers of the Vector engine.

    Args:
        core: the core.
        data: the tile that the instruction reads; the registers of its partitions are used.
        command: the ``reduce_cmd`` of the call.
        key: the name of the operator, in ``ARITHMETIC_REDUCTIONS``.
        allowed: the commands that the instruction accepts.
        initial: the initial value for ``load_reduce``: a number, or a tile with one float32 per partition.
        destination: the (P, 1) tile that receives the registers afterwards, or None.
        negate: whether the destination receives the registers times -1.

    Raises:
        NkiValidationError: the instruction does not accept the command.
    """

    def __init__(
        self,
        core: Core,
        data: NkiTensor,
        command: commands,
        key: str,
        allowed: tuple[commands, ...],
        initial: Any = None,
        destination: NkiTensor | None = None,
        negate: bool = False,
    ) -> None:
        if command not in allowed:
            names = ", ".join(item.name for item in allowed)
            raise NkiValidationError(f"reduce_cmd must be one of {names}, got {command!r}")
        self._core = core
        self._registers = core.vector_accumulators
        self._lanes = lanes_of(data)
        self._command = command
        self._ufunc = ARITHMETIC_REDUCTIONS[key].ufunc
        self._identity = ARITHMETIC_REDUCTIONS[key].identity
        self._partial = np.empty(data.shape[0], np.float32)
        self._initial: Any = None
        self.initial = initial
        self.destination = destination
        self._negate = negate

    @property
    def is_active(self) -> bool:
        return self._command is not commands.idle

    def begin(self) -> None:
        """Read the initial value of ``load_reduce`` before the instruction writes ``dst``, which may hold this
        value.
        """
        if self.initial is not None:
            self._initial = column(self.initial, slice(0, len(self._partial))).reshape(-1)

    def start(self, rows: slice) -> Float32s:
        """Return the start values of ``rows``: by command, the registers, the initial value or the operator's identity.

        Raises:
            UninitializedReadError: the command continues from registers without a defined value, with
                ``uninitialized="error"``.
        """
        values = np.empty_like(self._partial[rows])
        if self._command is commands.reduce:
            lanes = self._lanes_of(rows)
            check_known(self._core, self._registers, lanes, CONTINUES)
            values[...] = self._registers.read(lanes)
        elif self._command is commands.load_reduce:
            values[...] = rows_of_operand(self._initial, rows if len(self._initial) > 1 else slice(None))
        else:
            values[...] = self._identity
        return values

    def _lanes_of(self, rows: slice) -> slice:
        return slice(self._lanes.start + rows.start, self._lanes.start + rows.stop)

    def add_rows(self, rows: slice, values: Float32s) -> None:
        """Reduce ``values``, the results in ``rows``, over the free dimensions, and keep one value per row until
        :meth:`finish`.
        """
        if self.is_active:
            self._partial[rows] = self._ufunc.reduce(values, axis=1) if values.shape[1] else self._identity

    def finish(self, rows: slice) -> None:
        """Combine the values of :meth:`add_rows` with the registers as the command says; store them in the destination.

        With ``idle`` the registers become undefined.

        Raises:
            UninitializedReadError: the command continues from registers without a defined value, or such registers are
                stored, with ``uninitialized="error"``.
        """
        lanes, destination = self._lanes_of(rows), self.destination
        if self.is_active:
            self._registers.set(lanes, self._ufunc(self.start(rows), self._partial[rows]))
        else:
            # "Even when reduce_cmd is set to idle, the accumulator state may still be modified."
            self._registers.forget(lanes)
        if destination is not None:
            read_accumulators(
                *(self._core, self._registers, lanes, destination.array[rows], destination.dtype), negate=self._negate
            )

    def pass_over(self, rows: slice) -> None:
        """Record which registers :meth:`finish` sets, in a launch that computes no values, and make the same checks."""
        lanes = self._lanes_of(rows)
        if self.is_active:
            if self._command is commands.reduce:
                check_known(self._core, self._registers, lanes, CONTINUES)
            self._registers.leave_out(lanes)
        else:
            self._registers.forget(lanes)
        if self.destination is not None:
            check_stored(self._core, self._registers, lanes)

    def leave(self, values: Float32s) -> None:
        """Set the registers to ``values``, one per partition, at the end of the instruction."""
        self._registers.set(self._lanes, values)


_COMMANDS = (commands.idle, commands.reset, commands.reduce, commands.reset_reduce)
# Members of an Enum are looked up by a Python function before 3.12; these are asked for in every call.
_RESET, _RESET_REDUCE, _REDUCE = commands.reset, commands.reset_reduce, commands.reduce
_REDUCING = (commands.reduce, commands.reset_reduce)


@dataclass(frozen=True)
class _Fold:
    """A reduction operator of the Scalar engine.

    Attributes:
        identity: the value of the registers after a reset.
        join: a function that combines two arrays element by element.
        along: a function that reduces an array (rows, one or more elements) to one value per row.
    """

    identity: float
    join: Callable[[Float32s, Float32s], Float32s]
    along: Callable[[Float32s], Float32s]


def _fold_of(key: str) -> _Fold:
    reduction = ARITHMETIC_REDUCTIONS[key]
    if key == "add":
        return _Fold(reduction.identity, reduction.ufunc, row_sums)
    return _Fold(reduction.identity, reduction.ufunc, lambda values: reduction.ufunc.reduce(values, axis=1))


def _fold_by_magnitude(position_of_best: Callable[..., npt.NDArray[np.intp]], identity: float) -> _Fold:
    """Return an operator that selects the element of largest or smallest magnitude, with its sign.

    Among elements of equal magnitude the last one is selected, as by ``nl.abs_max`` and ``nl.abs_min``. The result is
    NaN if an element is NaN.

    Args:
        position_of_best: ``np.argmax`` or ``np.argmin``.
        identity: the value of the registers after a reset.
    """

    def along(values: Float32s) -> Float32s:
        backwards = values[:, ::-1]
        best = position_of_best(np.absolute(backwards), axis=1)
        return np.take_along_axis(backwards, best[:, np.newaxis], axis=1)[:, 0]

    return _Fold(identity, lambda before, values: along(np.stack((before, values), axis=1)), along)


_FOLDS: dict[str, _Fold] = {
    **{key: _fold_of(key) for key in ("add", "maximum", "minimum")},
    "abs_max": _fold_by_magnitude(np.argmax, 0.0),
    "abs_min": _fold_by_magnitude(np.argmin, np.inf),
}


def _names(keys: tuple[str, ...]) -> str:
    return " or ".join(f"nl.{key}" for key in keys)


class ScalarAccumulation:
    """The effect of one instruction on the accumulator registers of the Scalar engine.

    Args:
        core: the core.
        data: the tile that the instruction reads; the registers of its partitions are used.
        op: the ``reduce_op`` of the call.
        command: the ``reduce_cmd`` of the call.
        allowed: the names of the operators that the instruction accepts.
        destination: the (P, 1) tile that receives the registers afterwards, or None.

    Raises:
        NkiValidationError: the instruction does not accept the operator or the command, or the command needs an
            operator.
    """

    # It starts from the registers alone.
    initial = None

    def __init__(
        self,
        core: Core,
        data: NkiTensor,
        op: Any,
        command: Any,
        allowed: tuple[str, ...],
        destination: NkiTensor | None,
    ) -> None:
        if command not in _COMMANDS:
            raise NkiValidationError(f"reduce_cmd must be idle, reset, reduce or reset_reduce, got {command!r}")
        key = allowed[0]
        if op is not None:
            key = operator_key("reduce_op", op)
            if key not in allowed:
                raise NkiValidationError(f"reduce_op must be {_names(allowed)}, got {op!r}")
        # A reset needs it too, for the identity, unless there is only one.
        elif command in _REDUCING or (command is commands.reset and len(allowed) > 1):
            raise NkiValidationError(f"reduce_cmd={command.name} needs reduce_op={_names(allowed)}")
        self._fold = _FOLDS[key]
        self._command = command
        self._core = core
        self._first_lane = assumed_partition(data)
        self._partial = np.empty(data.shape[0], np.float32)
        self.destination = destination

    @property
    def is_active(self) -> bool:
        return self._command in _REDUCING

    def begin(self) -> None:
        """Do nothing, because a reduction of the Scalar engine starts from the registers alone."""

    def add_rows(self, rows: slice, values: Float32s) -> None:
        """Reduce ``values``, the results in ``rows``, over the free dimensions, and keep one value per row until
        :meth:`finish`.
        """
        if self.is_active:
            self._partial[rows] = self._fold.along(values) if values.shape[1] else self._fold.identity

    def finish(self, rows: slice) -> None:
        """Combine the values of :meth:`add_rows` with the registers as the command says; store them in the destination.

        Raises:
            UninitializedReadError: the command continues from registers without a defined value, or such registers are
                stored, with ``uninitialized="error"``.
        """
        registers, destination = self._core.scalar_accumulators, self.destination
        lanes = slice(self._first_lane + rows.start, self._first_lane + rows.stop)
        if self._command is _RESET:
            registers.set(lanes, self._fold.identity)
        elif self._command is _RESET_REDUCE:
            registers.set(lanes, self._partial[rows])
        elif self._command is _REDUCE:
            check_known(self._core, registers, lanes, CONTINUES)
            registers.set(lanes, self._fold.join(registers.read(lanes), self._partial[rows]))
        if destination is not None:
            read_accumulators(self._core, registers, lanes, destination.array[rows], destination.dtype)

    def pass_over(self, rows: slice) -> None:
        """Record which registers :meth:`finish` sets, in a launch that computes no values, and make the same checks."""
        registers = self._core.scalar_accumulators
        lanes = slice(self._first_lane + rows.start, self._first_lane + rows.stop)
        if self._command is _RESET:
            registers.set(lanes, self._fold.identity)
        elif self.is_active:
            if self._command is _REDUCE:
                check_known(self._core, registers, lanes, CONTINUES)
            registers.leave_out(lanes)
        if self.destination is not None:
            check_stored(self._core, registers, lanes)
