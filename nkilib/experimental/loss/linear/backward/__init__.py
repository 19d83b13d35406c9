"""The backward of both linear losses, of which each makes the tiles of the gradient of its logits."""
