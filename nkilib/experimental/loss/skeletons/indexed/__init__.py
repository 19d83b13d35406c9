# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The common part of losses that read the element at a target: negative log-likelihood, and the multi-class
margin loss.

- :mod:`.positions`: the division of positions into blocks and batches;
- :mod:`.elements`: the element at the target of each position of a batch, and its weight;
- :mod:`.upstream`: the upstream gradients on chip, of each loss or of their sum.
"""
