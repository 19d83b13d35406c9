"""One instruction on the timeline of a core."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..tensor import NkiTensor


class Event(NamedTuple):
    """One instruction on the timeline.

    Attributes:
        core: number of the core.
        engine: name of the engine: tensor, vector, scalar, gpsimd, dma or sync.
        name: the instruction, without ``nisa.``.
        label: its ``name=``, or empty.
        operands: shape and type of each tensor operand, by parameter.
        cycles: of its engine; 0 for a transfer.
        start_us, end_us: when its engine worked on it; of a transfer, from its trigger to its last byte.
        place: ``file:line`` in the kernel.
        number: of the instruction on its core, from 1.
    """

    core: int
    engine: str
    name: str
    label: str
    operands: dict[str, tuple[tuple[int, ...], str]]
    cycles: float
    start_us: float
    end_us: float
    place: str
    number: int


def tensors_of(values: dict[str, Any]) -> dict[str, NkiTensor]:
    """The tensors among an instruction's parameters, those in lists too."""
    found: dict[str, NkiTensor] = {}
    for name, value in values.items():
        kind = type(value)
        if kind is NkiTensor:
            found[name] = value
        elif kind is list or kind is tuple:
            for position, item in enumerate(value):
                if isinstance(item, NkiTensor):
                    found[f"{name}[{position}]"] = item
    return found
