# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code, never traced: tilings, float64 references, and the row of a loss with the work that bounds a launch."""
