"""``linear_token_scores``: log-probabilities, entropies and other scores of tokens from hidden states."""
