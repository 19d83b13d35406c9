# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillation from logits, as kernels that are launched on their own.

- ``kernels`` has the kernels as plain functions; ``host`` has the registry entry, modelled times, float64 reference and
  bounds.
- ``launch`` has a launch and its checks; ``tiling`` divides rows into chunks.
- ``pair`` has the logits of student and teacher on chip; ``totals`` has sums over rows, and the results computed from
  them.
- ``forward`` computes the divergences, ``mixture`` the Jensen-Shannon divergence, ``backward`` the gradient;
  ``split_forward`` the divergences of few positions, each of which lies on several partitions.
"""
