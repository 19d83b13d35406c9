# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What is noted of an instruction when it is issued; no tensor, for that would keep its data."""

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

# A tensor: its storage, its layout and its type; where its address is read at run time, where that can lead, and the
# tensor that it is read from.
Access = tuple[Tracked, Layout, DType, Reach | None, "Access | None"]


# What tensor indirection reads, chooses from, and whether it writes there.
Indirection = tuple[Access, Access, bool]


class Noted:
    """An instruction on its way to the timeline. Passes may change it (see :mod:`.passes`).

    Attributes:
        number: on its core.
        definition: what runs.
        roles: what its parameters are to the model.
        engine: that runs it.
        label: its ``name=``.
        operands: the tensors, as the roles order them; None where a parameter is none.
        deciding: the deciding parameters, as the roles order them.
        besides: the tensors of tensor indirection.
        met_ns: when the last core came to the meeting that it is, if it is one.
        code, position: its place in the kernel's code.
        constants: its parameters that are no tensors, where a pass asks for them; else empty.
        register: the number of the instruction that loaded what an operand has its address from; 0 if there is none.
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
        """One of the deciding parameters; None if the instruction has no such parameter."""
        names = self.definition.names
        return next(
            (value for at, value in zip(self.roles.deciding, self.deciding, strict=True) if names[at] == name), None
        )
