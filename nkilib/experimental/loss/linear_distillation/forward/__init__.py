# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The first pass over the classes: divergences of two distributions, and the inputs that a mixture needs for a second
pass.

``one_core`` has the loop, ``pair_tiles`` tiles of scores of both models and their sums, ``pair_statistics`` statistics
and inputs of a block of positions, ``pair_results`` its results, and ``visits`` the data that the first pass hands to
the second.
"""
