"""trn3 (NeuronCore-v4). Little of its timing is published: what is not is taken over from trn2.

Sources, in aws-neuron/aws-neuron-sdk: ``nki/guides/architecture/trainium3_arch.rst`` (sizes, clocks, rates of Vector
and Scalar); ``nki/deep-dives/nki-dma-bandwidth-guide.rst`` (rate of a DMA engine). Usable SBUF: ``Trace.lean`` of
leanprover/KLR.
"""

from __future__ import annotations

from ..enums import engine, nc_version
from .description import DmaTiming, Generation, Timing
from .trn2 import TRN2

TRN3 = Generation(
    name="trn3",
    version=nc_version.gen4,
    sbuf_partition_bytes=256 * 1024,
    sbuf_usable_bytes=245_752,
    timing=Timing(
        clock_ghz={engine.tensor: 2.4, engine.vector: 1.2, engine.scalar: 1.2, engine.gpsimd: 1.2},
        result_ns=TRN2.timing.result_ns,
        sync_ns=TRN2.timing.sync_ns,
        issue_cycles=TRN2.timing.issue_cycles,
        activation_table_ns=TRN2.timing.activation_table_ns,
        has_fast_vector_modes=True,
        scalar_bf16_per_cycle=2,
        dma=DmaTiming(
            engines=16,
            gb_per_s=33.0,
            row_ns=TRN2.timing.dma.row_ns,
            fixed_ns=TRN2.timing.dma.fixed_ns,
            to_consumer_ns=TRN2.timing.dma.to_consumer_ns,
            trigger_ns=TRN2.timing.dma.trigger_ns,
        ),
    ),
)
