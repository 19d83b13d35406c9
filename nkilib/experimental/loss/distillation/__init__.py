# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillation from logits, as kernels that are launched on their own.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, modelled times, float64 reference, bounds;
- ``launch``: a launch and its checks; ``tiling``: the division of rows into chunks;
- ``pair``: the logits of student and teacher on chip; ``totals``: sums over rows, and the results computed from them;
- ``forward``: the divergences; ``mixture``: the Jensen-Shannon divergence; ``backward``: the gradient;
- ``split_forward``: the divergences of few positions, each on several partitions.
"""
