"""Tests of nkilib.jax.dispatch."""

from tests.jax import need_jax

need_jax()
