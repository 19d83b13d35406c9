# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The properties of the core that the running thread simulates, and ``nl.tile_size``.

Modules that must not import the core read its properties here.

- :func:`enter`: sets the core (:class:`Simulated`) of this thread;
- :func:`current_generation`, :func:`current_scope`, :func:`is_traced`, :func:`is_abstract_launch`: properties of the
  core;
- :class:`TileSize`: the largest sizes of a tile on the generation of the core.
"""

from __future__ import annotations

import threading
from typing import Protocol

from ..terms.nki_object import NKIObject
from ..terms.scopes import Scope
from .generations import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS, Generation
from .options import current_options


class Simulated(Protocol):
    """The properties that this module reads from the simulated core."""

    @property
    def generation(self) -> Generation: ...

    @property
    def is_abstract(self) -> bool:
        """Whether the core's tensors have shapes and types but no data; see terms/spec.py."""

    @property
    def is_traced(self) -> bool:
        """Whether kernels follow the rules of NKI 0.7's tracer: Python cannot branch on values that only the device
        knows.
        """

    @property
    def scope(self) -> Scope:
        """The scope of the current instruction: the launch, the core, and the loop iterations that it runs in."""


class _Thread(threading.local):
    """The core that a thread simulates, or None outside a kernel."""

    simulated: Simulated | None = None


THREAD = _Thread()


def enter(simulated: Simulated | None) -> None:
    """Make this thread simulate the core ``simulated``; None ends the simulation."""
    THREAD.simulated = simulated


def is_abstract_launch() -> bool:
    """Return whether the running kernel was launched on shapes, without data."""
    simulated = THREAD.simulated
    return simulated is not None and simulated.is_abstract


def current_generation() -> Generation:
    """Return the generation of the running kernel; outside a kernel, the generation of the next launch."""
    simulated = THREAD.simulated
    return simulated.generation if simulated is not None else current_options().generation


def is_traced() -> bool:
    """Return whether NKI 0.7's tracer rules hold for the running kernel; outside a kernel, for the next launch."""
    simulated = THREAD.simulated
    return simulated.is_traced if simulated is not None else current_options().frontend == "tracer"


def current_scope() -> Scope:
    """Return the scope of the running kernel's current instruction; the empty scope outside a kernel."""
    simulated = THREAD.simulated
    return simulated.scope if simulated is not None else ()


_FLOAT32_BYTES = 4


class TileSize(NKIObject):
    """The hardware tile sizes (``nki/api/nki.language.tile_size.rst``).

    Attributes:
        pmax: the number of partitions of a tile.
        psum_bank_fmax: float32 elements of a PSUM bank in a partition.
        psum_fmax: a deprecated name of ``psum_bank_fmax``.
        psum_bank_fmax_bytes: bytes of a PSUM bank in a partition.
        gemm_stationary_fmax: the largest free size of the stationary matmul operand.
        gemm_moving_fmax: the largest free size of the moving matmul operand.
        bn_stats_fmax: the largest free size of ``bn_stats``.
        psum_min_align: the alignment, in bytes, of an address in the free dimension of PSUM.
        sbuf_min_align: the alignment, in bytes, of an address in the free dimension of SBUF.
    """

    pmax = PARTITIONS
    psum_bank_fmax_bytes = PSUM_BANK_BYTES
    psum_bank_fmax = PSUM_BANK_BYTES // _FLOAT32_BYTES
    psum_fmax = psum_bank_fmax
    gemm_stationary_fmax = PARTITIONS
    gemm_moving_fmax = psum_bank_fmax
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_num_banks(self) -> int:
        """The number of PSUM banks of a partition."""
        return PSUM_BANKS

    @property
    def sbuf_size_bytes(self) -> int:
        """The physical bytes of SBUF, all partitions together."""
        return PARTITIONS * current_generation().sbuf_partition_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """The usable bytes of SBUF in a partition."""
        return current_generation().sbuf_usable_bytes

    @property
    def sbuf_fmax(self) -> int:
        """The usable float32 elements of SBUF in a partition."""
        return self.sbuf_fmax_bytes // _FLOAT32_BYTES

    @property
    def total_available_sbuf_size(self) -> int:
        """The usable bytes of SBUF in a partition (deprecated name of :attr:`sbuf_fmax_bytes`)."""
        return self.sbuf_fmax_bytes
