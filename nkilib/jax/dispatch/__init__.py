# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of kernels over rows from JAX, for all functions.

From the bottom up: ``platforms`` knows where kernels run, ``host_call`` calls Python from a compiled program,
``launch`` launches a kernel on a device directly or on the simulator by ``host_call``, ``batching`` makes one launch
out of a ``jax.vmap``. ``layout``, ``mesh_axes`` and ``saved_flags`` are helpers of the public functions. Nothing here
depends on a loss.
"""
