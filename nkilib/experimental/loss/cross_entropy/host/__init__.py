# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Around the kernels, in numpy and arithmetic: what a launch does, takes and should give. Never traced."""
