# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Work, truth, bounds, guarantees and the row of the registry: arithmetic and numpy, never traced."""
