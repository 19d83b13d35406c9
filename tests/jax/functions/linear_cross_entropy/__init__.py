"""Tests of nkilib.jax.functions.linear_cross_entropy."""
