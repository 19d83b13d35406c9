# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiling, work, reference, bounds and guarantees of the margins of classes: arithmetic and numpy, never traced."""
