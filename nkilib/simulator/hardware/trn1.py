# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""trn1 and inf2 (NeuronCore-v2).

Sources, in aws-neuron/aws-neuron-sdk: ``nki/guides/architecture/trainium_inferentia2_arch.rst`` (sizes, clocks);
``nki/deep-dives/nki-dma-bandwidth-guide.rst`` (rate of a DMA engine). Usable SBUF: ``Trace.lean`` of leanprover/KLR.
No hardware writes descriptors (``nki/deep-dives/nki-dge.rst``): the host writes the descriptors of known addresses
before the launch, and GpSimd writes all others (``nki/guides/architecture/trainium2_arch.rst``, Descriptor Generation
Engine). Latencies and the cost of a row are published for trn2 only and used here too: see trn2.py.

Measured on trn1 by foxl-ai/kiln (``docs/neuron-notes.md`` at fc21e10d), and compared in docs/evidence/measurements.md:

- descriptors of GpSimd: loads of 32 rows of 8 KiB at 196 GB/s, of 128 rows of 1 KiB at 95 GB/s, and gathers of 128 rows
  of 2 KiB in 1,419 ns are 1.34, 1.38 and 1.42 us a transfer. 1.36 fits the two that the simulator runs on trn1;
- pauses: ``tensor_reduce``, ``scalar_tensor_tensor`` and ``tensor_tensor`` on 128 to 512 columns take 33 to 48 ns more
  than their cycles on Vector, copies on Scalar 15 and 17 ns, exponentials with their sums 54 and 65 ns. 40 cycles are
  36 and 29 ns.
"""

from __future__ import annotations

from dataclasses import replace

from ..terms.enums import Engine, nc_version
from .generation import Generation
from .trn2 import TRN2

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
