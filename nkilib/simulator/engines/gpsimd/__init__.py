# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the GpSimd engine, and instructions of other engines that generate numbers.

- ``across_partitions``: ``topk``, ``nonzero_with_count``, ``sequence_bounds``, ``tensor_partition_reduce``;
- ``gather``: gathers by indices;
- ``generators``: ``iota``, random numbers and ``dropout``.
"""
