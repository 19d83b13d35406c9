# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the negative log-likelihood loss, to be launched on their own.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, float64 reference and bounds;
- ``gathered``: elements at the targets alone, and the end of both forwards; ``few_classes``: whole inputs of few
  classes, in long runs.
"""
