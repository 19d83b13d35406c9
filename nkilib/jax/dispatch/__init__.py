# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How a kernel over rows is launched from JAX, whichever function it serves.

From the bottom up: ``platforms`` says where kernels run, ``host_call`` calls Python from a compiled program, ``launch``
launches a kernel with either, ``batching`` makes one launch of what ``jax.vmap`` maps. What public functions share
stands beside them: ``checks``, ``layout``. Nothing here knows a loss.
"""
