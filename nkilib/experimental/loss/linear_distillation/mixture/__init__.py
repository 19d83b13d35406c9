# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second visit of (pass over) the classes, which a divergence from a mixture needs.

``kept_visit``: from kept scores, during the first visit of the next block of positions; ``recomputed_visit``: from
recomputed products; ``sums``: per-row scalars, terms, sums and results of both.
"""
