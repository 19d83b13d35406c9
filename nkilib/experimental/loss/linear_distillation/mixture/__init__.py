# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second visit of the classes, which a divergence from a mixture needs.

``kept_visit``: from kept scores, beside the first visit of the next block; ``recomputed_visit``: from recomputed
products; ``sums``: per-row scalars, terms, sums and results of both.
"""
