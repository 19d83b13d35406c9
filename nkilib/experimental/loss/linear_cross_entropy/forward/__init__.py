"""The forward of linear cross-entropy and of token scores."""
