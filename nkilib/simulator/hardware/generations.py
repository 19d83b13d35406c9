# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The hardware generations: their common limits, and the sizes and timing constants of each.

- ``PARTITIONS`` to ``GPSIMD_CORE_PARTITIONS``: the limits, such as :data:`PSUM_BANKS`, :data:`PSUM_BANK_BYTES` and
  :data:`FREE_AXIS_MAX`;
- :class:`Generation`, with its :class:`Timing` and :class:`DmaTiming`: ``TRN1``, ``TRN2``, ``TRN3`` and ``TRN3_A0``;
- :func:`generation`: the generation that a target, one of :data:`TARGETS`, names.

A *row* of a DMA transfer is a run of bytes that are contiguous in the source and in the destination.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..terms.enums import Engine, nc_version

# The same on every generation (nki/guides/architecture/*_arch.rst).
PARTITIONS = 128

PSUM_BANKS = 8

PSUM_BANK_BYTES = 2 * 1024

PSUM_PARTITION_BYTES = PSUM_BANKS * PSUM_BANK_BYTES

# "each F axis in the tensor can have a size expressed in uint16 and a stride expressed in int16, measured in data
# elements" (trainium_inferentia2_arch.rst, Data Access).
FREE_AXIS_MAX = 65535

FREE_STRIDE_MAX = 32767

# "accessing elements from up to four-dimensional arrays" within a partition (nki/deep-dives/nki-aps.rst).
FREE_DIMENSIONS_MAX = 4

# Partitions that one of the eight GpSimd cores reaches (docstring of nisa.nonzero_with_count).
GPSIMD_CORE_PARTITIONS = 16


@dataclass(frozen=True)
class DmaTiming:
    """The timing of the DMA engines of one core.

    Attributes:
        engines: the number of engines.
        gb_per_s: the rate of one engine in practice, in GB/s.
        row_ns: the least time that an engine spends on a row.
        fixed_ns: the time from the trigger of a transfer to its first byte.
        to_consumer_ns: the time from the last byte to the instruction that waits for it.
        trigger_ns: the time from one trigger of a queue to the next.
        software_ns: the time between two transfers of a queue whose descriptors GpSimd writes.
        has_hardware_descriptors: whether hardware units write descriptors. Otherwise the host writes the descriptors of
            addresses that are known before the launch, and GpSimd writes the others.
        transpose_from_hbm: the share of the rate that a transpose from HBM reaches at best.
        transpose_from_sbuf: the share of the rate that a transpose from SBUF reaches at best.
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
    """Constants of the performance model; the comment above each generation names their sources.

    Attributes:
        clock_ghz: the clocks of the compute engines, in GHz.
        result_ns: for each engine, the time from the last cycle of an instruction until another engine can use its
            result.
        sync_ns: the time that an engine takes to notice that another engine has finished.
        issue_cycles: the cycles between two instructions of an engine; the Tensor engine needs none.
        activation_table_ns: the time to load another table of activation functions.
        has_fast_vector_modes: whether Vector processes 2 or 4 elements of a 16-bit type per cycle.
        scalar_bf16_per_cycle: the number of bfloat16 elements that Scalar processes per cycle and partition.
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
        timing: constants of the performance model.
        revision: the value of ``nisa.get_nc_sub_version()``: 0 is the first silicon of a generation.
    """

    name: str
    version: nc_version
    sbuf_partition_bytes: int
    sbuf_usable_bytes: int
    timing: Timing
    revision: int = 0


# trn2 (NeuronCore-v3).
#
# Sources, in aws-neuron/aws-neuron-sdk unless another is named:
#
# - sizes, clocks, fast modes of Vector: ``nki/guides/architecture/trainium2_arch.rst``;
# - usable SBUF: ``Trace.lean`` of leanprover/KLR;
# - share of the DMA rate that a transpose reaches (defaults of ``DmaTiming``):
#   ``nki/guides/architecture/trainium2_arch.rst``;
# - rate of a DMA engine: ``nki/deep-dives/nki-dma-bandwidth-guide.rst``; 16 DMA engines a core:
#   ``nki/get-started/about/nki-dma-overview.rst``;
# - read off the profile images of ``nki/get-started/about/nki-dma-overview.rst`` and of the tutorials, and therefore
#   rough: latencies of DMA and compute, the loading of a table, the time of a row. 58 ns a row and 1 us a transfer fit
#   both single transfers that the overview shows within 1%.
#
# The time that GpSimd takes for the descriptors of a transfer is not published; it is assumed to equal the time of a
# hardware unit. Public notes on trn2 (NKI 0.6, once) stream 128 rows of 1.2 KiB at 230 GB/s by such descriptors: at
# most 684 ns.
TRN2 = Generation(
    name="trn2",
    version=nc_version.gen3,
    sbuf_partition_bytes=224 * 1024,
    sbuf_usable_bytes=212_984,
    timing=Timing(
        clock_ghz={Engine.tensor: 2.4, Engine.vector: 0.96, Engine.scalar: 1.2, Engine.gpsimd: 1.2},
        # GpSimd: no figure is published; that of Vector.
        result_ns={Engine.tensor: 170.0, Engine.vector: 150.0, Engine.scalar: 300.0, Engine.gpsimd: 150.0},
        sync_ns=60.0,
        issue_cycles=100.0,
        activation_table_ns=1280.0,
        has_fast_vector_modes=True,
        scalar_bf16_per_cycle=1,
        dma=DmaTiming(
            engines=16,
            gb_per_s=23.0,
            row_ns=58.0,
            fixed_ns=1000.0,
            to_consumer_ns=300.0,
            trigger_ns=600.0,
            software_ns=600.0,
        ),
    ),
)

# trn1 and inf2 (NeuronCore-v2).
#
# Sources, in aws-neuron/aws-neuron-sdk: ``nki/guides/architecture/trainium_inferentia2_arch.rst`` (sizes, clocks);
# ``nki/deep-dives/nki-dma-bandwidth-guide.rst`` (rate of a DMA engine). Usable SBUF: ``Trace.lean`` of leanprover/KLR.
# No hardware writes descriptors (``nki/deep-dives/nki-dge.rst``): the host writes the descriptors of known addresses
# before the launch, and GpSimd writes all others (``nki/guides/architecture/trainium2_arch.rst``, Descriptor Generation
# Engine). Latencies and the cost of a row are published for trn2 only and used here too: see TRN2.
#
# Measured on trn1 by foxl-ai/kiln (``docs/neuron-notes.md`` at fc21e10d), compared with the model in
# docs/evidence/measured_instructions.md:
#
# - descriptors of GpSimd: loads of 32 rows of 8 KiB at 196 GB/s, of 128 rows of 1 KiB at 95 GB/s, and gathers of 128
#   rows of 2 KiB in 1,419 ns are 1.34, 1.38 and 1.42 us a transfer. 1.36 fits the two that the simulator runs on trn1;
# - pauses: ``tensor_reduce``, ``scalar_tensor_tensor`` and ``tensor_tensor`` on 128 to 512 columns take 33 to 48 ns
#   more than their cycles on Vector, copies on Scalar 15 and 17 ns, exponentials with their sums 54 and 65 ns. 40
#   cycles are 36 and 29 ns.

TRN1 = Generation(
    name="trn1",
    version=nc_version.gen2,
    sbuf_partition_bytes=192 * 1024,
    sbuf_usable_bytes=180_224,
    timing=replace(
        TRN2.timing,
        clock_ghz={Engine.tensor: 2.8, Engine.vector: 1.12, Engine.scalar: 1.4, Engine.gpsimd: 1.4},
        issue_cycles=40.0,
        has_fast_vector_modes=False,
        dma=replace(TRN2.timing.dma, gb_per_s=17.0, software_ns=1360.0, has_hardware_descriptors=False),
    ),
)

# trn3 (NeuronCore-v4). Little of its timing is published; the unpublished values are those of trn2.
#
# Sources, in aws-neuron/aws-neuron-sdk: ``nki/guides/architecture/trainium3_arch.rst`` (sizes, clocks, rates of Vector
# and Scalar); ``nki/deep-dives/nki-dma-bandwidth-guide.rst`` (rate of a DMA engine). Usable SBUF: ``Trace.lean`` of
# leanprover/KLR. Revisions and the features that the first one lacks: kernels of aws-neuron/nki-library, which ask for
# ``nisa.get_nc_sub_version() == 1`` before they use ``nisa.exponential``, on "Trn3 B0+" and not on "A0 (trn3pre)".
TRN3 = Generation(
    name="trn3",
    version=nc_version.gen4,
    sbuf_partition_bytes=256 * 1024,
    sbuf_usable_bytes=245_752,
    timing=replace(
        TRN2.timing,
        clock_ghz={Engine.tensor: 2.4, Engine.vector: 1.2, Engine.scalar: 1.2, Engine.gpsimd: 1.2},
        scalar_bf16_per_cycle=2,
        dma=replace(TRN2.timing.dma, gb_per_s=33.0),
    ),
    revision=1,
)

# The first silicon, before the product.
TRN3_A0 = replace(TRN3, name="trn3_a0", revision=0)

_BY_NAME = {
    "trn1": TRN1,
    "inf2": TRN1,
    "gen2": TRN1,
    "trn2": TRN2,
    "gen3": TRN2,
    "trn3": TRN3,
    "gen4": TRN3,
    "trn3_a0": TRN3_A0,
    "trn3pre": TRN3_A0,
}

# What a target may be called: as ``NEURON_PLATFORM_TARGET_OVERRIDE`` has it, and two names of the first trn3.
TARGETS = tuple(_BY_NAME)


def generation(target: str) -> Generation:
    """Return the generation that ``target`` names, in the spelling of ``NEURON_PLATFORM_TARGET_OVERRIDE``.

    Raises:
        ValueError: if ``target`` names no generation.
    """
    if target not in _BY_NAME:
        raise ValueError(f"target must be one of {', '.join(_BY_NAME)}, got {target!r}")
    return _BY_NAME[target]
