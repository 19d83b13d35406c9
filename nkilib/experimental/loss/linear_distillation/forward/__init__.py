# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The first visit of the classes: divergences of two distributions, and the inputs of the second visit of a mixture.

``one_core``: the loop; ``pair_tiles``: tiles of scores of both models and their sums; ``pair_statistics``: statistics
and inputs of a block of positions; ``pair_results``: its results; ``visits``: what the first visit hands over to the
second.
"""
