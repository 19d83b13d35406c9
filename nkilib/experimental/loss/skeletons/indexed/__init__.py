# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What losses of the element at a target share: negative log-likelihood, and the margin of a target.

- :mod:`.positions`: how positions are divided into blocks and batches;
- :mod:`.elements`: the element at the target of each position of a batch, and what it weighs;
- :mod:`.upstream`: gradients of their sum, or of each loss, on chip.
"""
