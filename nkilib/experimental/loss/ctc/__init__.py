# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Connectionist temporal classification (CTC): the loss, its gradient and their host code.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, float64 reference and bounds;
- ``layout``: the inputs, the layout of sequences and states on partitions, and the chunks of time;
- ``recursion``: the alphas and betas of all time steps;
- ``forward``: the losses; ``gradient``: their gradient.
"""
