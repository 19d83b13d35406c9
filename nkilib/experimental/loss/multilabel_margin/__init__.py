# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-label margin loss, to be launched on their own.

- ``kernels``: the kernels as plain functions; ``registry_entry``: guarantees, work and float64 reference;
- ``launch``: a launch and its checks; on chip, the lists of targets and the scores.
"""
