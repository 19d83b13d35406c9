# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of the cross-entropy kernels, in numpy and arithmetic: their work, tensors and expected results.
Never traced.
"""
