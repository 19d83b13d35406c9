"""``NKIObject``: the base class of everything that NKI code may hold besides numbers, strings and containers."""

from __future__ import annotations

import inspect
from typing import Any


class NKIObject:
    """Base of NKI classes; a user's configuration class inherits it, with or without ``@dataclass``.

    A class without an ``__init__`` of its own takes its annotated fields in order or by keyword; one that is not
    given has its class-level default, else None, as the NKI compiler has it
    (``nki/get-started/nki-language-guide.rst``, Class Support).
    """

    __slots__ = ("__dict__",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        annotated = (name for cls in reversed(type(self).__mro__) for name in inspect.get_annotations(cls))
        fields = list(dict.fromkeys(annotated))  # a subclass may annotate a field again
        if len(args) > len(fields):
            raise TypeError(f"{type(self).__name__} has {len(fields)} fields, got {len(args)} values")
        given = dict(zip(fields, args, strict=False))
        unknown = [name for name in kwargs if name not in fields or name in given]
        if unknown:
            raise TypeError(f"{type(self).__name__}: {unknown[0]!r} is no field or is given twice; fields: {fields}")
        for name, value in (given | kwargs).items():
            setattr(self, name, value)
        for name in fields:
            if not hasattr(self, name):
                setattr(self, name, None)
        post_init = getattr(self, "__post_init__", None)
        if post_init is not None:
            post_init()
