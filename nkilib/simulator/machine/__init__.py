"""A running core, and where two of them meet."""
