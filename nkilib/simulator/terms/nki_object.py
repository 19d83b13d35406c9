# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``NKIObject``, the base of tensors and the other classes of NKI, and of the configuration classes of kernels."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

from .errors import ArgumentTypeError

# What a class attribute must be to be a field without annotation: immutable, since instances share it.
_PLAIN_VALUES = (type(None), bool, int, float, str, tuple, Enum)


def _is_value(name: str, value: object) -> bool:
    return isinstance(value, _PLAIN_VALUES) and not name.startswith("__")


class NKIObject:
    """The base of NKI's classes. A user's configuration class inherits it, with or without ``@dataclass``.

    A class without its own ``__init__`` takes its fields in order or by keyword, the annotated fields first. A field
    without an argument has its class-level default, else None, as in the NKI compiler
    (``nki/get-started/nki-language-guide.rst``, Class Support).
    """

    __slots__ = ("__dict__",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add defaults and annotations, so that ``@dataclass``, which runs later, finds the same fields as the NKI
        compiler.

        For the compiler every field has a default, and a class attribute without an annotation is a field too.
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
