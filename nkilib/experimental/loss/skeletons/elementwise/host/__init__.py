# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of elementwise losses, never traced: references in float64, the work that bounds a launch,
registry entries.
"""
