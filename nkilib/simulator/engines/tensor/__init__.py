"""Instructions of the Tensor engine."""
