# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory regions of a NeuronCore and questions about them."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .errors import ArgumentTypeError


class MemoryRegion(Enum):
    """The memory region in which a tensor lives. ``nl.hbm`` is another name of ``private_hbm``."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    # Members are singletons; Enum's own hash, of the name, is a Python call at every look-up.
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return self.value


ON_CHIP = frozenset({MemoryRegion.sbuf, MemoryRegion.psum})
HBM = frozenset({MemoryRegion.private_hbm, MemoryRegion.shared_hbm})
_BY_NAME = {region.value: region for region in MemoryRegion} | {"hbm": MemoryRegion.private_hbm}


def as_region(buffer: Any) -> MemoryRegion:
    """Return the region named by a :class:`MemoryRegion` or by its name.

    Raises:
        ArgumentTypeError: if ``buffer`` names no region.
    """
    if isinstance(buffer, MemoryRegion):
        return buffer
    if isinstance(buffer, str) and buffer in _BY_NAME:
        return _BY_NAME[buffer]
    raise ArgumentTypeError(f"buffer must be nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm, got {buffer!r}")


def is_hbm(buffer: Any) -> bool:
    """Return whether ``buffer`` is private or shared HBM."""
    return as_region(buffer) in HBM


def is_on_chip(buffer: Any) -> bool:
    """Return whether ``buffer`` is SBUF or PSUM."""
    return as_region(buffer) in ON_CHIP


def is_psum(buffer: Any) -> bool:
    """Return whether ``buffer`` is PSUM."""
    return as_region(buffer) is MemoryRegion.psum


def is_sbuf(buffer: Any) -> bool:
    """Return whether ``buffer`` is SBUF."""
    return as_region(buffer) is MemoryRegion.sbuf
