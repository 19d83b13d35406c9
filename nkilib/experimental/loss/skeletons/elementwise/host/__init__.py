# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code, never traced: float64 references, the work that bounds a launch, and the row of a loss."""
