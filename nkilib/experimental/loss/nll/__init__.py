# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The negative log-likelihood loss: its kernels and their host code.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, float64 reference and bounds;
- ``gathered``: the loop over the elements at the targets, and the code that stores results; ``few_classes``: the loop
  over inputs of few classes, which are read whole.
"""
