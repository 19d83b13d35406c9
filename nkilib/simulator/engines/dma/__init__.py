# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the DMA engines.

- ``instructions``: ``dma_copy``, ``dma_compute``, ``dma_transpose``;
- ``endpoints``: the ends of a transfer: rows, indices, reads and writes.
"""
