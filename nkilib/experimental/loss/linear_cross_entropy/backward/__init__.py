"""The gradient of the logits of linear cross-entropy and of token scores."""
