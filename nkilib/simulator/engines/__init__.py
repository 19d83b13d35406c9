# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions, by engine; ``api/isa.py`` lists the names of all of them.

- ``dma_instructions``: copies, sums in transit and transposes of the DMA engines;
- ``dma_endpoints``: the ends of a transfer: rows, indices, reads and writes;
- ``tensor``: matrix products and transposes of the Tensor engine;
- ``vector``: arithmetic, selections, scans and searches of the Vector engine;
- ``scalar``: activation functions on the Scalar engine;
- ``gpsimd``: gathers, generated numbers and operations across partitions;
- ``between_cores``: the barrier of the two cores and their exchanges;
- ``register_moves``: moves, loads and stores of registers and scalars;
- ``collectives``: operations among ranks;
- ``rowwise``: how elementwise instructions and reductions of rows are computed, at once or later;
- ``actions``: effects on whole arrays;
- ``accumulators``: the accumulator registers of Vector and Scalar.
"""
