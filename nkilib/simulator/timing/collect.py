"""Which launches are profiled: those inside the call of ``profile``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from .parameters import ModelParameters
from .trace import Trace


@dataclass
class Collection:
    """The traces of the cores of the launches that ran while it was open."""

    parameters: ModelParameters
    traces: list[Trace] = field(default_factory=list)


_OPEN: ContextVar[Collection | None] = ContextVar("nkilib_simulator_collection", default=None)


@contextmanager
def collecting(parameters: ModelParameters) -> Iterator[Collection]:
    """Trace the kernels launched inside the ``with`` block."""
    collection = Collection(parameters)
    token = _OPEN.set(collection)
    try:
        yield collection
    finally:
        _OPEN.reset(token)


def open_collection() -> Collection | None:
    """The collection that the current context traces into."""
    return _OPEN.get()
