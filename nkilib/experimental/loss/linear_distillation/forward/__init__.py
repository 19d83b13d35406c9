# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The first pass over the classes: divergences of two distributions, and the inputs of the second pass that a mixture
needs.

- ``one_core`` has the loop.
- ``pair_tiles`` computes tiles of scores of both models and their sums.
- ``pair_statistics`` has the statistics and the inputs of a block of positions, ``pair_results`` its results.
- ``visits`` has the data that the first pass hands to the second.
"""
