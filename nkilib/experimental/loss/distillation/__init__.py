# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillation from logits, as kernels that are launched on their own.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, modelled times, float64 reference, bounds;
- ``launch``: a launch and its checks; ``tiling``: the division of rows into chunks;
- ``pair``, ``totals``: student and teacher on chip, and the sums over rows with the results that follow;
- ``forward``, ``mixture``, ``backward``: the divergences, those of Jensen-Shannon, and the gradient.
"""
