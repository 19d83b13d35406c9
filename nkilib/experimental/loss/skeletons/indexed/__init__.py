# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The common part of losses of the element at a target: negative log-likelihood, and the margin of a target.

- :mod:`.positions`: the division of positions into blocks and batches;
- :mod:`.elements`: the element at the target of each position of a batch, and its weight;
- :mod:`.upstream`: gradients of the losses' sum, or of each loss, on chip.
"""
