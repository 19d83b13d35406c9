# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of nkilib.jax.functions, and of the modules of nkilib.jax that need JAX: ``launching`` and ``rows``."""

from tests.jax import need_jax

need_jax()
