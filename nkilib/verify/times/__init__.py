"""Times on a device beside those of the performance model."""
