"""Tests of nkilib.jax.functions."""

from tests.jax import need_jax

need_jax()
