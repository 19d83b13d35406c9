# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The description of one hardware generation: sizes, and the constants of the model of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..terms.enums import Engine, nc_version


@dataclass(frozen=True)
class DmaTiming:
    """The timing of the DMA engines of one core.

    Attributes:
        engines: the number of engines.
        gb_per_s: the rate of one engine in practice, in GB/s.
        row_ns: the least time that an engine spends on a row (bytes that are contiguous on both sides).
        fixed_ns: the time from the trigger to the first byte, which a transfer takes besides its rows.
        to_consumer_ns: the time from the last byte to the instruction that waits for it.
        trigger_ns: the time from one trigger of a queue to the next.
        software_ns: the time that GpSimd takes to write the descriptors of a transfer, from one transfer of a queue to
            the next.
        has_hardware_descriptors: whether there are units that write descriptors; without them the host has written the
            descriptors of addresses that are known before the launch, and GpSimd writes the others.
        transpose_from_hbm, transpose_from_sbuf: the share of the rate that a transpose from there reaches at best.
    """

    engines: int
    gb_per_s: float
    row_ns: float
    fixed_ns: float
    to_consumer_ns: float
    trigger_ns: float
    software_ns: float
    has_hardware_descriptors: bool = True
    transpose_from_hbm: float = 0.9
    transpose_from_sbuf: float = 0.5

    @property
    def core_gb_per_s(self) -> float:
        """The rate of all engines of a core together, in GB/s."""
        return self.engines * self.gb_per_s


@dataclass(frozen=True)
class Timing:
    """Constants of the model of time; see each generation's file for their sources.

    Attributes:
        clock_ghz: the clocks of the compute engines, in GHz.
        result_ns: for each engine, the time from the last cycle of an instruction until another engine can use its
            result.
        sync_ns: the time that an engine takes to notice that another one has finished.
        issue_cycles: the cycles between two instructions of an engine; the Tensor engine has none.
        activation_table_ns: the time to load another table of activation functions.
        has_fast_vector_modes: whether Vector takes 2 or 4 elements a cycle of 16-bit types.
        scalar_bf16_per_cycle: the number of bfloat16 elements that the Scalar engine takes a cycle and partition.
        dma: the timing of the DMA engines.
    """

    clock_ghz: Mapping[Engine, float]
    result_ns: Mapping[Engine, float]
    sync_ns: float
    issue_cycles: float
    activation_table_ns: float
    has_fast_vector_modes: bool
    scalar_bf16_per_cycle: int
    dma: DmaTiming


@dataclass(frozen=True)
class Generation:
    """One hardware generation.

    Attributes:
        name: ``"trn1"``, ``"trn2"``, ``"trn3"``, or ``"trn3_a0"`` for the first silicon of trn3.
        version: the value of ``nisa.get_nc_version()``.
        sbuf_partition_bytes: physical bytes of SBUF in a partition.
        sbuf_usable_bytes: bytes of SBUF in a partition that a kernel may use.
        timing: constants of the model of time.
        revision: the value of ``nisa.get_nc_sub_version()``: 0 is the first silicon of a generation.
    """

    name: str
    version: nc_version
    sbuf_partition_bytes: int
    sbuf_usable_bytes: int
    timing: Timing
    revision: int = 0
