# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""trn3 (NeuronCore-v4). Little of its timing is published; the unpublished values are those of trn2.

Sources, in aws-neuron/aws-neuron-sdk: ``nki/guides/architecture/trainium3_arch.rst`` (sizes, clocks, rates of Vector
and Scalar); ``nki/deep-dives/nki-dma-bandwidth-guide.rst`` (rate of a DMA engine). Usable SBUF: ``Trace.lean`` of
leanprover/KLR. Revisions and the features that the first one lacks: kernels of aws-neuron/nki-library, which ask for
``nisa.get_nc_sub_version() == 1`` before they use ``nisa.exponential``, on "Trn3 B0+" and not on "A0 (trn3pre)".
"""

from __future__ import annotations

from dataclasses import replace

from ..terms.enums import Engine, nc_version
from .generation import Generation
from .trn2 import TRN2

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
