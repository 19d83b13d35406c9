# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The effect of an instruction on the accumulator registers of the Scalar engine, selected by its ``reduce_cmd``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.operators import operator_key
from ...machine.core import Core
from ...numerics.operators import ARITHMETIC_REDUCTIONS, row_sums
from ...tensors.tensor import NkiTensor
from ...tensors.view import assumed_partition
from ...terms.enums import reduce_cmd as commands
from ...terms.errors import NkiValidationError
from ..accumulators import CONTINUES, check_known, check_stored, read_accumulators

Float32s = npt.NDArray[np.float32]

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
        along: a function that reduces an array (rows, elements), with at least one element a row, to one value a row.
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
    """Return the operator that selects the element with the best magnitude, and keeps its sign.

    On a tie the last element wins, as in ``nl.abs_max`` and ``nl.abs_min``. The result is NaN if there is one.
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


class ScalarAccumulation:
    """The use of the accumulator registers by one instruction: its command, its operator, and the results of its rows.

    Args:
        core: the core; the registers of the partitions of ``data`` are used.
        data: the tile that the instruction works on.
        op: the caller's ``reduce_op``.
        command: the caller's ``reduce_cmd``.
        allowed: names of the operators that the instruction has.
        destination: the (P, 1) tile that receives the registers afterwards, or None.

    Raises:
        NkiValidationError: if the instruction does not have the operator or the command, or the command needs an
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
        """Do nothing, because nothing besides the registers has to be read before the instruction writes."""

    def add_rows(self, rows: slice, values: Float32s) -> None:
        """Reduce the results of some rows over the free dimensions, and keep one value for each row."""
        if self.is_active:
            self._partial[rows] = self._fold.along(values) if values.shape[1] else self._fold.identity

    def finish(self, rows: slice) -> None:
        """Put the reductions of some rows into the registers, as the command says, and these into the destination.

        Raises:
            UninitializedReadError: if the command continues from registers without a defined value, or such registers
                are to be stored, with ``uninitialized="error"``.
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
        """Record what :meth:`finish` does to registers and destination, in a launch that computes no results."""
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


def _names(keys: tuple[str, ...]) -> str:
    return " or ".join(f"nl.{key}" for key in keys)
