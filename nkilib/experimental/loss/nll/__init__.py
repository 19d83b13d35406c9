# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the negative log-likelihood loss, to be launched on their own.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, float64 reference and bounds;
- ``gathered``: the loop that reads only the elements at the targets, and the code that stores results; ``few_classes``:
  the loop that reads inputs of few classes whole.
"""
