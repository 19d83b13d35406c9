# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The enumerations of ``nki.isa``, with the documented values, and the memory regions of ``nki.language``.

- the classes from :class:`engine` (in this package called :data:`Engine`) to :class:`dependency`: the enumerations;
- :class:`MemoryRegion`, :func:`as_region`: a memory region;
- :func:`is_hbm`, :func:`is_on_chip`, :func:`is_psum`, :func:`is_sbuf`: what kind of region a region is;
- :data:`ON_CHIP`, :data:`HBM`: sets of regions.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

from .errors import ArgumentTypeError


class _Singletons(Enum):
    """An enumeration whose members hash by identity, because Enum's own hash is a slow Python function."""

    __hash__ = object.__hash__


class engine(_Singletons):
    """The engines of a NeuronCore."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


# What the simulator itself calls it: parameters of instructions are named ``engine``.
Engine = engine


class reduce_cmd(_Singletons):
    """The effect of an instruction on its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(_Singletons):
    """The source of the descriptors of a DMA transfer: software, hardware, or descriptors written before the launch."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(_Singletons):
    """The reaction of an indirect DMA to an index that is out of bounds."""

    error = 0
    skip = 1


class matmul_perf_mode(_Singletons):
    """The performance mode of ``nc_matmul``."""

    none = "none"
    double_row = "double_row"


class nc_version(IntEnum):
    """The generation of the NeuronCore. Kernels compare it with another member or with an integer, also by ``<``."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __str__(self) -> str:
        return f"nc_version.{self.name}"

    __format__ = Enum.__format__


class dma_engine(_Singletons):
    """The DMA engine that moves the data of ``sendrecv``."""

    dma = 1
    gpsimd_dma = 2


class dependency(_Singletons):
    """Who keeps two instructions in order: the hardware at run time, or only the compiler in its schedule.

    NKI 0.7 documents the names of the members but not their values; here the values are the names.
    """

    runtime = "runtime"
    schedule = "schedule"


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
    """Return the region that ``buffer``, a :class:`MemoryRegion` or the name of one, stands for.

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
