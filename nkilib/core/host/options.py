# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Options that are not tensors: fields of a frozen dataclass, which gives their names, types and defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, ClassVar, Final, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints


class Dataclass(Protocol):
    """Any dataclass, as a protocol."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Group = TypeVar("Group", bound=Dataclass)

_SCHEMA_TYPES: Final = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclass(frozen=True)
class Option:
    """A keyword of an operator.

    Attributes:
        name: the name of the field, which is also the keyword of the schema and of the kernel.
        type: bool, int, float or str.
        is_optional: whether None is a value too.
        default: the default of the field; ``dataclasses.MISSING`` if there is none.
    """

    name: str
    type: type
    is_optional: bool
    default: Any

    @property
    def schema(self) -> str:
        """The declaration of the option in the schema of a PyTorch operator, such as ``int? limit=None``."""
        declared = f"{_SCHEMA_TYPES[self.type]}{'?' if self.is_optional else ''} {self.name}"
        if self.default is MISSING:
            return declared
        return f"{declared}={json.dumps(self.default) if isinstance(self.default, str) else self.default}"

    def as_python(self, caller: object, value: Any) -> Any:
        """Convert ``value``, a number of Python or numpy, to the Python type of the option.

        Raises:
            TypeError: a value of another type.
            ValueError: an integer of more than 64 bits.
        """
        if value is None and self.is_optional:
            return None
        if self.type is float and isinstance(value, int | float | Real):
            return float(value)
        if self.type is int and isinstance(value, int | Integral) and not isinstance(value, bool):
            if not -(2**63) <= int(value) < 2**63:
                raise ValueError(f"{caller}: {self.name} must fit 64 bits, got {value}")
            return int(value)
        if self.type in (bool, str) and isinstance(value, self.type):
            return value
        raise TypeError(f"{caller}: argument {self.name!r} must be {self.type.__name__}, not {type(value).__name__}")


_described: Final[dict[type[Dataclass], tuple[Option, ...]]] = {}


def options_of(group: type[Dataclass]) -> tuple[Option, ...]:
    """Return the fields of a dataclass as options, in order.

    The result is cached, because a graph of torch.compile cannot look at types.

    Raises:
        TypeError: a field that an operator cannot take.
    """
    if group not in _described:
        _described[group] = _options(group)
    return _described[group]


def _options(group: type[Dataclass]) -> tuple[Option, ...]:
    hints, options = get_type_hints(group), []
    for field in fields(group):
        hint = hints[field.name]
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        kinds = [member for member in members if member is not type(None)]
        if len(kinds) != 1 or kinds[0] not in _SCHEMA_TYPES:
            raise TypeError(
                f"{group.__name__}.{field.name} must be bool, int, float or str, or one of them or None, for an "
                f"operator to take it, got {hint}; hand other things on as tensors"
            )
        options.append(Option(field.name, kinds[0], len(members) > 1, field.default))
    return tuple(options)


def values_of(group: Dataclass) -> dict[str, Any]:
    """Return the fields of an instance by name, as keywords for operators and kernels.

    Unlike ``dataclasses.asdict``, it does not copy deeply.
    """
    return {field.name: getattr(group, field.name) for field in fields(group)}


def options_from(group: type[Group], values: Mapping[str, Any]) -> Group:
    """Make an instance of ``group`` from those ``values`` that are its fields."""
    return group(**{field.name: values[field.name] for field in fields(group) if field.name in values})
