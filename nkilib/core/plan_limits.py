# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The limits that plans of launches obey. Tests can make the limits smaller, so that a small launch runs the code of a
large one.

A plan depends on limits of the hardware and of programs, such as the bytes of a partition of SBUF. A plan reads each
limit from :func:`usable_sbuf_bytes` or from a ``limited_...`` function; :func:`limits_in_force` returns all limits.
Many branches of a plan are only taken at sizes that are too expensive to simulate with data. Under :func:`shrunk`, the
plans of host code and of kernels read smaller limits (:class:`PlanLimits`), and the kernel runs the same code on fewer
elements. :func:`shrunk` is for tests of this library only: without it this module changes no plan.

The argument ``usual`` of a ``limited_...`` function is the limit outside :func:`shrunk`. X are the hidden states, W the
weight of the output layer, dW the gradient of W.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from nkilib.base.statements import unreplayed
from nkilib.core.host.options import is_integer
from nkilib.nki import nl


@dataclass(frozen=True)
class PlanLimits:
    """The limits that a test makes smaller than usual. A limit that is None keeps its usual value.

    A field can only lower a limit. The exception is ``shared_classes``: it replaces the number that the plan would
    choose.

    Attributes:
        sbuf_bytes: the bytes of a partition of SBUF that a plan may use.
        program_instructions: the number of instructions that the program of a launch may have.
        resident_features: the largest number of features at which W^T of a block of classes stays in SBUF in the
            linear backward.
        batches: the largest number of batches of a core for which a kernel keeps a list of rows to recompute.
        parts: the largest number of partial sums that an NLL kernel keeps in a partition when it streams few classes.
        piece_columns: the number of columns that an instruction processes in elementwise and row-wise losses.
        shift_columns: the least number of columns at which a cross-entropy subtracts a shift instead of the maximum;
            three counts must reach it: the columns of a chunk, of a row, and of all batches together.
        shared_classes: the number of shared classes, the last ones of the vocabulary, in a linear forward. Each core
            processes them for half of the positions while the cores exchange statistics. At most four blocks of
            classes; the plan adds up to 127 to the number, and leaves at least 128 classes unshared. None: the plan
            chooses, and shares no classes if there are few features.
        weight_tiles: the number of tiles of dW that the linear backward accumulates at a time.
        piece_tiles: the number of tiles of positions of X that the linear backward loads at a time.
        positions: the largest number of positions that the linear kernels process at a time.
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
    positions: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (not is_integer(value) or value <= 0):
                raise ValueError(f"PlanLimits.{field.name} must be a positive int or None, got {value!r}")


_USUAL = PlanLimits()
# Limits of the process, not of a context: the cores of a launch are threads, which would not see those of a context.
_in_force = [_USUAL]


def limits_in_force() -> PlanLimits:
    """Return the limits that plans obey now. A cache of plans must include them in its keys."""
    return _in_force[-1]


@contextmanager
def shrunk(limits: PlanLimits) -> Iterator[None]:
    """Return a context manager in which all plans of this process obey smaller limits. The simulator does not replay
    launches in it.

    Example::

        with shrunk(PlanLimits(sbuf_bytes=32 * 1024)):
            softmax_forward[2](x, 1)

    Raises:
        RuntimeError: another such block is open.
    """
    if len(_in_force) > 1:
        raise RuntimeError("plan_limits.shrunk: must not be nested, and one block is open; pass all limits to it")
    _in_force.append(limits)
    try:
        with unreplayed():
            yield
    finally:
        _in_force.pop()


def usable_sbuf_bytes() -> int:
    """Return the bytes of a partition of SBUF that a kernel's plan may use."""
    return limited_sbuf_bytes(nl.tile_size.sbuf_fmax_bytes)


def limited_sbuf_bytes(usual: int) -> int:
    """Return the bytes of a partition of SBUF that a plan may use: ``usual``, or a smaller limit in force."""
    return _least(usual, limits_in_force().sbuf_bytes)


def limited_instructions(usual: int) -> int:
    """Return the number of instructions that a program may have: ``usual``, or a smaller limit in force."""
    return _least(usual, limits_in_force().program_instructions)


def limited_resident_features(usual: int) -> int:
    """Return the largest number of features at which W^T of a block of classes stays in SBUF: ``usual``, or a smaller
    limit in force.
    """
    return _least(usual, limits_in_force().resident_features)


def limited_batches(usual: int) -> int:
    """Return the largest number of batches of a core for which a kernel keeps a list of rows to recompute: ``usual``,
    or a smaller limit in force.
    """
    return _least(usual, limits_in_force().batches)


def limited_parts(usual: int) -> int:
    """Return the largest number of partial sums that an NLL kernel keeps in a partition: ``usual``, or a smaller limit
    in force.
    """
    return _least(usual, limits_in_force().parts)


def limited_piece_columns(usual: int) -> int:
    """Return the number of columns that an instruction of elementwise and row-wise losses processes: ``usual``, or a
    smaller limit in force.
    """
    return _least(usual, limits_in_force().piece_columns)


def limited_shift_columns(usual: int) -> int:
    """Return the least number of columns at which a kernel subtracts a shift instead of the maxima: ``usual``, or a
    smaller limit in force.
    """
    return _least(usual, limits_in_force().shift_columns)


def limited_weight_tiles(usual: int) -> int:
    """Return the number of tiles of dW that are accumulated at a time: ``usual``, or a smaller limit in force."""
    return _least(usual, limits_in_force().weight_tiles)


def limited_piece_tiles(usual: int) -> int:
    """Return the number of tiles of positions of X that are loaded at a time: ``usual``, or a smaller limit in
    force.
    """
    return _least(usual, limits_in_force().piece_tiles)


def limited_positions(usual: int) -> int:
    """Return the largest number of positions that linear kernels process at a time: ``usual``, or a smaller limit in
    force.
    """
    return _least(usual, limits_in_force().positions)


def _least(usual: int, limit: int | None) -> int:
    return usual if limit is None else min(usual, limit)
