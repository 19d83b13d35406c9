# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The multi-label margin loss: its kernels and their host code.

- ``kernels``: the kernels as plain functions; ``host``: registry entry, float64 reference and bounds;
- ``launch``: the arguments of a launch, their checks, and the targets and scores on chip.
"""
