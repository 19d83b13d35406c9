"""Instructions of the Vector engine."""
