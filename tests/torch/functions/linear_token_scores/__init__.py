"""Tests of nkilib.torch.functions.linear_token_scores."""
