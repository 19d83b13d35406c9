# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Work, reference, bounds and guarantees of the margins of several targets: arithmetic and numpy, never traced."""
