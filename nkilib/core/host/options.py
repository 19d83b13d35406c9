# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Options that are not tensors: fields of a frozen dataclass, which gives their names, types and defaults.

Public functions share them as keywords by ``**options: Unpack[...]`` (PEP 692) instead of repeating them. Type checkers
know the keywords from the TypedDict, readers from the signature that ``help`` shows; a call with an unknown keyword
raises a TypeError.

- values converted to Python types, and checks: :func:`as_float`, :func:`as_int`, :func:`as_int64`, :func:`check_flags`,
  :func:`is_integer`, :func:`is_number`;
- a field as an :class:`Option`: :func:`options_of`; from and to keywords: :func:`numbers`, :func:`options_from`,
  :func:`values_of`;
- the signature of a public function: :func:`shows`, :func:`hides_unknown`, and :func:`refuse_unknown` for keywords that
  are not in it, :class:`NoKeywords` where there are none;
- the reductions of losses: :data:`REDUCTIONS`, :func:`check_reduction`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from inspect import Parameter
from numbers import Integral, Real
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Final,
    Protocol,
    TypedDict,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)


class Dataclass(Protocol):
    """A protocol that the instances of every dataclass satisfy."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Numbers(Protocol):
    """A protocol that tensors and arrays of numbers satisfy, of torch, jax or numpy."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""


Group = TypeVar("Group", bound=Dataclass)
Function = TypeVar("Function", bound=Callable[..., Any])

# The reductions of losses, under the names of PyTorch.
REDUCTIONS: Final = ("mean", "sum", "none")
_SCHEMA_TYPES: Final = {bool: "bool", int: "int", float: "float", str: "str"}


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether the value is an int of Python, which a bool is not here."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether the value is an int or a float of Python, which a bool is not here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _element(value: Any) -> Any:
    """Return the number in a tensor or array without dimensions. A tensor that requires grad, or any other value, is
    returned unchanged.
    """
    if getattr(value, "ndim", None) != 0 or getattr(value, "requires_grad", False):
        return value
    return value.item()


def _refused(caller: object, name: str, kind: str, value: Any) -> TypeError:
    needs_item = getattr(value, "ndim", 0) > 0 or getattr(value, "requires_grad", False)
    remedy = f"; pass {name}.item()" if needs_item else ""
    return TypeError(f"{caller}: argument {name!r} must be {kind}, not {type(value).__name__}{remedy}")


def as_float(caller: object, name: str, value: Any) -> float:
    """Return a real number as a float of Python. The number may be of Python or numpy, or a tensor or array without
    dimensions, whose value is read; under torch.compile it may be symbolic.

    Raises:
        TypeError: if it is another value (a bool too), a tensor with dimensions, or a tensor that requires grad.
    """
    number = value if isinstance(value, int | float) else _element(value)
    if isinstance(number, bool) or not isinstance(number, int | float | Real):
        raise _refused(caller, name, "float", value)
    return float(number)


def as_int(caller: object, name: str, value: Any) -> int:
    """Return an integer as an int of Python; see :func:`as_float`.

    Raises:
        TypeError: if it is another value (a bool or a float too), or a tensor with dimensions.
    """
    number = value if isinstance(value, int | float) else _element(value)
    if isinstance(number, bool) or not isinstance(number, int | Integral):
        raise _refused(caller, name, "int", value)
    return int(number)


def as_int64(caller: object, name: str, value: Any) -> int:
    """Return an integer that fits 64 bits as an int of Python; see :func:`as_float`.

    Raises:
        TypeError: see :func:`as_int`.
        ValueError: it has more than 64 bits.
    """
    number = as_int(caller, name, value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{caller}: {name} must fit 64 bits, got {number}")
    return number


def check_flags(caller: object, **flags: Any) -> None:
    """Check that flags are True or False.

    Raises:
        TypeError: if one is another value, such as a ``numpy.bool``, which PyTorch rejects too.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise _refused(caller, name, "bool", flag)


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
        """Convert ``value`` to the Python type of the option; for numbers see :func:`as_float` and :func:`as_int`.

        Raises:
            TypeError: a value of another type.
            ValueError: an integer of more than 64 bits.
        """
        if value is None and self.is_optional:
            return None
        if self.type is float:
            return as_float(caller, self.name, value)
        if self.type is int:
            return as_int64(caller, self.name, value)
        if isinstance(value, self.type):
            return value
        raise _refused(caller, self.name, self.type.__name__, value)


_described: Final[dict[type[Dataclass], Mapping[str, Option]]] = {}


def _described_options(group: type[Dataclass]) -> dict[str, Option]:
    hints, options = get_type_hints(group), {}
    for field in fields(group):
        hint = hints[field.name]
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        kinds = [member for member in members if member is not type(None)]
        if len(kinds) != 1 or kinds[0] not in _SCHEMA_TYPES:
            raise TypeError(
                f"{group.__name__}.{field.name} must be bool, int, float or str, or one of them or None, for an "
                f"operator to take it, got {hint}; hand other things on as tensors"
            )
        options[field.name] = Option(field.name, kinds[0], len(members) > 1, field.default)
    return options


def _options(group: type[Dataclass]) -> Mapping[str, Option]:
    """Return the fields of a dataclass as options by name, in order.

    The result is cached, because a graph of torch.compile cannot look at types.
    """
    if group not in _described:
        _described[group] = _described_options(group)
    return _described[group]


def options_of(group: type[Dataclass]) -> tuple[Option, ...]:
    """Return the fields of a dataclass as options, in order.

    Raises:
        TypeError: a field that an operator cannot take.
    """
    return tuple(_options(group).values())


def values_of(*groups: Dataclass) -> dict[str, Any]:
    """Return the fields of instances by name, as keywords for operators and kernels.

    Unlike ``dataclasses.asdict``, it does not copy deeply.
    """
    return {field.name: getattr(group, field.name) for group in groups for field in fields(group)}


def options_from(group: type[Group], values: Mapping[str, Any]) -> Group:
    """Return an instance of ``group``, filled with those of ``values`` that are its fields; others are ignored."""
    return group(**{field.name: values[field.name] for field in fields(group) if field.name in values})


def shows(shared: type, defaults: type[Dataclass]) -> Callable[[Function], Function]:
    """Decorate a function with ``**keywords`` so that ``inspect.signature`` and ``help`` list the keywords.

    Args:
        shared: the TypedDict of the keywords.
        defaults: a dataclass with fields of these names, whose defaults are shown.
    """
    further = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(defaults)
        if field.name in shared.__annotations__
    ]

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *named, rest = signature.parameters.values()
        # Other keywords are accepted too only if they are not typed.
        shown = [*named, *further, *([rest] if rest.annotation in ("Any", Any) else [])]
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate


def refuse_unknown(function: Callable[..., Any], keywords: Mapping[str, Any], known: Collection[str] = ()) -> None:
    """Check that every keyword of a call is known. Python checks this itself where keywords are not shared.

    Raises:
        TypeError: an unknown keyword; the message names the function, the keyword, the known ones and the nearest one.
    """
    for name in keywords:
        if name not in known:
            parameters = list(inspect.signature(function).parameters)
            nearest = get_close_matches(name, parameters, n=1)
            guess = f" (did you mean {nearest[0]!r}?)" if nearest else ""
            raise TypeError(
                f"{function.__name__}: there is no argument {name!r}{guess}; the arguments are {', '.join(parameters)}"
            )


def numbers(caller: object, function: Callable[..., Any], group: type[Group], keywords: Mapping[str, Any]) -> Group:
    """Return the options of a public function as an instance of ``group``, made from its keywords.

    The keywords may be numbers of any kind that :func:`as_float` takes.

    Args:
        caller: the name that errors begin with.
        function: the function to which the keywords were passed.
        group: the dataclass of the options.
        keywords: the keywords by name; missing ones get their default.

    Raises:
        TypeError: an unknown option, or a value of another type.
        ValueError: an integer of more than 64 bits.
    """
    return group(**_given_numbers(caller, function, group, keywords))


def all_numbers(
    caller: object, function: Callable[..., Any], group: type[Dataclass], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of :func:`numbers` as keywords for operators and kernels: the numbers by name, with defaults.

    Args and Raises: see :func:`numbers`.
    """
    given = _given_numbers(caller, function, group, keywords)
    return {name: given.get(name, option.default) for name, option in _options(group).items()}


def _given_numbers(
    caller: object, function: Callable[..., Any], group: type[Dataclass], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    options = _options(group)
    refuse_unknown(function, keywords, options)
    return {name: options[name].as_python(caller, value) for name, value in keywords.items()}


class NoKeywords(TypedDict):
    """The type of ``**unknown`` in functions that have no further keywords.

    Such a function has ``**unknown`` nevertheless, so that :func:`refuse_unknown` can suggest the nearest argument for
    a misspelt one, which Python does only from 3.13 on. It is decorated with :func:`hides_unknown`.
    """


def hides_unknown(function: Function) -> Function:
    """Decorate a function with ``**unknown`` so that ``inspect.signature`` and ``help`` do not show it."""
    signature = inspect.signature(function)
    shown = [item for item in signature.parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def check_reduction(caller: object, reduction: Any) -> None:
    """Check that a reduction is one of :data:`REDUCTIONS`.

    Raises:
        ValueError: another reduction.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass mean, sum or none")
