"""What the passes do to the instructions of small kernels."""
