# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of the kernels, in numpy and arithmetic: the work, time and expected results of a launch. Never traced."""
