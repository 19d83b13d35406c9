"""Instructions of the Scalar engine."""
