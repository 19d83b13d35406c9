# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiling, work, reference, bounds, profiles and guarantees of distillation: arithmetic and numpy, never traced."""
