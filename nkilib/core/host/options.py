# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Options that are not tensors: fields of a frozen dataclass, which gives their names, types and defaults.

Public functions share options as keywords by ``**options: Unpack[...]`` (PEP 692) instead of repeating them. Type
checkers know the keywords from the TypedDict, readers from the signature that ``help`` shows; a call with an unknown
keyword raises a TypeError.

- checks, and conversions to Python types: :func:`as_float`, :func:`as_int`, :func:`as_int64`, :func:`check_flags`,
  :func:`is_integer`, :func:`is_number`;
- the fields of a dataclass, each as an :class:`Option`: :func:`options_of`;
- dataclass instances from keywords: :func:`numbers`, :func:`options_from`; keywords for operators and kernels:
  :func:`all_numbers` from the keywords of a call, :func:`values_of` from dataclass instances;
- the visible signature of a public function: :func:`shows`, :func:`hides_unknown`; the error for an unknown keyword:
  :func:`refuse_unknown`, also in functions that take none (:class:`NoKeywords`);
- the reductions of losses: :data:`REDUCTIONS`, :func:`check_reduction`.

In all checks, ``caller`` is the name with which error messages begin.
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
    """A protocol for tensors and arrays of numbers of torch, jax or numpy."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""


Group = TypeVar("Group", bound=Dataclass)
Function = TypeVar("Function", bound=Callable[..., Any])

# The reductions of losses, under the names of PyTorch.
REDUCTIONS: Final = ("mean", "sum", "none")
_SCHEMA_TYPES: Final = {bool: "bool", int: "int", float: "float", str: "str"}


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether the value is a Python int; False for a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether the value is a Python int or float; False for a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _element(value: Any) -> Any:
    if getattr(value, "ndim", None) != 0 or getattr(value, "requires_grad", False):
        return value
    return value.item()


def _refused(caller: object, name: str, kind: str, value: Any) -> TypeError:
    needs_item = getattr(value, "ndim", 0) > 0 or getattr(value, "requires_grad", False)
    remedy = f"; pass {name}.item()" if needs_item else ""
    return TypeError(f"{caller}: argument {name!r} must be {kind}, not {type(value).__name__}{remedy}")


def as_float(caller: object, name: str, value: Any) -> float:
    """Return a real number as a Python float.

    Args:
        caller: the name with which errors begin.
        name: the name of the argument, for errors.
        value: a number of Python or numpy, or a tensor or array without dimensions, whose value is read. Under
            torch.compile the number may be symbolic.

    Raises:
        TypeError: ``value`` is something else, such as a bool, a tensor with dimensions, or a tensor that requires
            grad.
    """
    number = value if isinstance(value, int | float) else _element(value)
    if isinstance(number, bool) or not isinstance(number, int | float | Real):
        raise _refused(caller, name, "float", value)
    return float(number)


def as_int(caller: object, name: str, value: Any) -> int:
    """Return an integer as a Python int; the arguments are those of :func:`as_float`.

    Raises:
        TypeError: ``value`` is something else, such as a bool, a float, or a tensor with dimensions.
    """
    number = value if isinstance(value, int | float) else _element(value)
    if isinstance(number, bool) or not isinstance(number, int | Integral):
        raise _refused(caller, name, "int", value)
    return int(number)


def as_int64(caller: object, name: str, value: Any) -> int:
    """Return an integer that fits 64 bits as a Python int; the arguments are those of :func:`as_float`.

    Raises:
        TypeError: ``value`` is not an integer; see :func:`as_int`.
        ValueError: the integer has more than 64 bits.
    """
    number = as_int(caller, name, value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{caller}: {name} must fit 64 bits, got {number}")
    return number


def check_flags(caller: object, **flags: Any) -> None:
    """Check that the keyword arguments are True or False.

    Args:
        caller: the name with which errors begin.
        flags: the flags by name.

    Raises:
        TypeError: a flag is something else, such as a ``numpy.bool``, which PyTorch rejects too.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise _refused(caller, name, "bool", flag)


@dataclass(frozen=True)
class Option:
    """A keyword of an operator.

    Attributes:
        name: the name of the dataclass field, which is also the keyword in the operator's schema and of the kernel.
        type: bool, int, float or str.
        is_optional: whether the value may be None.
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
        """Return ``value`` converted to the Python type of the option; for numbers see :func:`as_float` and
        :func:`as_int`.

        Raises:
            TypeError: ``value`` has another type.
            ValueError: an integer has more than 64 bits.
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

    The result is cached, because torch.compile cannot trace the inspection of types.
    """
    if group not in _described:
        _described[group] = _described_options(group)
    return _described[group]


def options_of(group: type[Dataclass]) -> tuple[Option, ...]:
    """Return the fields of a dataclass as options, in order.

    Raises:
        TypeError: a field has a type that no operator can take.
    """
    return tuple(_options(group).values())


def values_of(*groups: Dataclass) -> dict[str, Any]:
    """Return the fields of dataclass instances by name, as keywords for operators and kernels.

    Unlike ``dataclasses.asdict``, this function copies no values.
    """
    return {field.name: getattr(group, field.name) for group in groups for field in fields(group)}


def options_from(group: type[Group], values: Mapping[str, Any]) -> Group:
    """Return an instance of the dataclass ``group``. Entries of ``values`` that are no fields are ignored."""
    return group(**{field.name: values[field.name] for field in fields(group) if field.name in values})


def shows(shared: type, defaults: type[Dataclass]) -> Callable[[Function], Function]:
    """Return a decorator that makes ``inspect.signature`` and ``help`` list the keywords of a function with
    ``**keywords``.

    Args:
        shared: the TypedDict of the keywords.
        defaults: a dataclass with fields of the same names, whose defaults are shown.
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
    """Check the names of the keywords that a function got as ``**keywords``, which Python does not check.

    Args:
        function: the function that was called.
        keywords: the keywords that the call passed.
        known: the keywords that are allowed.

    Raises:
        TypeError: a keyword is unknown; the message names the function, the keyword, the function's arguments, and the
            argument most like the keyword.
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
    """Return the options of a public function as an instance of the dataclass ``group``.

    Args:
        caller: the name with which errors begin.
        function: the function to which the keywords were passed.
        group: the dataclass of the options.
        keywords: the keywords by name; missing ones get their default. Numbers may be of any type that :func:`as_float`
            takes.

    Raises:
        TypeError: an option is unknown, or a value has another type.
        ValueError: an integer has more than 64 bits.
    """
    return group(**_given_numbers(caller, function, group, keywords))


def all_numbers(
    caller: object, function: Callable[..., Any], group: type[Dataclass], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all options of a public function, with defaults, as keywords for operators and kernels.

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
    """The type of ``**unknown`` in functions that have no keyword options.

    Such a function takes ``**unknown`` so that :func:`refuse_unknown` can suggest the nearest argument for a misspelt
    one, which Python does from 3.13 on. :func:`hides_unknown` removes ``**unknown`` from the visible signature.
    """


def hides_unknown(function: Function) -> Function:
    """Decorate a function with ``**unknown`` so that ``inspect.signature`` and ``help`` leave ``**unknown`` out."""
    signature = inspect.signature(function)
    shown = [item for item in signature.parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def check_reduction(caller: object, reduction: Any) -> None:
    """Check that a reduction is one of :data:`REDUCTIONS`.

    Raises:
        ValueError: the reduction is something else.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"{caller}: {reduction!r} is not a valid value for reduction; pass mean, sum or none")
