# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second pass over the classes, which a divergence from a mixture needs.

``kept_visit`` computes the second pass from kept scores, during the first pass of the next block of positions, and
``recomputed_visit`` from recomputed products. ``sums`` has the per-row scalars, terms, sums and results of both ways.
"""
