"""Tensors: views of a storage, how they are indexed and reshaped, and registers."""
