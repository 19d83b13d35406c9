# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Layouts with several partitions per position or several positions per partition.

- ``batches``: which launches have these layouts, and how they divide their positions;
- ``targets``: the targets of positions, found on chip;
- ``forward``, ``backward``: the losses and the gradient on one core.
"""
