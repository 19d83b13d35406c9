# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the negative log-likelihood loss, to be launched on their own.

- ``kernels``: the kernels as plain functions; ``registry_entry``: guarantees, work and float64 reference;
- ``gathered``: elements at the targets alone; ``few_classes``: whole inputs of few classes, in long runs.
"""
