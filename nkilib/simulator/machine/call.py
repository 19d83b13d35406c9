# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Call``: one instruction as it runs."""

from __future__ import annotations

from typing import Any

from ..isa.definition import Definition
from ..tensors.view import View
from .core import Core
from .observer import Issued


class Call(Issued):
    """An instruction that a core runs; the instruction's function receives it besides the operands.

    Attributes:
        core: the core that runs the instruction.
    """

    __slots__ = ("core",)

    def __init__(self, core: Core, definition: Definition, values: list[Any]) -> None:
        self.core = core
        self.definition = definition
        self.values = values
        core.issued += 1
        self.number = core.issued
        self.engine = definition.default_engine
        self.function = core.language_function
        self.reads = []
        self.indirect = []
        self.offsets = []
        self.register = 0

    def keep(self, view: View) -> None:
        """Record that the instruction leaves some elements of an output unchanged, so that their values are needed."""
        self.reads.append(view)
