# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loops that several losses share: elementwise losses, row-wise losses, and losses of one class per row."""
