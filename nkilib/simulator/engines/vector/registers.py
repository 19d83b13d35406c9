"""What an instruction does to the accumulator registers of the Vector engine, as its ``reduce_cmd`` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine.core import Core
from ...numerics.operators import ARITHMETIC_REDUCTIONS
from ...tensors.tensor import NkiTensor
from ...terms.enums import reduce_cmd as commands
from ...terms.errors import NkiValidationError
from ..accumulators import CONTINUES, check_known, lanes_of
from ..blocks import column

Float32s = npt.NDArray[np.float32]


class RegisterReduction:
    """The accumulator side of one instruction: which command, which operator, and the partial results of its rows.

    Args:
        core: the core, whose registers those of the partitions of ``data`` are.
        data: the tile that the instruction works on.
        command: the caller's ``reduce_cmd``.
        key: name of the operator, in ``ARITHMETIC_REDUCTIONS``.
        allowed: commands that the instruction has.
        initial: with what ``load_reduce`` starts; a number or one float32 a partition.

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
        # Read now: dst may overwrite the tile that it comes from.
        self._initial = None if initial is None else column(initial, slice(0, data.shape[0])).reshape(-1)

    @property
    def is_active(self) -> bool:
        return self._command is not commands.idle

    def start(self) -> Float32s:
        """From what the instruction accumulates: a copy, one value a partition.

        Raises:
            UninitializedReadError: if the command continues from registers that hold nothing defined, with
                ``uninitialized="error"``.
        """
        values = np.empty_like(self._partial)
        if self._command is commands.reduce:
            check_known(self._core, self._registers, self._lanes, CONTINUES)
            values[...] = self._registers.values[self._lanes]
        else:
            values[...] = self._initial if self._command is commands.load_reduce else self._identity
        return values

    def add_rows(self, rows: slice, values: Float32s) -> None:
        """Reduce the results of some rows along the free axis."""
        if self.is_active:
            self._partial[rows] = self._ufunc.reduce(values, axis=1) if values.shape[1] else self._identity

    def finish(self) -> None:
        """Bring the rows' results into the registers as the command says; raises what :meth:`start` raises."""
        if self.is_active:
            self.leave(self._ufunc(self.start(), self._partial))
        else:
            # "Even when reduce_cmd is set to idle, the accumulator state may still be modified."
            self._registers.forget(self._lanes)

    def leave(self, values: Float32s) -> None:
        """The registers hold ``values``, one a partition, when the instruction has ended."""
        self._registers.set(self._lanes, values)
