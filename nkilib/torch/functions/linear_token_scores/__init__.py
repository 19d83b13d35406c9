# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_token_scores``: log-probabilities, entropies and other scores of tokens, from hidden states."""
