"""trn1 and inf2 (NeuronCore-v2).

Sources, in aws-neuron/aws-neuron-sdk: ``nki/guides/architecture/trainium_inferentia2_arch.rst`` (sizes, clocks);
``nki/deep-dives/nki-dma-bandwidth-guide.rst`` (rate of a DMA engine). Usable SBUF: ``Trace.lean`` of leanprover/KLR.
Latencies and the cost of a row are published for trn2 only and taken over: see trn2.py.
"""

from __future__ import annotations

from ..enums import engine, nc_version
from .description import DmaTiming, Generation, Timing
from .trn2 import TRN2

TRN1 = Generation(
    name="trn1",
    version=nc_version.gen2,
    sbuf_partition_bytes=192 * 1024,
    sbuf_usable_bytes=180_224,
    timing=Timing(
        clock_ghz={engine.tensor: 2.8, engine.vector: 1.12, engine.scalar: 1.4, engine.gpsimd: 1.4},
        result_ns=TRN2.timing.result_ns,
        sync_ns=TRN2.timing.sync_ns,
        issue_cycles=TRN2.timing.issue_cycles,
        activation_table_ns=TRN2.timing.activation_table_ns,
        has_fast_vector_modes=False,
        scalar_bf16_per_cycle=1,
        dma=DmaTiming(
            engines=16,
            gb_per_s=17.0,
            row_ns=TRN2.timing.dma.row_ns,
            fixed_ns=TRN2.timing.dma.fixed_ns,
            to_consumer_ns=TRN2.timing.dma.to_consumer_ns,
            trigger_ns=TRN2.timing.dma.trigger_ns,
        ),
    ),
)
