"""Smaller limits for plans, so that a test takes the branches of a large launch at a small size.

A plan decides by limits of the hardware and of programs: bytes of a partition of SBUF, instructions, features. Many of
its branches are taken at sizes that are too dear to simulate with data. Under :func:`shrunk` every plan, that of host
code and that of a kernel, reads smaller limits, and the kernel runs the same code on fewer elements. This is for tests
of this library alone: on a device, and without :func:`shrunk`, nothing here changes a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from nkilib.nki import nl


@dataclass(frozen=True)
class PlanLimits:
    """Limits that are smaller than usual; None for the usual one.

    Attributes:
        sbuf_bytes: bytes of a partition of SBUF that a plan may use.
        program_instructions: instructions that the program of a launch may have.
        resident_features: features up to which W^T of a block of classes stays in SBUF in the linear backward.
        batches: batches of a core of which rows can be collected, to be computed anew.
        parts: sums that a partition keeps of a streamed input of few classes.
        piece_columns: columns of a piece of losses of elements and of rows: what instructions take at a time.
        shift_columns: columns, of a row and of all batches, from which a cross-entropy takes a shift for the maximum.
        shared_classes: classes that both cores work on at the end of the linear forward, however long a swap takes. Of
            few features its plan has none, as their products would not outlast the swap.
        weight_tiles: tiles of dW whose sums grow at a time in the linear backward.
        piece_tiles: tiles of positions of X that the linear backward loads at a time.
    """

    sbuf_bytes: int | None = None
    program_instructions: int | None = None
    resident_features: int | None = None
    batches: int | None = None
    parts: int | None = None
    piece_columns: int | None = None
    shift_columns: int | None = None
    shared_classes: int | None = None
    weight_tiles: int | None = None
    piece_tiles: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (not isinstance(value, int) or value <= 0):
                raise ValueError(f"PlanLimits.{field.name} must be a positive int or None, got {value!r}")


_USUAL = PlanLimits()
# Of the process, not of a context: the cores of a launch are threads, which would not see a context's.
_in_force = [_USUAL]


def limits_in_force() -> PlanLimits:
    """What plans obey now; for keys of caches."""
    return _in_force[-1]


@contextmanager
def shrunk(limits: PlanLimits) -> Iterator[None]:
    """Let all plans of this process obey smaller limits, for the ``with`` block.

    Example::

        with shrunk(PlanLimits(sbuf_bytes=32 * 1024)):
            softmax_forward[2](x, 1)

    Raises:
        RuntimeError: inside another such block.
    """
    if len(_in_force) > 1:
        raise RuntimeError("plan_limits.shrunk: must not be nested, and one block is open; pass all limits to it")
    _in_force.append(limits)
    try:
        yield
    finally:
        _in_force.pop()


def usable_sbuf_bytes() -> int:
    """Bytes of a partition of SBUF that a kernel's plan may use."""
    return limited_sbuf_bytes(nl.tile_size.sbuf_fmax_bytes)


def limited_sbuf_bytes(usual: int) -> int:
    """The usual bytes of a partition, or the limit in force where that is less."""
    return _least(usual, limits_in_force().sbuf_bytes)


def limited_instructions(usual: int) -> int:
    """The usual number of instructions of a program, or the limit in force where that is less."""
    return _least(usual, limits_in_force().program_instructions)


def limited_resident_features(usual: int) -> int:
    """The usual number of features, or the limit in force where that is less."""
    return _least(usual, limits_in_force().resident_features)


def limited_batches(usual: int) -> int:
    """The usual number of batches of a core, or the limit in force where that is less."""
    return _least(usual, limits_in_force().batches)


def limited_parts(usual: int) -> int:
    """The usual number of sums that a partition keeps, or the limit in force where that is less."""
    return _least(usual, limits_in_force().parts)


def limited_piece_columns(usual: int) -> int:
    """The usual columns of a piece, or the limit in force where that is less."""
    return _least(usual, limits_in_force().piece_columns)


def limited_shift_columns(usual: int) -> int:
    """The usual number of columns from which a shift pays, or the limit in force where that is less."""
    return _least(usual, limits_in_force().shift_columns)


def limited_weight_tiles(usual: int) -> int:
    """The usual number of tiles of dW, or the limit in force where that is less."""
    return _least(usual, limits_in_force().weight_tiles)


def limited_piece_tiles(usual: int) -> int:
    """The usual number of tiles of positions of a piece, or the limit in force where that is less."""
    return _least(usual, limits_in_force().piece_tiles)


def _least(usual: int, limit: int | None) -> int:
    return usual if limit is None else min(usual, limit)
