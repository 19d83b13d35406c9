# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code for the kernels, in numpy and arithmetic: their work, tensors and expected results. Never traced."""
