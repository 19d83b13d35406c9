# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The effect of an instruction on the accumulator registers of the Vector engine, selected by its ``reduce_cmd``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...numerics.operators import ARITHMETIC_REDUCTIONS
from ...tensors.tensor import NkiTensor
from ...terms.enums import reduce_cmd as commands
from ...terms.errors import NkiValidationError
from ..accumulators import CONTINUES, check_known, check_stored, lanes_of, read_accumulators
from ..elementwise import column, rows_of

Float32s = npt.NDArray[np.float32]


class RegisterReduction:
    """The use of the accumulator registers by one instruction: its command, its operator, and the results of its rows.

    Args:
        core: the core; the registers of the partitions of ``data`` are used.
        data: the tile that the instruction works on.
        command: the caller's ``reduce_cmd``.
        key: name of the operator, in ``ARITHMETIC_REDUCTIONS``.
        allowed: commands that the instruction has.
        initial: the initial value for ``load_reduce``; a number or one float32 a partition.
        destination: the (P, 1) tile that receives the registers afterwards, or None.
        negate: whether the destination receives them times -1.

    Raises:
        NkiValidationError: if the instruction does not have the command.
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
        """Read the initial value of ``load_reduce``, because ``dst`` may overwrite the tile that it comes from."""
        if self.initial is not None:
            self._initial = column(self.initial, slice(0, len(self._partial))).reshape(-1)

    def start(self, rows: slice) -> Float32s:
        """Return the values from which the instruction accumulates in some rows: a copy, one value a partition.

        Raises:
            UninitializedReadError: if the command continues from registers without a defined value, with
                ``uninitialized="error"``.
        """
        values = np.empty_like(self._partial[rows])
        if self._command is commands.reduce:
            lanes = self._lanes_of(rows)
            check_known(self._core, self._registers, lanes, CONTINUES)
            values[...] = self._registers.read(lanes)
        elif self._command is commands.load_reduce:
            values[...] = rows_of(self._initial, rows if len(self._initial) > 1 else slice(None))
        else:
            values[...] = self._identity
        return values

    def _lanes_of(self, rows: slice) -> slice:
        return slice(self._lanes.start + rows.start, self._lanes.start + rows.stop)

    def add_rows(self, rows: slice, values: Float32s) -> None:
        """Reduce the results of some rows over the free dimensions, and keep one value for each row."""
        if self.is_active:
            self._partial[rows] = self._ufunc.reduce(values, axis=1) if values.shape[1] else self._identity

    def finish(self, rows: slice) -> None:
        """Put the reductions of some rows into the registers, as the command says, and these into the destination.

        Raises:
            UninitializedReadError: see :meth:`start`; also if registers without a defined value are to be stored.
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
        """Record what :meth:`finish` does to registers and destination, in a launch that computes no results."""
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
        """Set the registers to ``values``, one a partition, at the end of the instruction."""
        self._registers.set(self._lanes, values)
