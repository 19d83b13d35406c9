# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels of our own that do the work of measured ones whose source is written for an NKI that no longer runs.

Each follows the published description instruction by instruction: the same tiles, the same order, the same types.
"""
