# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Calls of instructions: those that a kernel makes, with the text of their arguments, and calls to write instead.

- :class:`OldCall`: a recorded instruction, with the source text of its arguments if the source is available;
- :class:`NewCall`: a call to write; :meth:`NewCall.action` turns it into an action that the model can time;
- :class:`Argument`: a part of a tensor, or a constant, with its text.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping, Sequence
from functools import lru_cache
from inspect import Parameter
from types import CodeType
from typing import Any, NamedTuple

from ....hardware.generations import Generation
from ....isa.checks import check_engine
from ....isa.definition import Definition, Operand
from ....isa.operators import OPERATORS, Operator
from ....machine.issue import REGISTRY
from ....terms.enums import Engine, MemoryRegion, nc_version
from ....terms.errors import NkiValidationError
from ....timing.footprints import Form
from ....timing.instruction import InstructionKinds, roles_of
from ....timing.instruction_log import Lines
from ....timing.recording import Access, Action, Step
from ..flow import operand_names

# Parameters that calls name although they have no defaults.
_NAMED = frozenset({"axis", "reduce_op", "reduce_res"})


@lru_cache(maxsize=16)
def _calls_in(text: str) -> Mapping[str, Sequence[ast.Call]]:
    # By the name of the called function; empty if the text is no Python.
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            calls.setdefault(name, []).append(node)
    return calls


def _source_of(code: CodeType, position: int, name: str) -> ast.Call | None:
    # None if several different calls on the line have this name.
    file, _, line = Lines().place(code, position).rpartition(":")
    linecache.checkcache(file)
    found = [
        node
        for node in _calls_in("".join(linecache.getlines(file))).get(name, ())
        if node.lineno <= int(line) <= (node.end_lineno or node.lineno)
    ]
    return found[0] if len({ast.unparse(node) for node in found}) == 1 else None


@lru_cache(maxsize=1024)
def _texts_of(code: CodeType | None, position: int, name: str, names: tuple[str, ...]) -> Mapping[str, str]:
    # By parameter; empty if the call is not found.
    node = None if code is None else _source_of(code, position, name)
    if node is None or any(isinstance(value, ast.Starred) for value in node.args):
        return {}
    texts = {parameter: ast.unparse(value) for parameter, value in zip(names, node.args, strict=False)}
    texts |= {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg}
    return {} if any(keyword.arg is None for keyword in node.keywords) else texts


class Argument(NamedTuple):
    """An argument of a call.

    Attributes:
        value: the part of a tensor, an operator, a number, or another constant.
        text: the text of the argument in a call.
    """

    value: Any
    text: str

    @property
    def form(self) -> Form | None:
        """The shape, strides, type and memory region of the tensor; None if the argument is a constant."""
        return self.value.footprint.form if isinstance(self.value, Access) else None


def operator(name: str) -> Argument:
    """Return an argument that is the operator or function ``name`` of ``nki.language``."""
    return Argument(OPERATORS[name], f"nl.{name}")


def number(value: float) -> Argument:
    """Return an argument that is the number ``value``."""
    return Argument(value, repr(value))


class OldCall:
    """A recorded instruction with its arguments.

    Attributes:
        step: the instruction.
        name: the name of the instruction.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.name = step.action.definition.name
        action = step.action
        self._texts = _texts_of(step.code, step.position, self.name, action.definition.names)
        names = operand_names(self.name)
        self._values: dict[str, Any] = dict(action.constants)
        definition = action.definition
        deciding = roles_of(definition).deciding
        self._values |= {definition.names[at]: value for at, value in zip(deciding, action.deciding, strict=True)}
        self._values |= {name: access for name, access in zip(names, action.operands, strict=False) if access}

    def __getitem__(self, parameter: str) -> Argument:
        """Return the argument for a parameter of the instruction; the default if the call does not pass one."""
        value = self._values.get(parameter)
        if parameter in self._texts:
            return Argument(value, self._texts[parameter])
        if isinstance(value, Access):
            form = value.footprint.form
            return Argument(value, f"<{parameter}: {list(form.shape)} {form.dtype}>")
        return Argument(value, repr(value))

    def given(self, *parameters: str) -> dict[str, Argument]:
        """Return those arguments for ``parameters`` that differ from the defaults, by parameter."""
        defaults = self.step.action.definition.signature.parameters
        arguments = {name: self[name] for name in parameters}
        return {name: argument for name, argument in arguments.items() if argument.value != defaults[name].default}

    def key(self, parameter: str) -> str:
        """Return the name of the operator that is passed for ``parameter``; empty if none is passed."""
        value = self._values.get(parameter)
        return value.key if isinstance(value, Operator) else ""

    def form(self, parameter: str) -> Form:
        """Return the shape, strides, type and memory region of the tensor that is passed for ``parameter``."""
        form = self[parameter].form
        assert form is not None
        return form

    def is_same(self, first: str, second: str) -> bool:
        """Return whether the arguments for two parameters are the same part of the same tensor."""
        one, other = self[first].value, self[second].value
        return isinstance(one, Access) and isinstance(other, Access) and one == other

    def with_operands(self, changed: Mapping[str, Argument]) -> NewCall:
        """Return the same call, with the arguments in ``changed``, by parameter, instead of the recorded ones."""
        definition = self.step.action.definition
        present = {
            name: self[name]
            for name in definition.names[:-1]
            if name in self._texts or isinstance(self._values.get(name), Access) or name in self._values
        }
        defaults = definition.signature.parameters
        kept = {
            name: argument
            for name, argument in present.items()
            if name in self._texts or argument.value != defaults[name].default
        }
        return NewCall(self.name, kept | dict(changed))


class NewCall(NamedTuple):
    """A call to write instead of recorded ones.

    Attributes:
        name: the name of the instruction.
        arguments: the arguments that differ from the defaults, by parameter.
    """

    name: str
    arguments: Mapping[str, Argument]

    @property
    def text(self) -> str:
        """The source text of the call."""
        parameters = REGISTRY[self.name].signature.parameters
        shown: list[str] = []
        is_named = False
        for name, parameter in parameters.items():
            argument = self.arguments.get(name)
            if argument is None:
                is_named = True
            else:
                is_named = is_named or parameter.default is not Parameter.empty or name in _NAMED
                shown.append(f"{name}={argument.text}" if is_named else argument.text)
        return f"nisa.{self.name}({', '.join(shown)})"

    def action(self, kinds: InstructionKinds) -> Action | None:
        """Return this call as an :class:`Action`, whose time the model can compute.

        Returns:
            None if the instruction does not exist on the generation of ``kinds``, or does not accept these arguments.
        """
        definition = REGISTRY[self.name]
        if definition.since.value > kinds.generation.version.value:
            return None
        values = {name: item.default for name, item in definition.signature.parameters.items()}
        values |= {name: argument.value for name, argument in self.arguments.items()}
        forms = {name: value.footprint.form if isinstance(value, Access) else value for name, value in values.items()}
        if not all(_is_allowed(rule, forms[rule.name], forms) for rule in definition.operands):
            return None
        if not _are_read_from_sbuf(definition, forms) or not _has_bias_of(kinds.generation, definition, forms):
            return None
        engine = _engine_of(definition, forms)
        try:
            check_engine(definition, engine, kinds.generation, forms)
        except NkiValidationError:
            return None
        roles = roles_of(definition)
        operands = tuple(values[definition.names[at]] for at in roles.tensors)
        operands = tuple(value if isinstance(value, Access) else None for value in operands)
        deciding = tuple(values[definition.names[at]] for at in roles.deciding)
        kind = kinds.kind(definition, engine, [item and item.footprint.form for item in operands], deciding)
        constants = tuple((name, value) for name, value in values.items() if not isinstance(value, Access))
        return Action(definition, kind, operands, deciding=deciding, constants=constants)


def _engine_of(definition: Definition, values: Mapping[str, Any]) -> Engine:
    asked = values.get("engine", Engine.unknown)
    if asked is not Engine.unknown and isinstance(asked, Engine):
        return asked
    return definition.default_engine if definition.choose_engine is None else definition.choose_engine(dict(values))


def _is_allowed(rule: Operand, value: Any, values: Mapping[str, Any]) -> bool:
    """Return whether an argument meets the requirements of its operand.

    Args:
        rule: the requirements.
        value: the :class:`Form` of a tensor, or a constant.
        values: all arguments by name; a vector must have as many partitions as the operand ``rule.like``.
    """
    if not isinstance(value, Form):
        return (value is None and rule.is_optional) or (rule.accepts_scalar and isinstance(value, int | float))
    if value.buffer not in rule.regions or value.dtype not in rule.dtypes:
        return False
    if rule.is_vector:
        like = values.get(rule.like)
        return value.free_size == 1 and (not isinstance(like, Form) or like.shape[0] == value.shape[0])
    return True


def _has_bias_of(generation: Generation, definition: Definition, values: Mapping[str, Any]) -> bool:
    # trn1 takes no number as bias.
    is_activation = definition.name in ("activation", "activation_reduce")
    return not is_activation or generation.version is not nc_version.gen2 or not isinstance(values["bias"], int | float)


def _are_read_from_sbuf(definition: Definition, values: Mapping[str, Any]) -> bool:
    # Engines read at most one tile from PSUM.
    tiles = [rule.name for rule in definition.operands if not rule.is_output and not rule.is_vector]
    return sum(getattr(values[name], "buffer", None) is MemoryRegion.psum for name in tiles) <= 1
