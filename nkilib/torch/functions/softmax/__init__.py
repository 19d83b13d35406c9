"""Softmax and log-softmax along a dimension."""
