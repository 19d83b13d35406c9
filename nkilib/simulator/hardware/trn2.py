# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""trn2 (NeuronCore-v3).

Sources, in aws-neuron/aws-neuron-sdk unless another is named:

- sizes, clocks, fast modes of Vector: ``nki/guides/architecture/trainium2_arch.rst``;
- usable SBUF: ``Trace.lean`` of leanprover/KLR;
- share of the DMA rate that a transpose reaches (defaults of ``DmaTiming``):
  ``nki/guides/architecture/trainium2_arch.rst``;
- rate of a DMA engine: ``nki/deep-dives/nki-dma-bandwidth-guide.rst``; 16 DMA engines a core:
  ``nki/get-started/about/nki-dma-overview.rst``;
- read off the profile images of ``nki/get-started/about/nki-dma-overview.rst`` and of the tutorials, and therefore
  rough: latencies of DMA and compute, the loading of a table, the time of a row. 58 ns a row and 1 us a transfer fit
  both single transfers that the overview shows within 1%.

The time that GpSimd takes for the descriptors of a transfer is not published; it is assumed to equal the time of a
hardware unit. Public notes on trn2 (NKI 0.6, once) stream 128 rows of 1.2 KiB at 230 GB/s by such descriptors: at most
684 ns.
"""

from __future__ import annotations

from ..terms.enums import Engine, nc_version
from .generation import DmaTiming, Generation, Timing

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
