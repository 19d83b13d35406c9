# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of nkilib.jax; they mirror its tree. Packages of those that need JAX call :func:`need_jax`."""

import pytest


def need_jax() -> None:
    """Skip the package that calls this where JAX is not installed; else give it two devices, to make a mesh of."""
    jax = pytest.importorskip("jax", minversion="0.8", reason="nkilib.jax needs jax, which wants Python 3.11 or later")
    pytest.importorskip("optax", reason="the results of nkilib.jax are compared with optax")
    if jax.config.jax_num_cpu_devices != 2:  # once: not after the first array
        jax.config.update("jax_num_cpu_devices", 2)
    # What surrounds the kernels is small and runs once: most of the time would go into making it fast.
    jax.config.update("jax_disable_most_optimizations", True)
