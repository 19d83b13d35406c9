# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of connectionist temporal classification (CTC), to be launched on their own.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, float64 reference and bounds;
- ``layout``: the inputs, sequences and states on partitions, and the chunks of time;
- ``recursion``: the alphas and betas of all time steps;
- ``forward``: the losses; ``gradient``: their gradient.
"""
