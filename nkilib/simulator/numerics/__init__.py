# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arithmetic on numpy arrays. This package does not use tensors.

- ``casts``: casts between types;
- ``copies``: copies in another order;
- ``operators``: the operators of instructions, and sums and maxima of rows;
- ``activations``: the activation functions of the Scalar engine;
- ``products``: matrix products on the calling thread;
- ``random_state``: the random number generators.
"""
