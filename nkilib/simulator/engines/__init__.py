# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions, one package for each engine; ``api/isa.py`` lists the names of all of them.

- ``dma``: copies, sums in transit and transposes of the DMA engines;
- ``tensor``: matrix products and transposes of the Tensor engine;
- ``vector``: arithmetic, selections, scans and searches of the Vector engine;
- ``scalar``: activation functions;
- ``gpsimd``: gathers, generated numbers and operations across partitions;
- ``sync``: registers, barriers and the exchange of the two cores;
- ``collectives``: operations among ranks;
- ``elementwise``: how elementwise instructions and reductions of rows are computed, at once or later;
- ``actions``: effects on whole arrays;
- ``accumulators``: the reading of accumulator registers.
"""
