# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rules that decide whether an engine can run a call of an instruction.

The simulator applies them to the engine of each call, and the model of time to the engines that the call does not use,
so that a profile names no engine on which the call would be an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..hardware.generation import Generation
from ..terms.enums import Engine
from ..terms.errors import NkiValidationError
from ..terms.regions import MemoryRegion
from .definition import Definition
from .indirection import RULES

# Members of an Enum are looked up by a Python function before 3.12; these are asked for in most calls.
_GPSIMD, _PSUM = Engine.gpsimd, MemoryRegion.psum


def check_engine(
    definition: Definition,
    engine: Engine,
    generation: Generation,
    values: Mapping[str, Any],
    indirect: Collection[str] = (),
) -> None:
    """Check that an engine can run a call of an instruction.

    Args:
        definition: the instruction.
        engine: the engine, one of ``definition.engines``.
        generation: the hardware.
        values: the parameters; tensors may be described by other objects, see :class:`EngineRule`.
        indirect: the names of the operands that are views of ``NkiTensor.indirect``.

    Raises:
        NkiValidationError: if it cannot.
    """
    if definition.engine_rule is not None:
        definition.engine_rule(engine, generation, values)
    if indirect:
        _check_indirect(definition, engine, values, indirect)
    if engine is _GPSIMD and definition.is_lane_bound:
        for rule in definition.operands:
            value = values.get(rule.name)
            if getattr(value, "buffer", None) is _PSUM:
                raise NkiValidationError(f"operand {rule.name!r}: the GpSimd engine cannot access psum, got {value}")


def engines_besides(
    definition: Definition,
    engine: Engine,
    generation: Generation,
    values: Mapping[str, Any],
    indirect: Collection[str] = (),
) -> tuple[Engine, ...]:
    """Return the engines besides ``engine`` that a kernel may ask for in a call; for the arguments, see above."""
    return tuple(
        other
        for other in definition.engines
        if other is not engine and _can_run(definition, other, generation, values, indirect)
    )


def _can_run(
    definition: Definition,
    engine: Engine,
    generation: Generation,
    values: Mapping[str, Any],
    indirect: Collection[str],
) -> bool:
    try:
        check_engine(definition, engine, generation, values, indirect)
    except NkiValidationError:
        return False
    return True


def _check_indirect(
    definition: Definition, engine: Engine, values: Mapping[str, Any], indirect: Collection[str]
) -> None:
    allowed = RULES[definition.name].engines
    if engine not in allowed:
        names = " or ".join(sorted(f"nki.isa.engine.{able.name}" for able in allowed))
        raise NkiValidationError(f"a view of indirect() needs {names}, got nki.isa.engine.{engine.name}")
    if engine is not Engine.scalar:
        return
    for name in indirect:
        if name in definition.output_names and values[name].buffer is _PSUM:
            raise NkiValidationError(f"operand {name!r}: the Scalar engine cannot scatter to psum, got {values[name]}")
