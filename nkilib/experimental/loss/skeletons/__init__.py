# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loops that several losses share: of elements, of rows, and of classes of a row."""
