"""Instructions of the DMA engines."""
