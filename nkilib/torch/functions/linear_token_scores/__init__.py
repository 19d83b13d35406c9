# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_token_scores``: log-probabilities, entropies and other scores of tokens, from hidden states.

``functional``: the function, its checks and its placement of DTensors; ``operators``: the operators and their results;
``shards``: derivatives, and scores over the ranks of a group.
"""
