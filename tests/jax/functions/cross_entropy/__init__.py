"""Tests of nkilib.jax.functions.cross_entropy."""
