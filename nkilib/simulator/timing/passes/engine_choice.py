# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the engine for an instruction whose engine the kernel leaves open.

:func:`engines_for` returns the engines among which the model chooses, for the instructions in :data:`BY_WORKLOAD`.

The text of ``nisa.tensor_copy`` (``nki/api/nki/isa/__init__.py``) says of ``engine.unknown``, its default, that the
"compiler selects best engine based on engine workload", and the text of ``memset`` that the compiler selects the best
one. The model takes the engine that finishes first, of those that can run the instruction. On trn1 both instructions
stay on Vector: Scalar has no ``tensor_copy`` there, and GpSimd and Vector share their access to SBUF.

Functions of ``nki.language`` that an activation could compute stay on the engine on which they are issued;
docs/explanation/performance_model.md says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...hardware.generations import Generation
from ...terms.enums import Engine, nc_version
from ..instruction import PendingInstruction

NAME = "chooses_engines"

BY_WORKLOAD = frozenset({"tensor_copy", "memset"})


def engines_for(instruction: PendingInstruction, others: Sequence[str], generation: Generation) -> Sequence[Engine]:
    """Return the engines that may run an instruction in :data:`BY_WORKLOAD`, in the order in which they are tried.

    Args:
        instruction: the instruction.
        others: the names of the other engines that can run it (``InstructionKind.others``).
        generation: the hardware.
    """
    if instruction.decided("engine") is not Engine.unknown or generation.version is nc_version.gen2:
        return (instruction.engine,)
    return [
        engine for engine in instruction.definition.engines if engine is instruction.engine or engine.name in others
    ]
