# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The first visit of the classes (a pass over all blocks of them): divergences of two distributions, and the inputs
that a mixture needs for a second visit.

``one_core``: the loop; ``pair_tiles``: tiles of scores of both models and their sums; ``pair_statistics``: statistics
and inputs of a block of positions; ``pair_results``: its results; ``visits``: the data that the first visit hands to
the second.
"""
