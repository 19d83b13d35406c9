# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The note of an issued instruction. It refers to no tensor, because that would keep the tensor's data alive."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from ..isa.definition import Definition
from ..terms.dtypes import DType
from ..terms.enums import Engine
from ..terms.layout import Layout
from .footprints import Tracked
from .parts import Reach
from .plans import Roles

# A tensor: its storage, its layout and its type; and if its address is read at run time, the range of the address and
# the tensor that it is read from.
Access = tuple[Tracked, Layout, DType, Reach | None, "Access | None"]


# Tensor indirection: the index that it reads, the tensor that it chooses from, whether it writes there, and the name of
# the operand.
Indirection = tuple[Access, Access, bool, str]


class Noted:
    """An issued instruction that is not on the timeline yet. Passes may change it (see :mod:`.passes`).

    Attributes:
        number: its number on its core.
        definition: the definition of the instruction.
        roles: the positions of its tensors and deciding parameters among its parameters.
        engine: the engine that runs it.
        label: the argument ``name=`` of the call.
        operands: the tensors, in the order of the roles; None where a parameter is no tensor.
        deciding: the values of the parameters of ``plans.DECIDING``, in the order of the roles.
        besides: for each operand with tensor indirection, see :data:`Indirection`.
        met_ns: for a barrier or an exchange, when the last core came to it.
        code, position: the code object of the kernel and the bytecode offset that issued it.
        constants: the values of its parameters that are no tensors, where a pass asks for them; else empty.
        register: the number of the instruction that loaded the register with the address of an operand; 0 if none.
        function: the function of ``nki.language`` that issued it; empty if the kernel did so itself.
        dropped_by: the pass that found that the device does not run it; empty while none has.
    """

    __slots__ = (
        "besides",
        "code",
        "constants",
        "deciding",
        "definition",
        "dropped_by",
        "engine",
        "function",
        "label",
        "met_ns",
        "number",
        "operands",
        "position",
        "register",
        "roles",
    )

    def __init__(
        self,
        number: int,
        definition: Definition,
        roles: Roles,
        engine: Engine,
        label: str | None,
        operands: Sequence[Access | None],
        deciding: Sequence[Any],
        besides: Sequence[Indirection],
        met_ns: float | None,
        code: CodeType | None,
        position: int,
        function: str,
        constants: tuple[Any, ...] = (),
        register: int = 0,
    ) -> None:
        self.number = number
        self.definition = definition
        self.roles = roles
        self.engine = engine
        self.label = label
        self.operands = operands
        self.deciding = deciding
        self.besides = besides
        self.met_ns = met_ns
        self.code = code
        self.position = position
        self.function = function
        self.constants = constants
        self.register = register
        self.dropped_by = ""

    def decided(self, name: str) -> Any:
        """Return the value of a parameter in ``plans.DECIDING``; None if the instruction has no such parameter."""
        names = self.definition.names
        return next(
            (value for at, value in zip(self.roles.deciding, self.deciding, strict=True) if names[at] == name), None
        )
