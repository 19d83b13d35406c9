# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Several partitions a position, and several positions a partition, in place of one position a partition.

- ``batches``: which launches have these layouts, and how they divide their positions;
- ``targets``: the targets of positions, found on chip;
- ``forward``, ``backward``: the losses and the gradient on one core.
"""
