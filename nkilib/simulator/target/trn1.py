"""trn1 and inf2 (NeuronCore-v2).

Sources, in aws-neuron/aws-neuron-sdk: ``nki/guides/architecture/trainium_inferentia2_arch.rst`` (sizes, clocks);
``nki/deep-dives/nki-dma-bandwidth-guide.rst`` (rate of a DMA engine). Usable SBUF: ``Trace.lean`` of leanprover/KLR.
Latencies and the cost of a row are published for trn2 only and taken over: see trn2.py.
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
        has_fast_vector_modes=False,
        dma=replace(TRN2.timing.dma, gb_per_s=17.0),
    ),
)
