"""For host code that goes through all kernels."""
