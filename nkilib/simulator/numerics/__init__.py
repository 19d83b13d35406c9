"""Arithmetic on arrays: casts, activation functions, operators. Knows no tensors."""
