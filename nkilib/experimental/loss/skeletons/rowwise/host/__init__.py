# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of row-wise losses, never traced: tilings, references in float64, and registry entries with the
kernels' work.
"""
