# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of kernels over rows from JAX, for all functions.

From the bottom up: ``platforms`` knows where kernels run, ``host_call`` calls Python from a compiled program,
``launch`` launches a kernel with either, ``batching`` makes one launch out of a ``jax.vmap``. ``checks`` and ``layout``
are shared by the public functions. Nothing here depends on a loss.
"""
