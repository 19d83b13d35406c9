# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The negative log-likelihood loss: its kernels and their host code.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, float64 reference and bounds;
- ``gathered``: the loops that read and write only the elements at the targets, and the code that stores results;
- ``few_classes``: the loops that read the whole input or compute the whole gradient, for inputs of few classes.
"""
