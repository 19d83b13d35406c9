# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions, by engine; ``api/isa.py`` lists the names of all of them.

- ``dma_instructions``: copies, sums in transit and transposes of the DMA engines;
- ``dma_endpoints``: the source and the destination of a DMA transfer;
- ``tensor``: matrix products and transposes of the Tensor engine;
- ``vector``: arithmetic, selections, scans and searches of the Vector engine;
- ``scalar``: activation functions on the Scalar engine;
- ``gpsimd``: gathers, generated numbers and operations across partitions;
- ``between_cores``: the barrier of the two cores, and the exchange of tiles between them;
- ``register_moves``: moves, loads and stores of registers and scalars;
- ``collectives``: operations among ranks;
- ``rowwise``: elementwise instructions and reductions of rows, computed at once or when the results are read;
- ``actions``: writes of whole arrays, which a replay can repeat;
- ``accumulators``: the accumulator registers of Vector and Scalar.
"""
