"""Cross-entropy fused with the output layer: the logits of hidden states are never in HBM as a whole."""
