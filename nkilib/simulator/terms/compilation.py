# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The compiler settings of a kernel, and ``NKIObject``, the base of the classes of NKI and of a kernel's own.

Nothing is compiled here, so no compiler setting (``CompileConfig``, ``SpecializationConfig``, ``AddressRotation``)
changes a result; values are checked, and nested kernels must agree.

Source: pages ``nki.compiler`` and ``nki.compiler.CompileConfig`` of the API reference of NKI 0.7. The reference hides
the defaults of some fields; where it says nothing of a default, it is False here.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from .errors import ArgumentTypeError

# What a class attribute must be to be a field without annotation: immutable, since instances share it.
_PLAIN_VALUES = (type(None), bool, int, float, str, tuple, Enum)


class AddressRotation(Enum):
    """The tensors that the compiler may move for a better layout: those that it has placed itself, all, or none."""

    AUTO = "auto"
    ENABLE = "enable"
    DISABLE = "disable"


def _check_flags(config: CompileConfig | SpecializationConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(field.default, bool) and not isinstance(value, bool):
            raise TypeError(f"{type(config).__name__}.{field.name} must be a bool, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Compiler settings of one kernel, for ``nki.jit(compile_config=...)``. None of them changes a simulated result.

    Attributes:
        address_rotation: the tensors that may be moved.
        non_ssa_legalization: whether the compiler runs the pass of this name.
        dead_code_elim: whether the compiler may remove values that nothing reads.
        barrier_check: whether the barriers between the cores are checked; the simulator always checks them.
        prefetch_auto: whether the compiler may keep a ring buffer of prefetched loads in SBUF; excludes
            ``NKI_PREFETCH_RING_SIZE``.
        nki_alloc_fallback: whether another allocator may try where NKI's own one finds no room. Whether the simulator
            checks capacity is a simulator option and does not depend on this field.

    Raises:
        TypeError: if a value has another type.
        ValueError: if ``prefetch_auto`` and the environment variable are both set.
    """

    address_rotation: AddressRotation = AddressRotation.AUTO
    non_ssa_legalization: bool = False
    dead_code_elim: bool = False
    barrier_check: bool = False
    prefetch_auto: bool = False
    nki_alloc_fallback: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.address_rotation, AddressRotation):
            raise TypeError(
                f"CompileConfig.address_rotation must be a member of nki.compiler.AddressRotation, got "
                f"{self.address_rotation!r}"
            )
        _check_flags(self)
        if self.prefetch_auto and os.environ.get("NKI_PREFETCH_RING_SIZE"):
            raise ValueError(
                "CompileConfig(prefetch_auto=True) and the environment variable NKI_PREFETCH_RING_SIZE exclude each "
                "other: unset the one that is not meant"
            )

    def differences(self, other: CompileConfig) -> list[str]:
        """Return the fields in which this configuration differs from another one, as ``name=mine, not theirs``."""
        return [
            f"{field.name}={getattr(self, field.name)}, not {getattr(other, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]


@dataclass(frozen=True, kw_only=True)
class SpecializationConfig:
    """Tracer settings of one kernel, for ``nki.jit(specialization_config=...)``.

    Attributes:
        allow_nested_config_override: whether a nested kernel that asks for another ``CompileConfig`` runs under this
            kernel's configuration with a warning, instead of an error.

    Raises:
        TypeError: if a value has another type.
    """

    allow_nested_config_override: bool = False

    def __post_init__(self) -> None:
        _check_flags(self)


def _is_value(name: str, value: object) -> bool:
    return isinstance(value, _PLAIN_VALUES) and not name.startswith("__")


class NKIObject:
    """The base of NKI's classes, tensors too; a user's configuration class inherits it, with or without ``@dataclass``.

    A class without an ``__init__`` of its own takes its fields in order or by keyword, the annotated fields first. A
    field without an argument has its class-level default, else None, as in the NKI compiler
    (``nki/get-started/nki-language-guide.rst``, Class Support).
    """

    __slots__ = ("__dict__",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let ``@dataclass``, which runs afterwards, find the fields that the NKI compiler would find.

        For the compiler the decorator makes no difference: every field has a default, and public kernels pass values
        for class attributes that they never annotated.
        """
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            return
        annotations = inspect.get_annotations(cls)
        for name in annotations:
            if name not in vars(cls) and "ClassVar" not in str(annotations[name]):
                setattr(cls, name, None)
        plain = {name: Any for name, value in vars(cls).items() if name not in annotations and _is_value(name, value)}
        if plain:
            cls.__annotations__ = annotations | plain

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        annotated = (name for cls in reversed(type(self).__mro__) for name in inspect.get_annotations(cls))
        fields = list(dict.fromkeys(annotated))  # a subclass may annotate a field again
        if len(args) > len(fields):
            raise ArgumentTypeError(f"{type(self).__name__} has {len(fields)} fields, got {len(args)} values")
        values = dict(zip(fields, args, strict=False))
        unknown = [name for name in kwargs if name not in fields or name in values]
        if unknown:
            raise ArgumentTypeError(
                f"{type(self).__name__}: {unknown[0]!r} is no field or is given twice; fields: {fields}"
            )
        for name, value in (values | kwargs).items():
            setattr(self, name, value)
        for name in fields:
            if not hasattr(self, name):
                setattr(self, name, None)
        post_init = getattr(self, "__post_init__", None)
        if post_init is not None:
            post_init()
