"""Instructions of the GpSimd engine, and those whose numbers it makes."""
