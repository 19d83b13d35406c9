"""Linear cross-entropy: output layer and loss in one, without a tensor of logits."""
