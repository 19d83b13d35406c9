"""Tests of nkilib.jax.functions.linear_token_scores."""
