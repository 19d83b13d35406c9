# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_token_scores``: log-probabilities, entropies and other scores of tokens, from hidden states.

``functional`` has the function and the named tuple of its results; ``placement`` the conversion of DTensors to plain
tensors; ``operators`` the operators, their results and derivative; ``shards`` the scores over the ranks of a group.
"""
