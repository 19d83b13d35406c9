# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The check of copies whose result depends on the order in which elements move, which no page of NKI promises.

:func:`check_copy` checks a destination and its sources, :func:`check_destination` a destination alone.

A DMA transfer runs on up to 16 engines at a time (``nki/get-started/about/nki-dma-overview.rst``). Its result is
certain only if no element is written twice, and no written element is also read, except to be copied onto itself.
Compute engines write the elements of a partition one after the other (``nki/get-started/about/tiling-overview.rst``).
Of their instructions, only matmuls are checked for elements written twice, and ``nc_transpose`` for overlap with its
source.

docs/reference/simulator_readings_instructions.md lists the evidence. The check depends on shapes and addresses only: an
address that is read at run time is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ..hardware.options import refuse
from ..memory.byte_spans import first_meeting, spans_of
from ..tensors.view import View
from ..terms.errors import OverlappingCopyError, kernel_location
from ..terms.layout import Layout, has_repeats, reshape_strides
from .core import Core

# Kernels repeat a few such copies.
_MOST_PAIRS = 1024


def _is_same(target: Layout, source: Layout) -> bool:
    """Return whether two layouts that begin at the same element select the same elements in the same order."""
    strides = reshape_strides(source.shape, source.strides, target.shape)
    if strides is None:
        return False
    return all(size == 1 or one == two for size, one, two in zip(target.shape, target.strides, strides, strict=True))


@lru_cache(maxsize=_MOST_PAIRS)
def _meeting(first: Layout, width: int, second: Layout, second_width: int, shift: int) -> int | None:
    """Return a byte that both layouts occupy, counted from the start of the first storage; None if there is none.

    Args:
        first, second: the layouts, each in its own storage; both storages are parts of one memory.
        width, second_width: the bytes of an element in each layout.
        shift: the start of the second storage minus the start of the first one, in bytes.
    """
    spans, others = spans_of(first, width), spans_of(second, second_width)
    meeting = first_meeting([spans], [others._replace(starts=others.starts + shift)])
    return None if meeting is None else meeting[0]


def _report(core: Core, what: str) -> None:
    core.unrepeatable = "a copy overlaps its source, or an element is written twice"
    error = OverlappingCopyError(
        f"{what}; using(overlapping_copies='ignore') or NKILIB_OVERLAPPING_COPIES=ignore runs the kernel"
    )
    refuse(core.options.overlapping_copies, error, kernel_location())


def check_copy(core: Core, dst: View, sources: Mapping[str, View], target: Layout | None, name: str = "dst") -> None:
    """Report a copy whose destination overlaps a source, or contains the same element more than once.

    Args:
        core: the core that copies.
        dst: the destination.
        sources: the sources, by the names of the operands.
        target: the layout of ``dst`` with dimensions in the order of the source, so that an element that is copied onto
            itself is not reported; None to report every common element.
        name: the name of the operand ``dst``.

    Raises:
        OverlappingCopyError: there is such a copy, with ``overlapping_copies="error"``.
    """
    if core.options.overlapping_copies == "ignore" or dst.indirect_access is not None:
        return
    check_destination(core, name, dst)
    for other, source in sources.items():
        if source.storage.allocation != dst.storage.allocation or source.indirect_access is not None:
            continue
        width, other_width = dst.storage.width_of(dst.dtype), source.storage.width_of(source.dtype)
        shift = source.storage.start - dst.storage.start
        begins_with_it = dst.offset * width == source.offset * other_width + shift
        if begins_with_it and width == other_width and target is not None and _is_same(target, source.layout):
            continue
        byte = _meeting(dst.layout, width, source.layout, other_width, shift)
        if byte is not None:
            element = dst.storage.index_of(byte)
            _report(
                core,
                f"operands {name!r} and {other!r} overlap in their memory, as in element {element} of the first one's "
                f"tensor, and the documentation promises no order in which elements move, got {dst} and {source}: copy "
                f"by way of another tensor",
            )


def check_destination(core: Core, name: str, dst: View) -> None:
    """Report a destination that contains the same element more than once; ``name`` is the name of the operand.

    Raises:
        OverlappingCopyError: there is such a destination, with ``overlapping_copies="error"``.
    """
    if core.options.overlapping_copies == "ignore" or not has_repeats(dst.shape, dst.strides):
        return
    _report(
        core,
        f"operand {name!r} holds an element more than once, and the documentation promises no order in which elements "
        f"are written, got {dst} with the strides {list(dst.strides)}: write each element once",
    )
